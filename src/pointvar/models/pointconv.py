"""PointConv's own networks: farthest points, k nearest neighbours, linear layers between convolutions.

Wu, Qi, Li 2019, "PointConv: Deep convolutional networks on 3D point clouds", https://arxiv.org/abs/1811.07246
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy, Neighborhood
from pointvar.models.convolutions import Convolutions, Method
from pointvar.models.network import Network, check_levels
from pointvar.nn import ConvolutionBlock, LinearBlock, NormActivation, global_mean, interpolate, linear
from pointvar.nn.norm import Norm, for_rows


class PointConvNet(Network):
    r"""One prediction for each point, by PointConv's network for ScanNet.

    Each level of the encoder has linear layers at the finer points, then a convolution to the coarser ones.
    Each level of the decoder interpolates from the coarser to the finer points, has a convolution there, the
    encoder's features concatenated, then linear layers. Norm and ReLU follow
    each layer but the last.

    Args:
        counts: points of each level, an integer, or a share of the level before.
        encoder: channels of each level: of its linear layers and, last, of its convolution.
        decoder: the same from the coarsest step on: first the convolution, then the linear layers.
        head: hidden units of the last linear layers.
        neighbors: k in the encoder.
        decoder_neighbors: k in the decoder.
        radii: nominal receptive field of each level, for methods that want to know it (PointConv).
        norm: the original has ``"batch"``.
        head_dropout: before the last layer.
        slope: of the leaky ReLU; 0 makes it a ReLU.
        bias: where there is no norm, a learned bias stands in its place.

    The others: as in ``Classifier``.

    Shapes:
        - features: ``[N, in_channels]``; result: ``[N, num_classes]``
    """

    task = "segmentation"

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        method: Method = "PointConv",
        counts: Sequence[int | float] = (1024, 256, 64, 36),
        encoder: Sequence[Sequence[int]] = ((32, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512)),
        decoder: Sequence[Sequence[int]] = ((512, 512), (256, 256), (256, 128), (128, 128, 128)),
        head: int = 128,
        neighbors: int = 32,
        decoder_neighbors: int = 16,
        radii: Sequence[float] = (0.1, 0.2, 0.4, 0.8),
        norm: Norm = "none",
        head_dropout: float = 0.5,
        slope: float = 0.0,
        unit_response: bool = True,
        *,
        precondition: bool = True,
        orthonormal: bool = False,
        bias: bool = True,
        dim: int = 3,
        num_basis: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not encoder or not len(counts) == len(encoder) == len(decoder) == len(radii):
            raise ValueError(
                "counts, encoder, decoder and radii need one entry per level, got "
                f"{len(counts)}, {len(encoder)}, {len(decoder)} and {len(radii)}"
            )
        self.counts, self.radii = tuple(counts), tuple(radii)
        self.neighbors, self.decoder_neighbors = neighbors, decoder_neighbors
        if any(len(widths) < 2 for widths in decoder):
            raise ValueError(f"a level of the decoder is a convolution and linear layers, got {decoder}")
        make = Convolutions(method, dim, num_basis, unit_response, orthonormal, norm, generator, precondition)
        build = _Builder(make, norm, slope, bias)
        self.encoder = build.encoder(in_channels, encoder, radii)
        self.decoder = nn.ModuleList()
        size, *skips = [in_channels, *(widths[-1] for widths in encoder)][::-1]
        for widths, skip, radius in zip(decoder, skips, reversed(radii), strict=True):
            self.decoder.append(_Decode(build, size, skip, widths, radius))
            size = widths[-1]
        self.hidden = build.linear(size, head, head_dropout)
        self.last = linear(head, num_classes, generator)

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        """As in ``Classifier``; nothing in these levels is random, and no generator needed."""
        levels = Hierarchy(cloud, self.radii, generator=generator, farthest=self.counts)
        for level in range(len(levels)):
            levels.down(level - 1, nearest=self.neighbors)
            levels.up(level, nearest=3)
            levels.within(level - 1, nearest=self.decoder_neighbors)
        return levels

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        check_levels(levels, len(self.radii))
        skips = []
        for level, encode in enumerate(self.encoder):
            skips.append(features)
            features = encode(features, levels.down(level - 1, nearest=self.neighbors))
        for decode in self.decoder:
            level = len(skips) - 1
            features = interpolate(features, levels.up(level, nearest=3))
            hood = levels.within(level - 1, nearest=self.decoder_neighbors)
            features = decode(features, hood, skips.pop())
        return self.last(self.hidden(features, levels.input))


class PointConvClassifier(Network):
    r"""One prediction for each cloud, by PointConv's network for ModelNet40.

    Each level has linear layers at the finer points, then a convolution to the coarser ones; the last
    convolution sees all points from the centre of their cloud. Then a head of three linear layers. Norm and
    ReLU follow each layer but the last.

    Args:
        counts: points of each level but the last, which is one point.
        neighbors: k for each of these levels.
        head: hidden units of the head.
        head_dropout: before each layer of the head but the first.
        head_norm: norm in the head, where each cloud is one row; default: ``norm``.

    The others, and the shapes: as in ``PointConvNet`` and ``Classifier``.
    """

    task = "classification"

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        method: Method = "PointConv",
        counts: Sequence[int | float] = (512, 128),
        encoder: Sequence[Sequence[int]] = ((64, 64, 128), (128, 128, 256), (256, 512, 1024)),
        head: Sequence[int] = (512, 256),
        neighbors: Sequence[int] = (32, 64),
        radii: Sequence[float] = (0.2, 0.4, 1.0),
        norm: Norm = "none",
        head_norm: Norm | None = None,
        head_dropout: float = 0.4,
        slope: float = 0.0,
        unit_response: bool = True,
        *,
        precondition: bool = True,
        orthonormal: bool = False,
        bias: bool = True,
        dim: int = 3,
        num_basis: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not counts or not len(counts) + 1 == len(neighbors) + 1 == len(encoder) == len(radii):
            raise ValueError(
                "encoder and radii need one entry per level, counts and neighbors one less, got "
                f"{len(encoder)}, {len(radii)}, {len(counts)} and {len(neighbors)}"
            )
        self.counts, self.radii, self.neighbors = tuple(counts), tuple(radii), tuple(neighbors)
        make = Convolutions(method, dim, num_basis, unit_response, orthonormal, norm, generator, precondition)
        build = _Builder(make, norm, slope, bias)
        self.encoder = build.encoder(in_channels, encoder, radii)
        build = _Builder(make, for_rows(norm if head_norm is None else head_norm), slope, bias)
        sizes = [encoder[-1][-1], *head]
        hidden = [build.linear(*pair, head_dropout) for pair in pairwise(sizes)]
        self.head = nn.Sequential(*hidden, linear(sizes[-1], num_classes, generator))

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        """As in ``Classifier``; nothing in these levels is random, and no generator needed."""
        levels = Hierarchy(cloud, self.radii[:-1], generator=generator, farthest=self.counts)
        for level, k in enumerate(self.neighbors):
            levels.down(level - 1, nearest=k)
        return levels

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        check_levels(levels, len(self.neighbors))
        for level, k in enumerate(self.neighbors):
            features = self.encoder[level](features, levels.down(level - 1, nearest=k))
        hood = from_centre(levels.clouds[-1])
        features = self.encoder[-1](features, hood)
        return self.head(global_mean(features, hood.queries))  # zeros where a cloud is empty


def from_centre(cloud: PointCloud) -> Neighborhood:
    """All points of each cloud, seen from their mean; an empty cloud has no centre."""

    def make() -> Neighborhood:
        lengths = (cloud.lengths > 0).long()
        centres = PointCloud(global_mean(cloud.points, cloud)[lengths > 0], lengths)
        targets = (lengths.cumsum(0) - 1)[cloud.batch]
        sources = torch.arange(cloud.num_points, device=cloud.device)
        return Neighborhood.from_edge_index(torch.stack([sources, targets]), cloud, centres)

    return cloud.derived("from centre", make)


@dataclass
class _Builder:
    """Makes the parts of both networks."""

    make: Convolutions
    norm: Norm
    slope: float
    bias: bool

    def after(self, size: int, dropout: float = 0.0) -> NormActivation:
        return NormActivation(size, self.norm, nn.LeakyReLU(self.slope), dropout, self.bias)

    def linear(self, size: int, width: int, dropout: float = 0.0) -> LinearBlock:
        return LinearBlock(None, linear(size, width, self.make.generator), self.after(width, dropout))

    def convolution(self, size: int, width: int, radius: float) -> ConvolutionBlock:
        return ConvolutionBlock(None, self.make(size, width, radius), self.after(width))

    def encoder(self, size: int, levels: Sequence[Sequence[int]], radii: Sequence[float]) -> nn.ModuleList:
        sizes = [size, *(widths[-1] for widths in levels[:-1])]
        parts = zip(sizes, levels, radii, strict=True)
        return nn.ModuleList([_Encode(self, *part) for part in parts])


class _Encode(nn.Module):
    """Linear layers at the support, then a convolution to the queries."""

    def __init__(self, build: _Builder, size: int, widths: Sequence[int], radius: float) -> None:
        super().__init__()
        sizes = [size, *widths]
        self.linears = nn.ModuleList([build.linear(*pair) for pair in pairwise(sizes[:-1])])
        self.convolution = build.convolution(sizes[-2], sizes[-1], radius)

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        for block in self.linears:
            features = block(features, hood.support)
        return self.convolution(features, hood)


class _Decode(nn.Module):
    """A convolution, other features beside its result, then linear layers."""

    def __init__(self, build: _Builder, size: int, skip: int, widths: Sequence[int], radius: float) -> None:
        super().__init__()
        self.convolution = build.convolution(size, widths[0], radius)
        sizes = [widths[0] + skip, *widths[1:]]
        self.linears = nn.ModuleList([build.linear(*pair) for pair in pairwise(sizes)])

    def forward(self, features: Tensor, hood: Neighborhood, skip: Tensor) -> Tensor:
        features = torch.cat([self.convolution(features, hood), skip], 1)
        for block in self.linears:
            features = block(features, hood.queries)
        return features
