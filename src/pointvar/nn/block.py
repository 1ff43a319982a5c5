"""A norm, an activation and dropout, then a layer: the unit that the networks are made of."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from pointvar.cloud import PointCloud
from pointvar.convolution import PointConvolution
from pointvar.geometry import Neighborhood
from pointvar.nn.norm import Norm, make_norm


class NormActivation(nn.Module):
    """A norm, an activation, dropout: what stands before a layer.

    Args:
        channels: C
        norm, bias, momentum: as in ``make_norm``.
        activation: a module, copied; default: leaky ReLU of slope 0.2.
        dropout: share of values set to 0 in training.

    Shapes:
        - features: ``[N, C]`` at the points of ``cloud``; result: ``[N, C]``
    """

    def __init__(
        self,
        channels: int,
        norm: Norm = "none",
        activation: nn.Module | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, channels, bias, momentum)
        self.activation = nn.LeakyReLU(0.2) if activation is None else copy.deepcopy(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        return self.dropout(self.activation(self.norm(features, cloud)))


class ConvolutionBlock(nn.Module):
    """A convolution, with what stands before and after it: ``block(features, hood)``."""

    def __init__(
        self,
        before: NormActivation | None,
        convolution: PointConvolution,
        after: NormActivation | None = None,
    ) -> None:
        super().__init__()
        self.before, self.convolution, self.after = before, convolution, after

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        if self.before is not None:
            features = self.before(features, hood.support)
        features = self.convolution(features, hood)
        return features if self.after is None else self.after(features, hood.queries)


class LinearBlock(nn.Module):
    """A linear layer, with what stands before and after it: ``block(features, cloud)``."""

    def __init__(
        self, before: NormActivation | None, linear: nn.Linear, after: NormActivation | None = None
    ) -> None:
        super().__init__()
        self.before, self.linear, self.after = before, linear, after

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        if self.before is not None:
            features = self.before(features, cloud)
        features = self.linear(features)
        return features if self.after is None else self.after(features, cloud)


def linear(in_channels: int, out_channels: int, generator: torch.Generator | None = None) -> nn.Linear:
    """``nn.Linear`` with PyTorch's own initialisation, drawn from a generator."""
    layer = nn.Linear(in_channels, out_channels, device="meta")  # draws nothing
    layer.weight = nn.Parameter(torch.empty(out_channels, in_channels))
    layer.bias = nn.Parameter(torch.empty(out_channels))
    bound = in_channels**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
