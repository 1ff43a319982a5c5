"""A part of the training data that is kept for validation: a share, named files, or a region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pointvar.data.base import PointData
from pointvar.data.folder import Folder
from pointvar.data.sample import Sample

Validation = float | Sequence[str] | Mapping[str, Sequence[float]]


class Part(PointData):
    """Some samples of a data set, by their index in it."""

    def __init__(self, data: PointData, indices: Sequence[int]) -> None:
        self.data, self.indices = data, list(indices)
        self.task, self.classes, self.num_features = data.task, data.classes, data.num_features

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> Sample:
        return self.data[self.indices[index]]


def divide(data: PointData, validation: Validation) -> tuple[PointData, PointData]:
    """What remains to train on, and the part for validation. The same for the same data, whatever the seed.

    Args:
        data: all samples.
        validation: a share from 0 to 1, of classification by class: each class with two files or more is in
            both parts; or names or patterns of files; or a region ``{"min": [x, y], "max": [x, y]}`` that is
            cut out of each scene, in the coordinates of the files.
    """
    if isinstance(validation, (Mapping, list, tuple)) and not isinstance(data, Folder):
        raise ValueError(
            f"data.validation={validation} is for files of your own (data.name=folder): give a share"
        )
    if isinstance(data, Folder) and isinstance(validation, Mapping):
        region = validation["min"], validation["max"]
        return data.cut(region, inside=False), data.cut(region, inside=True)
    if isinstance(data, Folder) and isinstance(validation, Sequence):
        chosen = _matching(data, validation)
    else:
        chosen = _drawn(data, float(validation))  # type: ignore[arg-type]
    rest = [index for index in range(len(data)) if index not in chosen]
    if not rest:
        raise ValueError(f"data.validation takes all {len(data)} samples: none is left to train on")
    return Part(data, rest), Part(data, sorted(chosen))


def _drawn(data: PointData, share: float) -> set[int]:
    """A share of the samples at random; of classes that are known from folders, of each class."""
    labels = [label for _, label in data.files] if isinstance(data, Folder) else [-1] * len(data)
    random, chosen = np.random.default_rng(0), set[int]()
    for label in sorted(set(labels)):
        group = random.permutation(np.flatnonzero(np.array(labels) == label))
        # Rounded to at least one, and to at least one that remains.
        count = min(max(round(share * len(group)), 1), len(group) - 1)
        chosen |= set(group[:count].tolist())
    if not chosen:
        name = f" in {data.root}" if isinstance(data, Folder) else ""
        advice = "give more files, or the region of a scene: {min: [x, y], max: [x, y]}"
        raise ValueError(f"data.validation={share} needs two files{name} or more: {advice}")
    return chosen


def _matching(data: Folder, patterns: Sequence[str]) -> set[int]:
    names = [path.relative_to(data.root.parent) for path, _ in data.files]
    found = {pattern: [i for i, name in enumerate(names) if name.match(pattern)] for pattern in patterns}
    if missing := [pattern for pattern, indices in found.items() if not indices]:
        raise ValueError(f"data.validation: no file in {data.root} is named {', '.join(missing)}")
    return {index for indices in found.values() for index in indices}
