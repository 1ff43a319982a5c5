"""DGCNN."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from experiments.architectures.parts import LeakyReLU, Norm, batch_norm, gather, head, layer, nearest


class EdgeConv(nn.Module):
    """The maximum over the neighbours j in feature space of a layer on (x_i, x_j - x_i)."""

    def __init__(self, incoming: int, outgoing: int, neighbors: int, norm: Norm) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.layer = layer(2 * incoming, outgoing, 2, norm, LeakyReLU)

    def forward(self, features: Tensor) -> Tensor:
        near = gather(features, nearest(features.mT, features.mT, self.neighbors))
        own = features[..., None].expand_as(near)
        return self.layer(torch.cat([own, near - own], 1)).amax(3)


class DGCNN(nn.Module):
    """Wang et al. 2019, "Dynamic graph CNN for learning on point clouds", https://arxiv.org/abs/1801.07829

    Four EdgeConv (w, w, 2w, 4w) each on its own graph of nearest neighbours, all of them into one layer of
    16w, maximum and mean, MLP (8w, 4w), scores; as published, w = 64, with 20 neighbours.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 16, neighbors: int = 12) -> None:
        super().__init__()
        sizes = [3, width, width, 2 * width, 4 * width]
        self.edges = nn.ModuleList(EdgeConv(a, b, neighbors, norm) for a, b in pairwise(sizes))
        self.together = layer(sum(sizes[1:]), 16 * width, 1, norm, LeakyReLU)
        self.head = head([32 * width, 8 * width, 4 * width], classes, norm, activation=LeakyReLU)

    def forward(self, points: Tensor) -> Tensor:
        features, every = points.mT, []
        for edges in self.edges:
            features = edges(features)
            every.append(features)
        features = self.together(torch.cat(every, 1))
        return self.head(torch.cat([features.amax(2), features.mean(2)], 1))
