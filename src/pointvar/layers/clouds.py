"""Which cloud each row of a layer's output belongs to, as far as a batch and the arguments of a call tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy, Neighborhood


class Clouds:
    """The clouds of a batch: packed ones (ours, or PyG's vector of cloud indices), or the first dimension."""

    def __init__(self, batch: Any) -> None:
        found = list(_parts(batch))
        self.packed = {len(index): index for index in found if index.dim() == 1}
        """Cloud indices, by the number of rows that they are for."""
        shapes = {len(x) for x in found if x.dim() > 1}
        self.dense = shapes.pop() if len(shapes) == 1 else None
        """How many clouds there are, if each is one entry of the first dimension."""
        counts = {int(index[-1]) + 1 for index in self.packed.values()} | {self.dense} - {None}
        self.count = counts.pop() if len(counts) == 1 else None

    def of(self, output: Tensor, rows: int, arguments: Any) -> Tensor | None:
        """The cloud index of each row of an output, ``[rows]``, if it can be told."""
        if rows == self.count:
            return torch.arange(rows, device=output.device)
        here = {len(index): index for index in _parts(arguments) if index.dim() == 1}
        if rows in (known := self.packed | here):
            return known[rows].to(output.device)
        blocks = output.shape[0] if output.dim() > 2 else self.dense
        if blocks is None or blocks != (self.dense or blocks) or rows % blocks:
            return None
        return torch.arange(blocks, device=output.device).repeat_interleave(rows // blocks)


def between_clouds(rows: Tensor, clouds: Tensor | None) -> float | None:
    """The share of a second moment that differs between clouds: the variance over the clouds of their means
    per channel, averaged over the channels. ``None`` if there is only one cloud, or nobody knows."""
    if clouds is None or not len(rows) or int(clouds[-1]) == 0:
        return None
    sums = rows.new_zeros(int(clouds[-1]) + 1, rows.shape[1]).index_add_(0, clouds, rows)
    counts = torch.bincount(clouds, minlength=len(sums))
    means = (sums / counts[:, None])[counts > 0]
    moment = float(rows.square().mean())
    return float(means.var(0, correction=0).mean()) / moment if moment else 0.0


def _parts(value: Any) -> Iterator[Tensor]:
    """Cloud indices of points, ``[N]``, and tensors of clouds of one size, ``[B, ..., ...]``."""
    if isinstance(value, PointCloud):
        yield from [value.batch] if value.num_points else []
    elif isinstance(value, Neighborhood):
        yield from _parts((value.support, value.queries))
    elif isinstance(value, Hierarchy):
        yield from _parts([value.input, *value.clouds])
    elif isinstance(value, Tensor):
        if value.dim() > 2 or (value.dim() == 1 and _counts(value)):
            yield value.detach()
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, Mapping):
        yield from _parts(list(value.values()))
    elif hasattr(value, "__dict__"):  # a batch of PyTorch Geometric, or anyone's own
        yield from _parts([getattr(value, name, None) for name in ("batch", "levels", "cloud", "pos", "x")])


def _counts(value: Tensor) -> bool:
    """Whether this is a vector 0, 0, 0, 1, 1, ...: it begins with 0, and grows by 1 at most."""
    if value.is_floating_point() or value.dtype is torch.bool or not len(value) > 1 or int(value[0]):
        return False
    steps = value.diff()
    return bool(((steps == 0) | (steps == 1)).all()) and int(value[-1]) + 1 < len(value)
