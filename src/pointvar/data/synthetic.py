"""Data made on the spot: `Shapes` to classify, with nothing to download."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pointvar.data.base import PointData, Task, check_split, tensor
from pointvar.data.mesh import Floats, Mesh, sample_surface
from pointvar.data.objects import OBJECTS, Random
from pointvar.data.sample import Sample

SPLITS = {"train": 0, "validation": 1, "test": 2}


class Shapes(PointData):
    """Partial scans of parametric objects to classify: 25 classes, some of which differ in local shape only.

    Each object has random proportions and a random rotation about the up axis (z), and is seen from one side:
    what faces away, lies behind another part or beyond a random cut is missing, and points are denser nearer
    to the scanner. Points are centred, the farthest at norm 1, in random order. A sample depends on the
    arguments, ``seed``, ``split`` and its index alone, whichever process asks for it and in whatever order.

    Args:
        size: number of samples; classes take turns, so that they are balanced.
        split: "train", "validation" or "test"; different samples of the same distribution.
        num_points: points per sample.
        seed: another seed gives another data set.
        noise: standard deviation of the noise on the coordinates, relative to the object's radius.
        partial: False gives the whole surface, evenly sampled.
        normals: True gives the unit normals as features, False the constant 1.
    """

    task: Task = "classification"

    def __init__(
        self,
        size: int,
        split: str = "train",
        num_points: int = 1024,
        seed: int = 0,
        noise: float = 0.01,
        partial: bool = True,
        normals: bool = False,
    ) -> None:
        check_split(split, list(SPLITS))
        if size < 0 or num_points < 1 or seed < 0 or noise < 0:
            raise ValueError(
                "size, seed and noise must not be negative and num_points must be positive, "
                f"got size={size}, num_points={num_points}, seed={seed}, noise={noise}"
            )
        self.size, self.split, self.num_points, self.seed = size, split, num_points, seed
        self.noise, self.partial, self.normals = noise, partial, normals
        self.classes = list(OBJECTS)
        self.num_features = 3 if normals else 1

    def __len__(self) -> int:
        return self.size

    def load(self, index: int) -> Sample:
        random = np.random.default_rng([self.seed, SPLITS[self.split], index])
        label = index % len(self.classes)
        name = self.classes[label]
        mesh = _posed(OBJECTS[name](random), random)
        points, normals = (
            _scan(mesh, self.num_points, random)
            if self.partial
            else sample_surface(mesh, self.num_points, random)
        )
        points = points + random.normal(size=points.shape) * self.noise
        points = points - points.mean(0)
        points /= np.linalg.norm(points, axis=1).max()
        features = tensor(normals) if self.normals else torch.ones(self.num_points, 1)
        return Sample(tensor(points), features, label, f"{name}_{self.split}_{index}")


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
