"""The correlation of features by distance, in the smallest continuous convolution and in the discrete case.

Points are uniform on (0, 1), features N(0, 0.1); three boxes 0.05 apart, summed, 20 layers. The discrete case
has as many pixels and an image convolution of 3 taps. Features of pixels stay independent beyond the reach of
the kernel's own overlap; features of near points become alike, and more so with depth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from experiments.figures import PALETTE, canvas, save
from experiments.options import Options
from pointvar import PointCloud, PointConvolution, ball_query
from pointvar.basis import NearestPoint
from pointvar.estimator import Sum
from pointvar.init import variance_init

POINTS, CHANNELS, LAYERS, SPACING, BINS, REPEATS = 1000, 32, 20, 0.05, 40, 8
SHOWN = (0, 1, 5, 10, 20)


def run(options: Options) -> None:
    """Writes the correlogram of both cases, averaged over repeats."""
    numbers: dict[str, Any] = {"points": POINTS, "channels": CHANNELS, "repeats": REPEATS}
    figure, axes = canvas(8, 3.2, 1, 2, sharey=True)
    for panel, follow, style in zip(axes, (discrete, continuous), ("o-", "-"), strict=True):
        name = follow.__name__
        curves = torch.stack([follow(seed) for seed in range(REPEATS)]).mean(0)
        # Each bin by its middle; pixels by their whole distance.
        place = torch.arange(BINS) + (0.5 if name == "continuous" else 0.0)
        known = ~curves.isnan().any(0)
        reach = (place * 4 * SPACING / BINS)[known]
        numbers[name] = {"distance": reach.tolist()}
        for i, (layer, curve) in enumerate(zip(SHOWN, curves, strict=True)):
            numbers[name][f"layer {layer}"] = curve[known].tolist()
            label = "input" if layer == 0 else f"layer {layer}"
            shade = str(0.8 - 0.2 * i) if layer else PALETTE["standard"]
            panel.plot(reach, curve[known], style, markersize=4, color=shade, label=label)
        panel.set_title(f"{name} convolution", fontsize=10)
        panel.set_xlabel("distance between points" if name == "continuous" else "distance between pixels")
        panel.set_xlim(0, 4 * SPACING)
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes[0].set_ylabel("correlation of features")
    axes[1].legend(fontsize=8)
    save(options, "fig-correlation", figure, numbers)


@torch.no_grad()
def continuous(seed: int) -> Tensor:
    """Correlograms of the layers shown, ``[layers, bins]``."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(POINTS, 1, generator=generator)
    features = 0.1**0.5 * torch.randn(POINTS, CHANNELS, generator=generator)
    cloud = PointCloud(points)
    hood = ball_query(cloud, cloud, 1.5 * SPACING)
    boxes = torch.tensor([[-2 / 3], [0.0], [2 / 3]])  # 0.05 apart, in units of the radius
    curves = [correlogram(points, features)]
    for layer in range(1, LAYERS + 1):
        conv = PointConvolution(CHANNELS, CHANNELS, NearestPoint(points=boxes), Sum(), bias=False)
        variance_init(conv, (features, hood), generator=generator)
        features = conv(features, hood)
        if layer in SHOWN:
            curves.append(correlogram(points, features))
    return torch.stack(curves)


@torch.no_grad()
def discrete(seed: int) -> Tensor:
    """The same for pixels, one per point, under an image convolution."""
    generator = torch.Generator().manual_seed(seed)
    features = 0.1**0.5 * torch.randn(POINTS, CHANNELS, generator=generator)
    # A pixel is as wide as the boxes are apart, so that both kernels reach as far.
    points = SPACING * torch.arange(POINTS, dtype=torch.float32)[:, None]
    curves = [correlogram(points, features)]
    conv = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    for layer in range(1, LAYERS + 1):
        image = features.T[None]
        variance_init(conv, (image,), generator=generator)
        features = conv(image)[0].T
        if layer in SHOWN:
            curves.append(correlogram(points, features))
    return torch.stack(curves)


def correlogram(points: Tensor, features: Tensor) -> Tensor:
    """Correlation of features by distance, ``[bins]``: products over mean squares of the same pairs. No point
    is paired with itself; not a number where there is no pair."""
    rows = features - features.mean(0)
    square = rows.square().sum(1)
    distance = (points - points.T).abs()
    bins = (distance / (4 * SPACING) * BINS + 1e-3).long()  # whole pixels fall into their own bin
    near = (bins < BINS) & ~torch.eye(len(points), dtype=torch.bool)
    product = torch.zeros(BINS).index_add(0, bins[near], (rows @ rows.T)[near])
    power = torch.zeros(BINS).index_add(0, bins[near], ((square + square[:, None]) / 2)[near])
    return product / power  # 0 / 0 where there is no pair
