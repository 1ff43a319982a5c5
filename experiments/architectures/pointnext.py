"""PointNeXt."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.architectures.parts import (
    Norm,
    batch_norm,
    gather,
    gather_points,
    head,
    layer,
    linear,
    mlp,
    nearest,
    offsets,
    spread,
)


def _balls(points: Tensor, centers: Tensor, features: Tensor, radius: float, neighbors: int) -> Tensor:
    """Offsets in units of the radius, and features, of the neighbours of each center."""
    near = nearest(points, centers, neighbors, radius)
    return torch.cat([offsets(points, centers, near) / radius, gather(features, near)], 1)


class InvResMLP(nn.Module):
    """A layer on neighbours and their maximum, two layers on points, the inner one four times as wide, all
    beside the identity, and a ReLU."""

    def __init__(self, channels: int, radius: float, neighbors: int, norm: Norm) -> None:
        super().__init__()
        self.radius, self.neighbors = radius, neighbors
        self.near = layer(channels + 3, channels, 2, norm)
        self.own = nn.Sequential(
            layer(channels, 4 * channels, 1, norm), layer(4 * channels, channels, 1, norm, nn.Identity)
        )

    def forward(self, points: Tensor, features: Tensor) -> Tensor:
        near = self.near(_balls(points, points, features, self.radius, self.neighbors)).amax(3)
        return functional.relu(features + self.own(near))


class Stage(nn.Module):
    """Set abstraction to half of the points, whose offsets are in units of the radius, and an InvResMLP."""

    def __init__(self, channels: int, radius: float, neighbors: int, norm: Norm) -> None:
        super().__init__()
        self.radius, self.neighbors = radius, neighbors
        self.abstraction = mlp([channels + 3, 2 * channels, 2 * channels], 2, norm)
        self.block = InvResMLP(2 * channels, 2 * radius, neighbors, norm)

    def forward(self, points: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        centers = gather_points(points, spread(points, 2))
        grouped = _balls(points, centers, features, self.radius, self.neighbors)
        return centers, self.block(centers, self.abstraction(grouped).amax(3))


class PointNeXt(nn.Module):
    """Qian et al. 2022, "PointNeXt: revisiting PointNet++ with improved training and scaling strategies",
    https://arxiv.org/abs/2206.04670

    A linear layer of w, four stages of 2w to 16w in balls of 0.15 and twice as large at each, maximum, MLP
    (16w, 8w), scores; as published, w = 32, with 32 neighbours; form S has no InvResMLP, form B has this one.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 8, neighbors: int = 12) -> None:
        super().__init__()
        self.first = linear(3, width, 1)
        self.stages = nn.ModuleList(Stage(width << i, 0.15 * 2**i, neighbors, norm) for i in range(4))
        self.head = head([16 * width, 16 * width, 8 * width], classes, norm)

    def forward(self, points: Tensor) -> Tensor:
        features = self.first(points.mT)
        for stage in self.stages:
            points, features = stage(points, features)
        return self.head(features.amax(2))
