"""Networks of the tables that a training configuration cannot describe."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy
from pointvar.models import PlainNet, PointConvNet
from pointvar.nn import global_mean, linear
from pointvar.train import Config, Data


class _OneLevel(nn.Module):
    """A classifier on one level of points."""

    def __init__(self, radius: float, reach: float, max_neighbors: int | None) -> None:
        super().__init__()
        self.radius, self.reach, self.max_neighbors = radius, reach, max_neighbors

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        """One Poisson disk level and its neighbourhood."""
        levels = Hierarchy(cloud, [self.radius], self.reach, self.max_neighbors, generator)
        levels.within(0)
        return levels


class PlainClassifier(_OneLevel):
    """A plain network of any depth, the mean over each cloud, and a linear layer: no pooling, no skips."""

    def __init__(
        self, depth: int, channels: int, radius: float, config: Config, data: Data, generator: torch.Generator
    ) -> None:
        super().__init__(radius, 3.0, config.model.max_neighbors)
        self.features = PlainNet(
            depth,
            channels,
            data.num_features,
            method=config.model.method,
            norm=config.model.norm,
            unit_response=config.model.unit_response,
            orthonormal=config.model.orthonormal,
            radius=3 * radius,
            generator=generator,
        )
        self.head = linear(channels, len(data.classes), generator)

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        hood = levels.within(0)
        features = self.features(features[levels.kept[0]], hood)
        return self.head(global_mean(functional.leaky_relu(features, 0.2), hood.queries))


class GeometricClassifier(_OneLevel):
    """Layers of PyTorch Geometric one after the other on the coordinates, ReLU, the mean, a linear layer."""

    def __init__(
        self,
        layer: str,
        depth: int,
        channels: int,
        radius: float,
        config: Config,
        data: Data,
        generator: torch.Generator,
    ) -> None:
        super().__init__(radius, 3.0, config.model.max_neighbors)
        # The layers draw from torch's global generator; ``fit`` puts it back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator.initial_seed())
            sizes = [3] + [channels] * depth
            make = _geometric()[layer]
            self.layers = nn.ModuleList(make(a, b) for a, b in pairwise(sizes))
            self.norms = nn.ModuleList(
                nn.BatchNorm1d(channels) if config.model.norm == "batch" else nn.Identity()
                for _ in self.layers
            )
            self.head = nn.Linear(channels, len(data.classes))

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        hood = levels.within(0)
        features = levels.clouds[0].points
        for layer, norm in zip(self.layers, self.norms, strict=True):
            features = norm(layer(features, hood.edge_index)).relu()
        return self.head(global_mean(features, hood.queries))


def _geometric() -> dict[str, Callable[[int, int], nn.Module]]:
    """Layers of PyTorch Geometric, by name."""
    try:
        from torch_geometric import nn as geometric
    except ImportError as error:
        raise ImportError("this table needs PyTorch Geometric: pip install torch-geometric") from error
    return {
        "GraphConv": lambda a, b: geometric.GraphConv(a, b),
        "SAGEConv": lambda a, b: geometric.SAGEConv(a, b),
        "GCNConv": lambda a, b: geometric.GCNConv(a, b),
        "TAGConv": lambda a, b: geometric.TAGConv(a, b),
        "EdgeConv": lambda a, b: geometric.EdgeConv(nn.Linear(2 * a, b)),
    }


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
        data.num_features,
        len(data.classes),
        config.model.method,
        norm=config.model.norm,
        unit_response=config.model.unit_response,
        orthonormal=config.model.orthonormal,
        generator=generator,
        **options,
    )
