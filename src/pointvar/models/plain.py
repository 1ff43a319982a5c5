"""A plain network of any depth."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from pointvar.geometry import Neighborhood
from pointvar.models.convolutions import Convolutions, Method
from pointvar.models.network import Network
from pointvar.nn import ConvolutionBlock, NormActivation
from pointvar.nn.norm import Norm


class PlainNet(Network):
    r"""Convolutions on one neighbourhood, one after the other, without pooling or skips.

    .. math:: F_1 = \mathrm{conv}_1(F_0), \qquad F_l = \mathrm{conv}_l(\mathrm{act}(\mathrm{norm}(F_{l - 1})))

    The network in which variance is followed over depth, and on which tables for transfer are made (the paper
    has 25 layers). Nothing stands behind the last convolution.

    Args:
        depth: number of convolutions.
        channels: of all layers between the first and the last.
        in_channels, out_channels: of the network; default: ``channels``.
        activation: a module; default: leaky ReLU of slope 0.2.
        norm: before each activation, see ``pointvar.nn.make_norm``.
        bias: of the convolutions.
        dropout: before each convolution but the first.
        radius: nominal receptive field, for methods that want to know it (PointConv).
        method, unit_response, precondition, orthonormal, dim, num_basis, generator: as in ``Classifier``.

    Shapes:
        - features: ``[N, in_channels]``; result: ``[N, out_channels]``
    """

    def __init__(
        self,
        depth: int,
        channels: int = 64,
        in_channels: int | None = None,
        out_channels: int | None = None,
        method: Method = "MCConv",
        activation: nn.Module | None = None,
        norm: Norm = "none",
        unit_response: bool = True,
        *,
        precondition: bool = True,
        orthonormal: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
        radius: float | None = None,
        dim: int = 3,
        num_basis: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"a network needs at least one convolution, got depth={depth}")
        make = Convolutions(method, dim, num_basis, unit_response, orthonormal, norm, generator, precondition)
        sizes = [channels] * (depth + 1)
        sizes[0] = channels if in_channels is None else in_channels
        sizes[-1] = channels if out_channels is None else out_channels
        self.blocks = nn.ModuleList()
        for layer, (before, after) in enumerate(pairwise(sizes)):
            activate = NormActivation(before, norm, activation, dropout) if layer else None
            self.blocks.append(ConvolutionBlock(activate, make(before, after, radius, bias)))

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        for block in self.blocks:
            features = block(features, hood)
        return features
