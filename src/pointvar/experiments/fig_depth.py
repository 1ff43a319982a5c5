"""100 layers: activations and gradients, as published and with unit response, under direct initialisation."""

from __future__ import annotations

import torch

from pointvar.experiments.by_depth import Curve, activations, gradients, picture, plain
from pointvar.experiments.clouds import surface_clouds
from pointvar.experiments.options import Options
from pointvar.init import standard_init, variance_init
from pointvar.methods import METHODS
from pointvar.progress import track

DEPTH, CHANNELS, CLOUDS, SEEDS = 100, 64, 4, 3
COLORS = {"standard": "tab:red", "direct": "tab:blue", "unit response, direct": "tab:green"}


def run(options: Options) -> None:
    """Writes two figures, of activations and of gradients, and one file of numbers."""
    clouds = surface_clouds(options.data, CLOUDS)
    batch = clouds.packed(slice(0, CLOUDS))
    followed: dict[str, dict[str, dict[str, list[Curve]]]] = {"activations": {}, "gradients": {}}
    for method in track(list(METHODS), "fig-depth"):
        for curves in followed.values():
            curves[method] = {name: [] for name in COLORS}
        for seed in range(SEEDS):
            for name in COLORS:
                generator = torch.Generator().manual_seed(1000 + seed)
                net = plain(method, DEPTH, CHANNELS, batch, seed, unit=name.startswith("unit"))
                if name == "standard":
                    standard_init(net, generator=generator)
                else:
                    variance_init(net, batch, generator=generator)
                followed["activations"][method][name].append(activations(net, batch))
                followed["gradients"][method][name].append(gradients(net, batch))
    about = {"clouds": clouds.name, "channels": CHANNELS, "seeds": SEEDS}
    for what, curves in followed.items():
        figure = picture(curves, COLORS, what)
        options.save(f"fig-depth-{what}", figure, {**about, "second_moment": curves})
