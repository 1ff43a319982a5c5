"""PointNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.architectures.parts import Norm, batch_norm, head, layer, mlp


class TNet(nn.Module):
    """A matrix for each cloud, at first the identity: an MLP on points, the maximum, an MLP on rows."""

    def __init__(self, size: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.points = mlp([size, width, 2 * width, 16 * width], 1, norm)
        self.rows = mlp([16 * width, 8 * width, 4 * width], 0, norm)
        self.matrix = nn.Linear(4 * width, size * size)
        nn.init.zeros_(self.matrix.weight)
        nn.init.zeros_(self.matrix.bias)
        self.size = size

    def forward(self, features: Tensor) -> Tensor:
        found = self.matrix(self.rows(self.points(features).amax(2)))
        return torch.eye(self.size, device=found.device) + found.view(-1, self.size, self.size)


class PointNet(nn.Module):
    """Qi et al. 2017, "PointNet: deep learning on point sets for 3D classification and segmentation",
    https://arxiv.org/abs/1612.00593

    T-Net on coordinates, MLP (w, w), T-Net on features, MLP (w, 2w, 16w), maximum, MLP (8w, 4w), scores; as
    published, w = 64. Its loss has a term that keeps the second matrix orthogonal; here it has none.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 24) -> None:
        super().__init__()
        self.input_transform = TNet(3, width, norm)
        self.first = mlp([3, width, width], 1, norm)
        self.feature_transform = TNet(width, width, norm)
        self.second = mlp([width, width, 2 * width, 16 * width], 1, norm)
        self.rows = layer(16 * width, 8 * width, 0, norm)
        self.head = head([8 * width, 4 * width], classes, norm, dropout=0.3)

    def forward(self, points: Tensor) -> Tensor:
        features = points.mT
        features = self.first(self.input_transform(features).mT @ features)
        features = self.second(self.feature_transform(features).mT @ features)
        return self.head(self.rows(features.amax(2)))
