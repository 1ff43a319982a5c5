"""What the public networks are made of: layers with a norm of any kind, and groups of near points.

Features stand channels first, as in the networks as published: ``[B, C]``, ``[B, C, N]`` of points and
``[B, C, N, K]`` of neighbours. Points are dense: every cloud of a batch has as many, ``[B, N, 3]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from pointvar import PointCloud, farthest_points

Norm = Callable[[int, int], nn.Module]
"""Makes the norm of so many channels in front of so many dimensions: 0 of a row, 1 of points, 2 of
neighbours. All norms of a network are made by the one that its constructor is given."""
Activation = Callable[[], nn.Module]
LeakyReLU = partial(nn.LeakyReLU, 0.2)


class DynamicTanh(nn.Module):
    r"""In the place of a norm: :math:`\gamma \tanh(\alpha x) + \beta`, with one :math:`\alpha` per layer.

    Zhu et al. 2025, "Transformers without normalization", https://arxiv.org/abs/2503.10622
    """

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        shape = (channels, *[1] * dims)
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.gain, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, features: Tensor) -> Tensor:
        return self.gain * (self.alpha * features).tanh() + self.bias


def batch_norm(channels: int, dims: int) -> nn.Module:
    """Over all clouds, points and neighbours of a batch."""
    return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm1d(channels)


def group_norm(channels: int, dims: int) -> nn.Module:
    """Over the points of one cloud and the channels of one of at most 32 groups, of two channels or more; of
    eight in a row, where two would be normalised to +1 and -1 whatever they were."""
    most = channels // (2 if dims else 8)
    return nn.GroupNorm(max(g for g in range(1, 33) if g <= max(most, 1) and channels % g == 0), channels)


def no_norm(channels: int, dims: int) -> nn.Module:
    """Features as they are; the layer before has a bias of its own in any case."""
    return nn.Identity()


NORMS: dict[str, Norm] = {"BN": batch_norm, "GN": group_norm, "DyT": DynamicTanh, "none": no_norm}


def linear(incoming: int, outgoing: int, dims: int) -> nn.Module:
    """The same linear map with a bias for every row, point or neighbour."""
    if dims == 0:
        return nn.Linear(incoming, outgoing)
    return (nn.Conv1d, nn.Conv2d)[dims - 1](incoming, outgoing, 1)


def layer(
    incoming: int, outgoing: int, dims: int, norm: Norm, activation: Activation = nn.ReLU
) -> nn.Sequential:
    """Linear, norm, activation."""
    return nn.Sequential(linear(incoming, outgoing, dims), norm(outgoing, dims), activation())


def mlp(sizes: list[int], dims: int, norm: Norm) -> nn.Sequential:
    """Layers of these sizes one after the other."""
    return nn.Sequential(*(layer(a, b, dims, norm) for a, b in pairwise(sizes)))


def head(
    sizes: list[int], classes: int, norm: Norm, activation: Activation = nn.ReLU, dropout: float = 0.5
) -> nn.Sequential:
    """From the features of a cloud to scores: layers with dropout behind each, and a linear one."""
    hidden = [(layer(a, b, 0, norm, activation), nn.Dropout(dropout)) for a, b in pairwise(sizes)]
    return nn.Sequential(*chain(*hidden), nn.Linear(sizes[-1], classes))


@torch.no_grad()
def spread(points: Tensor, among: int) -> Tensor:
    """Farthest points, one among so many, ``[B, N / among]`` indices. The first is the one farthest from the
    mean, so that the order of the points does not matter."""
    clouds, size, _ = points.shape
    count = max(1, size // among)
    start = (points - points.mean(1, keepdim=True)).square().sum(-1).argmax(1)
    packed = PointCloud(points.reshape(-1, 3), [size] * clouds)
    chosen = farthest_points(packed, count=count, start=start).view(clouds, count)
    return chosen - size * torch.arange(clouds, device=points.device)[:, None]


@torch.no_grad()
def nearest(support: Tensor, queries: Tensor, count: int, radius: float | None = None) -> Tensor:
    """The nearest of ``support [B, N, D]`` to each of ``queries [B, M, D]``, ``[B, M, count]`` indices.

    With a radius, those farther away are replaced by the nearest one, as in a ball query with a cap.
    """
    found = torch.cdist(queries, support).topk(min(count, support.shape[1]), largest=False)
    indices = found.indices
    if radius is not None:
        indices = torch.where(found.values <= radius, indices, indices[..., :1])
    return indices


def gather(features: Tensor, indices: Tensor) -> Tensor:
    """``[B, C, N]`` at ``[B, ...]`` indices: ``[B, C, ...]``."""
    flat = indices.flatten(1)[:, None].expand(-1, features.shape[1], -1)
    return features.gather(2, flat).view(*features.shape[:2], *indices.shape[1:])


def gather_points(points: Tensor, indices: Tensor) -> Tensor:
    """``[B, N, 3]`` at ``[B, M]`` indices: ``[B, M, 3]``."""
    return points.gather(1, indices[..., None].expand(-1, -1, 3))


def offsets(support: Tensor, queries: Tensor, indices: Tensor) -> Tensor:
    """From each query to its neighbours, ``[B, 3, M, K]``."""
    return gather(support.mT, indices) - queries.mT[..., None]
