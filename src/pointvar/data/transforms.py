"""Changes to a sample: normalisation, augmentation and thinning, each a small object that takes a generator.

A transform is called as ``transform(sample, generator)`` and gives a new sample. Normals among the features
turn with the points when ``vectors`` names their columns: ``vectors=[slice(0, 3)]`` for the first three.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

from pointvar.cloud import PointCloud
from pointvar.data.base import PointData
from pointvar.data.sample import Sample
from pointvar.geometry import poisson_disk


class Transform(ABC):
    """A change to a sample; write your own by defining ``__call__``."""

    @abstractmethod
    def __call__(self, sample: Sample, generator: Generator) -> Sample: ...


class Compose(Transform):
    """Several transforms, one after the other."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        for transform in self.transforms:
            sample = transform(sample, generator)
        return sample


def mixed(*key: int) -> int:
    """A seed from a tuple of numbers, such that no two tuples share a stream."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def seeded(*key: int) -> Generator:
    """A generator of its own for each tuple of numbers: what is drawn depends on them alone."""
    return Generator().manual_seed(mixed(*key))


class Transformed(PointData):
    """A data set seen through a transform, with random numbers that depend on seed, epoch and index alone.

    So a sample is the same in whichever worker process and order it is made, and a run that is resumed at an
    epoch goes on as it would have. ``set_epoch`` also reaches worker processes that stay alive.
    """

    def __init__(self, data: PointData, transform: Transform, seed: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.data, self.transform, self.seed = data, transform, seed
        self.task, self.classes, self.num_features = data.task, data.classes, data.num_features
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the random numbers of an epoch; call it before each."""
        if epoch < 0:
            raise ValueError(f"epoch must not be negative, got {epoch}")
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.data)

    def load(self, index: int) -> Sample:
        return self.transform(self.data[index], seeded(self.seed, int(self._epoch), index))


# Size and place


class NormalizeBox(Transform):
    """Centres the bounding box at the origin and makes its longest side 2."""

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        _check_not_empty(sample)
        low, high = sample.points.amin(0), sample.points.amax(0)
        longest = (high - low).amax()
        factor = 2 / longest if longest > 0 else torch.ones(())  # a single place stays one
        return replace(sample, points=(sample.points - (low + high) / 2) * factor)


class NormalizeSphere(Transform):
    """Centres the mean at the origin and puts the farthest point at distance 1."""

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        _check_not_empty(sample)
        points = sample.points - sample.points.mean(0)
        farthest = points.norm(dim=1).amax()
        return replace(sample, points=points / farthest if farthest > 0 else points)


# Augmentation


@dataclass(frozen=True)
class Scale(Transform):
    """Stretches each axis by its own factor between ``low`` and ``high``; normals follow the surface."""

    low: float = 0.9
    high: float = 1.1
    vectors: Sequence[slice] = ()

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"scales need 0 < low <= high, got {self.low} and {self.high}")

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        factors = self.low + (self.high - self.low) * torch.rand(sample.points.shape[1], generator=generator)
        return _mapped(sample, torch.diag(factors), self.vectors)


@dataclass(frozen=True)
class Rotate(Transform):
    """Turns the cloud by a random angle about the up axis."""

    axis: int = 2
    angle: float = math.pi
    """Angles are drawn between ``-angle`` and ``angle``."""
    vectors: Sequence[slice] = ()

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        size = sample.points.shape[1]
        if size < 2 or not 0 <= self.axis < 3:
            raise ValueError(f"a rotation about axis {self.axis} needs 2D or 3D points, got {size}D")
        angle = self.angle * (2 * float(torch.rand((), generator=generator, dtype=torch.float64)) - 1)
        first, second = (0, 1) if size == 2 else ((self.axis + 1) % 3, (self.axis + 2) % 3)
        matrix = torch.eye(size)
        matrix[first, first] = matrix[second, second] = math.cos(angle)
        matrix[second, first], matrix[first, second] = math.sin(angle), -math.sin(angle)
        return _mapped(sample, matrix, self.vectors)


@dataclass(frozen=True)
class Mirror(Transform):
    """Mirrors each of the given axes with probability one half; leave the up axis out."""

    axes: Sequence[int] = (0, 1)
    vectors: Sequence[slice] = ()

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        signs = torch.ones(sample.points.shape[1])
        for axis in self.axes:
            if float(torch.rand((), generator=generator)) < 0.5:
                signs[axis] = -1
        return _mapped(sample, torch.diag(signs), self.vectors)


@dataclass(frozen=True)
class Jitter(Transform):
    """Adds normal noise to the coordinates, cut at ``clip``."""

    sigma: float = 0.01
    clip: float = math.inf

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        noise = self.sigma * torch.randn(sample.points.shape, generator=generator)
        return replace(sample, points=sample.points + noise.clamp(-self.clip, self.clip))


# Fewer points


@dataclass(frozen=True)
class Subset(Transform):
    """A random choice of so many points, in random order; a cloud with no more keeps all of its points."""

    count: int

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        return sample[torch.randperm(len(sample), generator=generator)[: self.count]]


@dataclass(frozen=True)
class PoissonDisk(Transform):
    """A random choice of points of which no two are closer than the radius, and that covers all others."""

    radius: float

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        return sample[poisson_disk(PointCloud(sample.points), self.radius, generator=generator)]


def _mapped(sample: Sample, matrix: Tensor, vectors: Sequence[slice]) -> Sample:
    """Points times a matrix; unit normals times its inverse transpose, as unit vectors again."""
    features = sample.features
    if vectors:
        features = features.clone()
        turn = torch.linalg.inv(matrix.double()).float()  # for rows, the transpose of the inverse transpose
        for columns in vectors:
            normals = features[:, columns]
            if normals.shape[1] != matrix.shape[0]:
                raise ValueError(
                    f"vectors {columns} name {normals.shape[1]} columns, points have {matrix.shape[0]}"
                )
            moved = normals @ turn
            length = moved.norm(dim=1, keepdim=True)
            features[:, columns] = moved * normals.norm(dim=1, keepdim=True) / length.clamp_min(1e-12)
    return replace(sample, points=sample.points @ matrix.T, features=features)


def _check_not_empty(sample: Sample) -> None:
    if not len(sample):
        raise ValueError(f"sample {sample.name!r} has no points to normalise")
