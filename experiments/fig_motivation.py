"""Variance over depth: images under He's rule, points under it, points with variance-aware weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from experiments.figures import PALETTE, Curve, activations, canvas, plain, save, surface_clouds
from experiments.options import Options
from pointvar.init import standard_init, variance_init

DEPTH, CHANNELS, CLOUDS, SEEDS, METHOD = 25, 64, 8, 5, "MCConv"
COLORS = {
    "images, He": PALETTE["images"],
    "points, He": PALETTE["standard"],
    "points, variance-aware": PALETTE["direct"],
}


def run(options: Options) -> None:
    """Writes the three curves, each the mean over seeds."""
    clouds = surface_clouds(options, CLOUDS)
    batch = clouds.packed(0, CLOUDS)
    curves: dict[str, list[Curve]] = {name: [] for name in COLORS}
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        curves["images, He"].append(images(generator))
        net = plain(METHOD, DEPTH, CHANNELS, batch, seed)
        standard_init(net, generator=generator)
        curves["points, He"].append(activations(net, batch))
        variance_init(net, batch, generator=generator)
        curves["points, variance-aware"].append(activations(net, batch))
    numbers = {name: torch.tensor(c).log().mean(0).exp().tolist() for name, c in curves.items()}
    figure, axes = canvas(5, 3.2)
    for name, values in numbers.items():
        axes.plot(range(1, DEPTH + 1), values, "o-", markersize=3, color=COLORS[name], label=name)
    axes.set(yscale="log", xlabel="layer", ylabel="variance of features")
    axes.legend(fontsize=8)
    about = {"clouds": clouds.name, "method": METHOD, "channels": CHANNELS, "seeds": SEEDS}
    save(options, "fig-motivation", figure, {**about, "variance": numbers})


@torch.no_grad()
def images(generator: torch.Generator) -> Curve:
    """Second moments behind each of the image convolutions of 3 x 3 taps under He's rule."""
    features = torch.randn(1, CHANNELS, 24, 24, generator=generator)
    result = []
    for _ in range(DEPTH):
        # Circular, so that no border loses variance.
        conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, padding_mode="circular", bias=False)
        standard_init(conv, generator=generator)
        outputs = conv(features)
        result.append(float(outputs.square().mean()))
        features = functional.relu(outputs)
    return result
