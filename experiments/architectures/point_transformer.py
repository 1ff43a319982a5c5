"""Point Transformer."""

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
    nearest,
    offsets,
    spread,
)


class VectorAttention(nn.Module):
    r"""A weight for each channel of each neighbour.

    .. math:: y_i = \sum_j \mathrm{softmax}_j\,\gamma(\varphi(x_i) - \psi(x_j) + \delta_{ij}) \odot
              (\alpha(x_j) + \delta_{ij}), \qquad \delta_{ij} = \theta(p_i - p_j)

    :math:`\gamma` and :math:`\theta` are MLPs of two layers, the others linear.
    """

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        self.query, self.key, self.value = (linear(channels, channels, 1) for _ in range(3))
        self.position = nn.Sequential(layer(3, channels, 2, norm), linear(channels, channels, 2))
        self.weight = nn.Sequential(layer(channels, channels, 2, norm), linear(channels, channels, 2))

    def forward(self, points: Tensor, features: Tensor, near: Tensor) -> Tensor:
        position = self.position(-offsets(points, points, near))
        difference = self.query(features)[..., None] - gather(self.key(features), near)
        weight = self.weight(difference + position).softmax(3)
        return (weight * (gather(self.value(features), near) + position)).sum(3)


class Block(nn.Module):
    """A layer, vector attention with norm and ReLU, a layer, all beside the identity, and a ReLU."""

    def __init__(self, channels: int, neighbors: int, norm: Norm) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.first = layer(channels, channels, 1, norm)
        self.attention = VectorAttention(channels, norm)
        self.between = nn.Sequential(norm(channels, 1), nn.ReLU())
        self.last = layer(channels, channels, 1, norm, nn.Identity)

    def forward(self, points: Tensor, features: Tensor) -> Tensor:
        near = nearest(points, points, self.neighbors)
        inner = self.between(self.attention(points, self.first(features), near))
        return functional.relu(features + self.last(inner))


class Down(nn.Module):
    """Half of the points, a layer on the offsets and features of their neighbours, the maximum."""

    def __init__(self, channels: int, neighbors: int, norm: Norm) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.layer = layer(channels + 3, 2 * channels, 2, norm)

    def forward(self, points: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        centers = gather_points(points, spread(points, 2))
        near = nearest(points, centers, self.neighbors)
        grouped = torch.cat([offsets(points, centers, near), gather(features, near)], 1)
        return centers, self.layer(grouped).amax(3)


class PointTransformer(nn.Module):
    """Zhao et al. 2021, "Point transformer", https://arxiv.org/abs/2012.09164

    A layer of w and a block, four times a transition to fewer points and a block of 2w to 16w, mean, MLP
    (8w, 4w), scores; as published, w = 32, with 16 neighbours, and a quarter of the points at each
    transition; here a half.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 8, neighbors: int = 8) -> None:
        super().__init__()
        self.first = layer(3, width, 1, norm)
        self.blocks = nn.ModuleList(Block(width << i, neighbors, norm) for i in range(5))
        self.downs = nn.ModuleList(Down(width << i, neighbors, norm) for i in range(4))
        self.head = head([16 * width, 8 * width, 4 * width], classes, norm)

    def forward(self, points: Tensor) -> Tensor:
        features = self.blocks[0](points, self.first(points.mT))
        for down, block in zip(self.downs, self.blocks[1:], strict=True):
            points, features = down(points, features)
            features = block(points, features)
        return self.head(features.mean(2))
