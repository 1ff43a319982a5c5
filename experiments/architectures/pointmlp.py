"""PointMLP."""

from __future__ import annotations

from itertools import pairwise

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
    nearest,
    spread,
)


class Residual(nn.Module):
    """Two layers beside the identity, the inner one a quarter as wide, and a ReLU."""

    def __init__(self, channels: int, dims: int, norm: Norm) -> None:
        super().__init__()
        inner = channels // 4
        self.layers = nn.Sequential(
            layer(channels, inner, dims, norm), layer(inner, channels, dims, norm, nn.Identity)
        )

    def forward(self, features: Tensor) -> Tensor:
        return functional.relu(features + self.layers(features))


class GeometricAffine(nn.Module):
    r"""Neighbours in units of their own spread: :math:`\alpha (f_j - f_i) / (\sigma + \epsilon) + \beta`.

    :math:`\sigma` is that of all differences in a cloud. It belongs to the network, whatever its norms are.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, near: Tensor, own: Tensor) -> Tensor:
        difference = near - own
        deviation = difference.flatten(1).std(1)[:, None, None, None]
        return self.gain * difference / (deviation + 1e-5) + self.bias


class Stage(nn.Module):
    """Half of the points, their neighbours, residual blocks on these, the maximum, residual blocks on it."""

    def __init__(self, incoming: int, outgoing: int, neighbors: int, norm: Norm) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.affine = GeometricAffine(incoming)
        self.before = nn.Sequential(layer(2 * incoming, outgoing, 2, norm), Residual(outgoing, 2, norm))
        self.after = Residual(outgoing, 1, norm)

    def forward(self, points: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        chosen = spread(points, 2)
        centers = gather_points(points, chosen)
        near = gather(features, nearest(points, centers, self.neighbors))
        own = gather(features, chosen)[..., None].expand_as(near)
        grouped = torch.cat([self.affine(near, own), own], 1)
        return centers, self.after(self.before(grouped).amax(3))


class PointMLP(nn.Module):
    """Ma et al. 2022, "Rethinking network design and local geometry in point cloud: a simple residual MLP
    framework", https://arxiv.org/abs/2202.07123

    The elite form: a layer of w, four stages of 2w, 4w, 8w, 8w on half as many points each, maximum, MLP
    (16w, 8w), scores; as published, w = 32, with 24 neighbours and twice the blocks in the third stage.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 16, neighbors: int = 12) -> None:
        super().__init__()
        self.first = layer(3, width, 1, norm)
        widths = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.stages = nn.ModuleList(Stage(a, b, neighbors, norm) for a, b in pairwise(widths))
        self.head = head([8 * width, 16 * width, 8 * width], classes, norm)

    def forward(self, points: Tensor) -> Tensor:
        features = self.first(points.mT)
        for stage in self.stages:
            points, features = stage(points, features)
        return self.head(features.amax(2))
