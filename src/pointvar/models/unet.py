"""The paper's U-Net for segmentation: 19 convolutions on four levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy, Neighborhood
from pointvar.models.convolutions import Convolutions, Method
from pointvar.models.network import Network, check_levels
from pointvar.nn import ConvolutionBlock, LinearBlock, NormActivation, at_kept, linear
from pointvar.nn.norm import Norm


class SegmentationUNet(Network):
    r"""One prediction for each query point, from a context that may be larger than the queries' own place.

    A convolution takes the input to level 0. Each level of the encoder starts from the features at its kept
    points and has a linear layer and two convolutions. Each level of the decoder starts with a convolution
    from the coarser level, has the encoder's features concatenated, then a linear layer and two convolutions.
    A last convolution takes level 0 to the queries. With four levels these are 19 convolutions. Before each
    layer but the first stand norm (or a learned bias), leaky ReLU and dropout.

    The sizes are the paper's for ScanNet.

    Args:
        reach: receptive field in units of the level's radius; between levels the finer one decides.
        dropout: before each layer but the first.
        bias: where there is no norm, a learned bias stands in its place.
        first_reach: of the convolution from the input to level 0; default: ``reach``.
        bandwidth: of the densities, in units of the radius of the level they are of.
        recompute: keeps only what stands between the levels for the backward pass and computes the rest
            again, for clouds that would not fit into memory otherwise.
        checkpoint: an older name of ``recompute``.

    The others: as in ``Classifier``.

    Shapes (N input points, M queries; by default the queries are the input points):
        - features: ``[N, in_channels]``; result: ``[M, num_classes]``
    """

    task = "segmentation"

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        method: Method = "MCConv",
        channels: Sequence[int] = (64, 128, 256, 512),
        radii: Sequence[float] = (0.03, 0.06, 0.12, 0.24),
        reach: float = 3.0,
        max_neighbors: int | None = 16,
        norm: Norm = "none",
        dropout: float = 0.2,
        slope: float = 0.2,
        unit_response: bool = True,
        *,
        precondition: bool = True,
        orthonormal: bool = False,
        bias: bool = True,
        first_reach: float | None = None,
        bandwidth: float | None = 0.5,
        recompute: bool = False,
        checkpoint: bool | None = None,
        dim: int = 3,
        num_basis: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not channels or len(channels) != len(radii):
            raise ValueError(f"channels and radii need one entry per level, got {channels} and {radii}")
        self.radii, self.reach, self.max_neighbors = tuple(radii), reach, max_neighbors
        self.first_reach = reach if first_reach is None else first_reach
        self.bandwidth, self.recompute = bandwidth, recompute or bool(checkpoint)
        make = Convolutions(method, dim, num_basis, unit_response, orthonormal, norm, generator, precondition)

        def convolution(size: int, width: int, level: int, bias_after: bool = False) -> ConvolutionBlock:
            return ConvolutionBlock(before(size), make(size, width, reach * radii[level], bias_after))

        def before(size: int) -> NormActivation:
            return NormActivation(size, norm, nn.LeakyReLU(slope), dropout, bias)

        def stage(size: int, level: int) -> _Stage:
            width = channels[level]
            mix = LinearBlock(before(size), linear(size, width, generator))
            return _Stage(mix, convolution(width, width, level), convolution(width, width, level))

        self.entry = ConvolutionBlock(None, make(in_channels, channels[0], self.first_reach * radii[0]))
        sizes = [channels[0], *channels[:-1]]
        self.encoder = nn.ModuleList([stage(size, level) for level, size in enumerate(sizes)])
        self.decoder = nn.ModuleList()
        for level in reversed(range(len(channels) - 1)):
            rise = convolution(channels[level + 1], channels[level], level)
            self.decoder.append(_Rise(rise, stage(2 * channels[level], level)))
        self.exit = convolution(channels[0], num_classes, 0, bias_after=True)

    def hierarchy(
        self, cloud: PointCloud, queries: PointCloud | None = None, generator: torch.Generator | None = None
    ) -> Hierarchy:
        """The levels that ``forward`` takes, with their neighbourhoods made; for data-loader workers, too.

        Args:
            cloud: the input points, the context.
            queries: where predictions are wanted; default: at the input points.
            generator: source of all randomness; default: torch's global generator.
        """
        ball = self.radii, self.reach, self.max_neighbors
        hoods = [
            (Hierarchy.INPUT, 0, self.first_reach),
            *((level, level, None) for level in range(len(self.radii))),
            *((level, level - 1, None) for level in range(1, len(self.radii))),
            (0, Hierarchy.QUERIES, None),
        ]
        needs = self.entry.convolution.estimator.needs
        return Hierarchy(
            cloud, *ball, generator, bandwidth=self.bandwidth, queries=queries, hoods=hoods, needs=needs
        )

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        check_levels(levels, len(self.radii))
        features = self.entry(features, levels.down(-1, self.first_reach))
        skips: list[Tensor] = []
        for level, stage in enumerate(self.encoder):
            if level:
                features = at_kept(features, levels, level)
            features = self._run(stage, features, levels.within(level))
            skips.append(features)
        for rise in self.decoder:
            skips.pop()
            level = len(skips)
            features = self._run(rise, features, levels.up(level), skips[-1], levels.within(level - 1))
        return self.exit(features, levels.out())

    def _run(self, stage: nn.Module, *inputs: Tensor | Neighborhood) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return stage(*inputs)
        return recomputed(
            stage, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _statistics_stay(stage))
        )


class _Stage(nn.Module):
    """A linear layer and two convolutions within a level."""

    def __init__(self, mix: LinearBlock, first: ConvolutionBlock, second: ConvolutionBlock) -> None:
        super().__init__()
        self.mix, self.first, self.second = mix, first, second

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        return self.second(self.first(self.mix(features, hood.support), hood), hood)


class _Rise(nn.Module):
    """A convolution to a finer level, the encoder's features beside its result, and the stage there."""

    def __init__(self, rise: ConvolutionBlock, stage: _Stage) -> None:
        super().__init__()
        self.rise, self.stage = rise, stage

    def forward(self, features: Tensor, up: Neighborhood, skip: Tensor, within: Neighborhood) -> Tensor:
        return self.stage(torch.cat([self.rise(features, up), skip], 1), within)


@contextmanager
def _statistics_stay(module: nn.Module) -> Iterator[None]:
    """Batch norms do not count a batch that they see again."""
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
