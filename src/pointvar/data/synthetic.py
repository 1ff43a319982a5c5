"""Data made on the spot: `Shapes` to classify, with nothing to download."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pointvar.data.base import PointData, check_choice, tensor
from pointvar.data.mesh import Floats, Mesh, sample_surface
from pointvar.data.objects import OBJECTS, Random
from pointvar.data.sample import Sample

SPLITS = {"train": 0, "validation": 1, "test": 2}


@dataclass(eq=False)
class Synthetic(PointData):
    """Samples that depend on the arguments, ``seed``, ``split`` and their index alone, whichever process asks
    for them and in whatever order."""

    size: int
    """Number of samples."""
    split: str = "train"
    """"train", "validation" or "test"; different samples of the same distribution."""
    num_points: int = 1024
    """Points per sample."""
    seed: int = 0
    """Another seed gives another data set."""
    noise: float = 0.01
    """Standard deviation of the noise of the scanner."""

    def __post_init__(self) -> None:
        check_choice("split", self.split, SPLITS)
        if self.size < 0 or self.num_points < 1 or self.seed < 0 or self.noise < 0:
            raise ValueError(
                f"size, seed and noise must not be negative and num_points must be positive, got {self}"
            )

    def __len__(self) -> int:
        return self.size

    def load(self, index: int) -> Sample:
        return self.make(index, np.random.default_rng([self.seed, SPLITS[self.split], index]))

    @abstractmethod
    def make(self, index: int, random: Random) -> Sample: ...


@dataclass(eq=False)
class Shapes(Synthetic):
    """Partial scans of parametric objects to classify: 25 classes, some of which differ in local shape only.

    Each object has random proportions and a random rotation about the up axis (z), and is seen from one side:
    what faces away, lies behind another part or beyond a random cut is missing, and points are denser nearer
    to the scanner. Points are centred, the farthest at norm 1, in random order, with noise relative to the
    object's radius. Classes take turns, so that they are balanced.
    """

    task = "classification"
    partial: bool = True
    """False gives the whole surface, evenly sampled."""
    normals: bool = False
    """True gives the unit normals as features, False the constant 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classes, self.num_features = list(OBJECTS), 3 if self.normals else 1

    def make(self, index: int, random: Random) -> Sample:
        label = index % len(self.classes)
        name = self.classes[label]
        mesh = _posed(OBJECTS[name](random), random)
        surface = _scan if self.partial else sample_surface
        points, normals = surface(mesh, self.num_points, random)
        points = points + random.normal(size=points.shape) * self.noise
        points = points - points.mean(0)
        points /= np.linalg.norm(points, axis=1).max()
        features = tensor(normals) if self.normals else torch.ones(self.num_points, 1)
        return Sample(tensor(points), features, label, f"{name}_{self.split}_{index}")


def from_settings(settings: Any, split: str) -> Shapes:
    size = made(settings, split, {"train": 1000, "test": 500})
    return Shapes(size, split, settings.num_points or 1024, normals=settings.normals)


def made(settings: Any, split: str, default: dict[str, int]) -> int:
    """How many samples a configuration wants."""
    return (settings.train_size if split == "train" else settings.test_size) or default[split]


# From a mesh to a scan


def _posed(mesh: Mesh, random: Random) -> Mesh:
    """Centred, about one unit in radius, stretched along each axis and turned about z."""
    middle = (mesh.vertices.min(0) + mesh.vertices.max(0)) / 2
    vertices = (mesh.vertices - middle) * random.uniform(0.7, 1.4, 3)
    vertices /= np.linalg.norm(vertices, axis=1).max()
    angle = random.uniform(0, 2 * np.pi)
    cosine, sine = np.cos(angle), np.sin(angle)
    return Mesh(vertices @ np.array([[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]]), mesh.faces)


def _scan(mesh: Mesh, count: int, random: Random) -> tuple[Floats, Floats]:
    """Points that one scanner sees: front faces, nothing in front, one side of a cut, denser nearby."""
    azimuth, elevation = random.uniform(0, 2 * np.pi), random.uniform(-0.2, 0.9)
    level = np.cos(elevation)
    view = np.array([np.cos(azimuth) * level, np.sin(azimuth) * level, np.sin(elevation)])  # to the scanner
    across = np.array([-np.sin(azimuth), np.cos(azimuth), 0])
    cut, keep = random.normal(size=3), random.uniform(0.6, 1.0)
    distance = random.uniform(1.5, 4.0)
    tries = 4 * count
    while True:
        points, normals = sample_surface(mesh, tries, random)
        facing = normals @ view
        front = np.flatnonzero(facing > 0.03)
        seen = front[_unoccluded(points[front], view, across, facing[front])]
        points, normals = points[seen], normals[seen]
        height = points @ cut
        inside = height <= np.quantile(height, keep)
        if inside.sum() >= count:
            break
        tries *= 2  # much is hidden: look again with more points
    points, normals = points[inside], normals[inside]
    # Exponential races are won in proportion to the weights, without replacement.
    weight = 1 / np.square(points - distance * view).sum(1)
    order = np.argsort(random.exponential(size=len(points)) / weight)[:count]
    order = random.permutation(order)  # the race also orders by weight
    return points[order], normals[order]


def _unoccluded(
    points: Floats, view: Floats, across: Floats, facing: Floats, cell: float = 0.05
) -> NDArray[np.bool_]:
    """Which points have nothing in front of them: a depth buffer of square cells across the view."""
    column = np.floor((points @ across + 1) / cell).astype(np.int64)
    row = np.floor((points @ np.cross(view, across) + 1) / cell).astype(np.int64)
    side = int(2 / cell) + 2
    pixel = np.clip(row, 0, side - 1) * side + np.clip(column, 0, side - 1)
    near = points @ view
    nearest = np.full(side * side, -np.inf)
    np.maximum.at(nearest, pixel, near)
    # Within a cell the depth of a slanted surface differs by itself; this much is no occlusion.
    slant = np.sqrt(np.maximum(1 - facing**2, 0)) / facing
    return near > nearest[pixel] - cell * (1 + 1.5 * slant)
