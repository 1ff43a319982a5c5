"""Networks of the tables that a training configuration cannot describe."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar import Hierarchy, PointCloud
from pointvar.models import PlainNet, PointConvNet
from pointvar.nn import global_mean, linear
from pointvar.train import Config, Data


class _OneLevel(nn.Module):
    """A classifier on one level of points, of the first of a configuration's radii and channels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.radius, self.channels = (config.model.radii or [])[0], (config.model.channels or [])[0]
        self.max_neighbors = config.model.max_neighbors

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        """One Poisson disk level and its neighbourhood."""
        levels = Hierarchy(cloud, [self.radius], 3.0, self.max_neighbors, generator)
        levels.within(0)
        return levels


class PlainClassifier(_OneLevel):
    """A plain network of any depth, the mean over each cloud, and a linear layer: no pooling, no skips."""

    def __init__(self, config: Config, data: Data, depth: int, generator: torch.Generator) -> None:
        super().__init__(config)
        self.features = PlainNet(
            depth,
            self.channels,
            data.num_features,
            radius=3 * self.radius,
            generator=generator,
            **_chosen(config),
        )
        self.head = linear(self.channels, len(data.classes), generator)

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        hood = levels.within(0)
        features = self.features(features[levels.kept[0]], hood)
        return self.head(global_mean(functional.leaky_relu(features, 0.2), hood.queries))


class DenseClassifier(nn.Module):
    """A network of dense points ``[B, N, 3]``, as ``fit`` takes networks."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        """Only its input counts: the network makes levels itself."""
        return Hierarchy(cloud, [1.0], generator=generator)

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        return self.network(dense(levels.input))


def dense(cloud: PointCloud) -> Tensor:
    """The points as ``[B, N, 3]``, where all clouds have as many."""
    lengths = sorted(set(cloud.lengths.tolist()))
    if len(lengths) > 1:
        raise ValueError(f"dense networks need clouds of one size, got {', '.join(map(str, lengths))}")
    return cloud.points.view(cloud.num_clouds, -1, cloud.dim)


class GeometricClassifier(_OneLevel):
    """Layers of PyTorch Geometric one after the other on the coordinates, ReLU, the mean, a linear layer."""

    def __init__(
        self, config: Config, data: Data, layer: str, depth: int, generator: torch.Generator
    ) -> None:
        super().__init__(config)
        # The layers draw from torch's global generator; ``fit`` puts it back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator.initial_seed())
            sizes = [3] + [self.channels] * depth
            self.layers = nn.ModuleList(_geometric(layer, a, b) for a, b in pairwise(sizes))
            self.head = nn.Linear(self.channels, len(data.classes))

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        hood = levels.within(0)
        features = levels.clouds[0].points
        for layer in self.layers:
            features = layer(features, hood.edge_index).relu()
        return self.head(global_mean(features, hood.queries))


def _geometric(layer: str, incoming: int, outgoing: int) -> nn.Module:
    """A layer of PyTorch Geometric."""
    try:
        from torch_geometric import nn as geometric
    except ImportError as error:
        raise ImportError("this table needs PyTorch Geometric: pip install torch-geometric") from error
    if layer == "EdgeConv":
        return geometric.EdgeConv(nn.Linear(2 * incoming, outgoing))
    return getattr(geometric, layer)(incoming, outgoing)


GEOMETRIC = ("GraphConv", "SAGEConv", "GCNConv", "TAGConv", "EdgeConv")

SMALL: dict[str, Any] = {
    "counts": (512, 128, 32),
    "encoder": ((16, 16, 32), (32, 32, 64), (64, 64, 128)),
    "decoder": ((128, 128), (64, 64), (64, 32)),
    "head": 32,
    "neighbors": 16,
}
"""PointConv's network, a quarter of the features and three levels."""


def pointconv_net(config: Config, data: Data, generator: torch.Generator, preset: str) -> PointConvNet:
    """PointConv's network for segmentation, as published or small."""
    options: dict[str, Any] = {}
    if preset == "laptop":
        # The nominal receptive field of 16 neighbours at points that are as far apart as the U-Net's levels.
        options = {**SMALL, "radii": [2 * radius for radius in config.model.radii or ()]}
    return PointConvNet(
        data.num_features, len(data.classes), generator=generator, **_chosen(config), **options
    )


def _chosen(config: Config) -> dict[str, Any]:
    """What cells vary of a network."""
    names = ("method", "norm", "unit_response", "precondition")
    return {name: getattr(config.model, name) for name in names}
