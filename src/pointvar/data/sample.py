"""One cloud with its features and label, and batches of such: what every data set gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pointvar.cloud import PointCloud, kind_of


@dataclass(frozen=True)
class Sample:
    """One point cloud of a data set.

    Args:
        points: coordinates, float32.
        features: what is known of each point besides its place, float32; the constant 1 if nothing is.
        label: the class of the cloud, or one class per point (int64; -1 where there is none).
        name: where it comes from, for messages and written predictions.

    Shapes:
        - points: ``[N, D]``, D = 1, 2 or 3
        - features: ``[N, C]``
        - label: an int, or ``[N]``
    """

    points: Tensor
    features: Tensor
    label: int | Tensor
    name: str = ""

    def __post_init__(self) -> None:
        who = f"sample {self.name!r}:" if self.name else "sample:"
        for name, width in (("points", "D"), ("features", "C")):
            value = getattr(self, name)
            if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.dim() != 2:
                raise ValueError(f"{who} {name} must be float32 [N, {width}], got {kind_of(value)}")
        count, label = len(self), self.label
        if self.features.shape[0] != count:
            raise ValueError(f"{who} {count} points, but {self.features.shape[0]} rows of features")
        if isinstance(label, Tensor):
            if label.dtype != torch.int64 or label.shape != (count,):
                raise ValueError(f"{who} labels per point must be int64 [{count}], got {kind_of(label)}")
        elif isinstance(label, bool) or not isinstance(label, int):
            raise TypeError(f"{who} label must be an int or an int64 tensor [N], got {kind_of(label)}")

    def __getitem__(self, index: Tensor | slice) -> Sample:
        """The sample of the chosen points: an index, a mask or a slice."""
        label = self.label[index] if isinstance(self.label, Tensor) else self.label
        return Sample(self.points[index], self.features[index], label, self.name)

    def __len__(self) -> int:
        return self.points.shape[0]


@dataclass(frozen=True)
class Batch:
    """Samples packed one after the other.

    Shapes:
        - cloud: B clouds with N points together
        - features: ``[N, C]``
        - labels: ``[B]`` for one class per cloud, ``[N]`` for one per point
    """

    cloud: PointCloud
    features: Tensor
    labels: Tensor
    names: list[str]

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """The batch on another device or of another float dtype, as ``Tensor.to``; labels stay int64."""
        cloud = self.cloud.to(*args, **kwargs)
        blocks = {"non_blocking": kwargs.get("non_blocking", False)}
        features, labels = self.features.to(*args, **kwargs), self.labels.to(cloud.device, **blocks)
        return Batch(cloud, features, labels, self.names)

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory; a data loader with ``pin_memory=True`` calls this."""
        features, labels = self.features.pin_memory(), self.labels.pin_memory()
        return Batch(self.cloud.pin_memory(), features, labels, self.names)

    def __len__(self) -> int:
        return self.cloud.num_clouds


def collate(samples: Sequence[Sample]) -> Batch:
    """Packs samples into a batch; pass it to a ``DataLoader`` as ``collate_fn``."""
    if not samples:
        raise ValueError("collate needs at least one sample, got none")
    widths = {sample.features.shape[1] for sample in samples}
    if len(widths) > 1:
        raise ValueError(f"all samples of a batch need as many features, got {sorted(widths)}")
    per_point = [sample.label for sample in samples if isinstance(sample.label, Tensor)]
    if per_point and len(per_point) < len(samples):
        raise ValueError("a batch holds labels per cloud or per point, not both")
    return Batch(
        PointCloud.from_list([sample.points for sample in samples]),
        torch.cat([sample.features for sample in samples]),
        torch.cat(per_point) if per_point else torch.tensor([sample.label for sample in samples]),
        [sample.name for sample in samples],
    )
