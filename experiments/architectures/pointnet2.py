"""PointNet++."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.architectures.parts import (
    Norm,
    batch_norm,
    gather,
    gather_points,
    head,
    mlp,
    nearest,
    offsets,
    spread,
)


class SetAbstraction(nn.Module):
    """Farthest points, the balls around them, an MLP on offsets and features, the maximum of each ball."""

    def __init__(self, among: int, radius: float, neighbors: int, sizes: list[int], norm: Norm) -> None:
        super().__init__()
        self.among, self.radius, self.neighbors = among, radius, neighbors
        self.mlp = mlp([sizes[0] + 3, *sizes[1:]], 2, norm)

    def forward(self, points: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        centers = gather_points(points, spread(points, self.among))
        balls = nearest(points, centers, self.neighbors, self.radius)
        grouped = torch.cat([offsets(points, centers, balls), gather(features, balls)], 1)
        return centers, self.mlp(grouped).amax(3)


class PointNet2(nn.Module):
    """Qi et al. 2017, "PointNet++: deep hierarchical feature learning on point sets in a metric space",
    https://arxiv.org/abs/1706.02413

    Single-scale grouping: set abstraction (w, w, 2w) in balls of 0.2, (2w, 2w, 4w) of 0.4, (4w, 8w, 16w) of
    all, MLP (8w, 4w), scores; as published, w = 64, with 32 and 64 neighbours.
    Of 1,024 points the first keeps 512, the second 128.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 24) -> None:
        super().__init__()
        self.first = SetAbstraction(2, 0.2, 16, [0, width, width, 2 * width], norm)
        self.second = SetAbstraction(4, 0.4, 16, [2 * width, 2 * width, 2 * width, 4 * width], norm)
        self.last = mlp([4 * width + 3, 4 * width, 8 * width, 16 * width], 1, norm)
        self.head = head([16 * width, 8 * width, 4 * width], classes, norm)

    def forward(self, points: Tensor) -> Tensor:
        points, features = self.first(points, points.mT[:, :0])
        points, features = self.second(points, features)
        return self.head(self.last(torch.cat([points.mT, features], 1)).amax(2))
