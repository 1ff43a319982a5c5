"""The paper's classifier: an encoder of Poisson disk levels, global mean, a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy
from pointvar.models.convolutions import Convolutions, Method
from pointvar.models.network import Network, check_levels
from pointvar.nn import ConvolutionBlock, LinearBlock, NormActivation, at_kept, global_mean, linear
from pointvar.nn.norm import Norm, for_rows


class Classifier(Network):
    r"""One prediction for each cloud, by levels of ever fewer points and two convolutions in each.

    Per level: the features at the kept points, then two convolutions with receptive field
    ``reach * radius``. Before each convolution but the first stand norm, leaky ReLU and dropout. At the end
    the mean over each cloud and, twice, norm, leaky ReLU, dropout and a linear layer.

    The sizes are the paper's for ScanObjectNN; ``preset`` has the others.

    Args:
        in_channels: of the input features.
        num_classes: outputs.
        method: see ``pointvar.models.Method``.
        channels: of the levels.
        head: hidden units of the head.
        radii: Poisson radius of each level.
        reach: receptive field in units of the level's radius.
        max_neighbors: random cap on the neighbours of a point; ``None``: no cap.
        norm: see ``pointvar.nn.make_norm``; batch norm has momentum 0.2.
        head_norm: norm in the head, where each cloud is one row; default: ``norm``.
        dropout: before each convolution but the first.
        head_dropout: before each linear layer of the head.
        slope: of the leaky ReLU.
        unit_response: of the convolutions; off in the paper.
        precondition: of the convolutions: their weights are learned in coordinates in which basis functions
            do not overlap; off in the paper.
        orthonormal: deprecated; makes the bases orthonormal, see ``pointvar.orthonormalise``.
        bias: where there is no norm, a learned bias stands in its place; off in the paper's classifier.
        dim: D
        num_basis: K; default: the method's own.
        generator: where the weights come from; default: torch's global generator.

    Shapes (N points in B clouds):
        - features: ``[N, in_channels]``; result: ``[B, num_classes]``
    """

    task = "classification"

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        method: Method = "MCConv",
        channels: Sequence[int] = (128, 256, 512),
        head: int = 512,
        radii: Sequence[float] = (0.1, 0.2, 0.4),
        reach: float = 3.0,
        max_neighbors: int | None = 16,
        norm: Norm = "none",
        head_norm: Norm | None = None,
        dropout: float = 0.2,
        head_dropout: float = 0.5,
        slope: float = 0.2,
        unit_response: bool = True,
        *,
        precondition: bool = True,
        orthonormal: bool = False,
        bias: bool = False,
        dim: int = 3,
        num_basis: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not channels or len(channels) != len(radii):
            raise ValueError(f"channels and radii need one entry per level, got {channels} and {radii}")
        self.radii, self.reach, self.max_neighbors = tuple(radii), reach, max_neighbors
        make = Convolutions(method, dim, num_basis, unit_response, orthonormal, norm, generator, precondition)
        head_norm = for_rows(norm if head_norm is None else head_norm)

        def before(size: int, norm: Norm, dropout: float) -> NormActivation:
            return NormActivation(size, norm, nn.LeakyReLU(slope), dropout, bias, momentum=0.2)

        self.blocks = nn.ModuleList()  # two per level
        size = in_channels
        for width, radius in zip(channels, radii, strict=True):
            for _ in range(2):
                activate = before(size, norm, dropout) if len(self.blocks) else None
                self.blocks.append(ConvolutionBlock(activate, make(size, width, reach * radius)))
                size = width
        self.head = nn.Sequential(
            LinearBlock(before(size, head_norm, head_dropout), linear(size, head, generator)),
            LinearBlock(before(head, head_norm, head_dropout), linear(head, num_classes, generator)),
        )

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        """The levels that ``forward`` takes, with their neighbourhoods made; for data-loader workers, too."""
        hoods = [(level, level, None) for level in range(len(self.radii))]
        first = cast(ConvolutionBlock, self.blocks[0]).convolution
        ball = self.radii, self.reach, self.max_neighbors
        return Hierarchy(cloud, *ball, generator, hoods=hoods, needs=first.estimator.needs)

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        check_levels(levels, len(self.radii))
        for level in range(len(levels)):
            features = at_kept(features, levels, level)
            for block in self.blocks[2 * level : 2 * level + 2]:
                features = block(features, levels.within(level))
        return self.head(global_mean(features, levels.clouds[-1]))
