"""Surface clouds for the figures: ModelNet40 where it is, the built-in shapes otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pointvar.cloud import PointCloud
from pointvar.data import Shapes
from pointvar.geometry import Hierarchy, Neighborhood

POISSON, REACH, NEIGHBORS = 0.1, 3.0, 16
"""Poisson radius, receptive field in units of it, and the cap on neighbours."""


@dataclass(frozen=True)
class Clouds:
    """Clouds with normals as features, each cloud by itself."""

    name: str
    samples: list[tuple[Tensor, Tensor]]

    def packed(self, chosen: slice, seed: int = 0) -> tuple[Tensor, Neighborhood]:
        """Some of the clouds, thinned to a Poisson disk sampling: normals and the neighbourhood."""
        return thinned(self.samples[chosen], seed)


def thinned(
    samples: list[tuple[Tensor, Tensor]],
    seed: int = 0,
    radius: float = POISSON,
    reach: float = REACH,
    max_neighbors: int | None = NEIGHBORS,
) -> tuple[Tensor, Neighborhood]:
    """Clouds as one batch: features and neighbourhood of a Poisson disk sampling."""
    cloud = PointCloud.from_list([points for points, _ in samples])
    features = torch.cat([normals for _, normals in samples])
    levels = Hierarchy(cloud, [radius], reach, max_neighbors, torch.Generator().manual_seed(seed))
    return features[levels.kept[0]], levels.within(0)


def surface_clouds(data: Path | None, count: int, source: str | None = None) -> Clouds:
    """``count`` clouds of many classes, from "modelnet40" or "shapes"; default: what is there."""
    file = None if data is None else Path(data) / "modelnet40_small.npz"
    real = file is not None and file.is_file()
    if source == "modelnet40" and not real:
        raise ValueError("ModelNet40 is not there: give the folder that has modelnet40_small.npz")
    if file is not None and real and source != "shapes":
        with np.load(file) as arrays:
            order = np.random.default_rng(0).permutation(len(arrays["train_label"]))[:count]
            points = arrays["train_points"][order].astype(np.float32)
            normals = arrays["train_normals_i8"][order].astype(np.float32) / 127
        pairs = zip(torch.from_numpy(points), torch.from_numpy(normals), strict=True)
        return Clouds("ModelNet40", list(pairs))
    shapes = Shapes(count, normals=True)
    return Clouds("synthetic shapes", [(s.points, s.features) for s in (shapes[i] for i in range(count))])
