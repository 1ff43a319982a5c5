"""The clouds that benchmarks run on: synthetic ones, and real ones where their files are at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from harness import say
from scipy.spatial import cKDTree
from torch import Tensor

import pointvar as pv

NEIGHBOURS = 24


@dataclass
class Case:
    """One batch of clouds and the radius that holds about 24 points on average, itself included."""

    name: str
    parts: list[Tensor]

    @cached_property
    def points(self) -> Tensor:
        return torch.cat(self.parts)

    @cached_property
    def lengths(self) -> list[int]:
        return [len(part) for part in self.parts]

    @cached_property
    def doubles(self) -> list[np.ndarray]:
        return [part.double().numpy() for part in self.parts]

    @cached_property
    def singles(self) -> list[np.ndarray]:
        return [part.numpy() for part in self.parts]

    @cached_property
    def radius(self) -> float:
        chosen = self.doubles[:: max(1, len(self.doubles) // 16)]
        trees = [(cKDTree(part), part[:: max(1, len(part) // 4096)]) for part in chosen]
        low, high = 0.0, float(np.ptp(self.doubles[0], axis=0).max())
        for _ in range(30):
            middle = (low + high) / 2
            counts = [tree.query_ball_point(some, middle, return_length=True) for tree, some in trees]
            low, high = (low, middle) if np.concatenate(counts).mean() > NEIGHBOURS else (middle, high)
        return float(np.float32(high))

    def cloud(self) -> pv.PointCloud:
        """Made anew for each measurement: checks are part of the cost, and nothing is kept."""
        return pv.PointCloud(self.points, self.lengths)


def uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, 3, generator=generator)


def surface(count: int, generator: torch.Generator) -> Tensor:
    """A scene of tori, spheres and walls as a scanner sees it: dense nearby, thin far away."""
    u, v = torch.rand(2, 6 * count, generator=generator, dtype=torch.float64) * 2 * math.pi
    centre = torch.rand(12, 3, generator=generator, dtype=torch.float64) * torch.tensor([8.0, 8.0, 2.0])
    size = 0.3 + 0.7 * torch.rand(12, 1, generator=generator, dtype=torch.float64)
    kind = torch.randint(12 + 6, (6 * count,), generator=generator)
    ring = 1 + 0.4 * v.cos()
    torus = torch.stack([ring * u.cos(), ring * u.sin(), 0.4 * v.sin()], 1)
    height = v / math.pi - 1
    flat = (1 - height * height).sqrt()
    sphere = torch.stack([flat * u.cos(), flat * u.sin(), height], 1)
    ground = torch.stack([u, v, torch.zeros_like(u)], 1) * (8 / (2 * math.pi))
    wall = torch.stack([u * (8 / (2 * math.pi)), torch.zeros_like(u), v * (3 / (2 * math.pi))], 1)
    index = kind.clamp(max=11)
    solid = torch.where(kind[:, None] % 2 == 0, torus, sphere) * size[index] + centre[index]
    scene = torch.where(kind[:, None] < 12, solid, torch.where(kind[:, None] < 16, ground, wall))
    # Points are kept with a chance that falls with the squared distance from the scanner.
    distance = (scene - torch.tensor([3.0, 3.0, 1.5], dtype=torch.float64)).square().sum(1)
    chance = torch.rand(len(scene), generator=generator, dtype=torch.float64).log() * (distance + 1)
    kept = scene[chance.topk(count).indices]
    noise = 0.002 * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return (kept + noise)[torch.randperm(count, generator=generator)].float()


def real_cases(folder: Path, quick: bool) -> Iterator[Case]:
    """Scans and meshes from files that this project does not ship; left out where they are missing."""
    lidar, meshes = folder / "ahn3_delft.npz", folder / "modelnet40_small.npz"
    for file in (lidar, meshes):
        if not file.exists():
            say(f"no {file.name} under --data: left out")
    if meshes.exists():
        with np.load(meshes) as data:
            clouds = data["train_points"][:: 120 if quick else 12].astype(np.float32)
        yield Case(f"ModelNet40, {len(clouds)} x 1,024", list(torch.from_numpy(clouds)))
    if lidar.exists() and not quick:
        with np.load(lidar) as data:
            yield Case("aerial LiDAR", [torch.from_numpy(data["xyz"].astype(np.float32))])
