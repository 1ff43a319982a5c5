"""RandLA-Net, as a classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.architectures.parts import LeakyReLU, Norm, batch_norm, gather, head, layer, nearest


def _relative(points: Tensor, near: Tensor) -> Tensor:
    """Of every neighbour: both places, the offset between them and its length, ``[B, 10, N, K]``."""
    others = gather(points.mT, near)
    own = points.mT[..., None].expand_as(others)
    offsets = own - others
    return torch.cat([own, others, offsets, offsets.norm(dim=1, keepdim=True)], 1)


class AttentivePool(nn.Module):
    """The sum over neighbours by weights that are a softmax of a linear layer, for each channel; a layer."""

    def __init__(self, incoming: int, outgoing: int, norm: Norm) -> None:
        super().__init__()
        self.scores = nn.Conv2d(incoming, incoming, 1, bias=False)
        self.layer = layer(incoming, outgoing, 1, norm, LeakyReLU)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer((self.scores(features).softmax(3) * features).sum(3))


class Block(nn.Module):
    """Twice local spatial encoding and attentive pooling, between two layers, beside a third one."""

    def __init__(self, incoming: int, channels: int, neighbors: int, norm: Norm) -> None:
        super().__init__()
        half, self.neighbors = channels // 2, neighbors
        self.first = layer(incoming, half, 1, norm, LeakyReLU)
        self.places = nn.ModuleList(layer(size, half, 2, norm, LeakyReLU) for size in (10, half))
        self.pools = nn.ModuleList(AttentivePool(channels, size, norm) for size in (half, channels))
        self.last = layer(channels, 2 * channels, 1, norm, nn.Identity)
        self.activation = LeakyReLU()
        self.shortcut = layer(incoming, 2 * channels, 1, norm, nn.Identity)

    def forward(self, points: Tensor, features: Tensor) -> Tensor:
        near = nearest(points, points, self.neighbors)
        encoded, inner = _relative(points, near), self.first(features)
        for place, pool in zip(self.places, self.pools, strict=True):
            encoded = place(encoded)
            inner = pool(torch.cat([gather(inner, near), encoded], 1))
        return self.activation(self.last(inner) + self.shortcut(features))


class RandLANet(nn.Module):
    """Hu et al. 2020, "RandLA-Net: efficient semantic segmentation of large-scale point clouds",
    https://arxiv.org/abs/1911.11236

    A layer of w, four residual blocks of 2w, 4w, 8w, 16w, random sampling of a quarter of the points between
    them; here, in the place of the decoder, maximum, MLP (8w), scores. As published, w = 8, the last three
    twice as wide, and 16 neighbours. The first points of a cloud are the random ones: those of a data set
    stand in random order.
    """

    def __init__(self, classes: int, norm: Norm = batch_norm, width: int = 8, neighbors: int = 12) -> None:
        super().__init__()
        self.first = layer(3, width, 1, norm, LeakyReLU)
        sizes = [width, *(4 * width << i for i in range(4))]
        self.blocks = nn.ModuleList(Block(sizes[i], 2 * width << i, neighbors, norm) for i in range(4))
        self.head = head([sizes[-1], 8 * width], classes, norm, activation=LeakyReLU)

    def forward(self, points: Tensor) -> Tensor:
        features = self.first(points.mT)
        for number, block in enumerate(self.blocks):
            count = max(1, points.shape[1] >> 2 * number)
            features = block(points[:, :count], features[..., :count])
        return self.head(features.amax(2))
