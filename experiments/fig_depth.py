"""100 layers: activations and gradients, as published and with unit response, under direct initialisation."""

from __future__ import annotations

from experiments.figures import PALETTE, Curves, announced, drawing, picture, plain, save, surface_clouds
from experiments.options import Options
from pointvar import variance_report
from pointvar.init import standard_init, variance_init

DEPTH, CHANNELS, CLOUDS, SEEDS = 100, 64, 4, 3
COLORS = {
    "standard": PALETTE["standard"],
    "direct": PALETTE["direct"],
    "unit response, direct": PALETTE["unit response"],
}


def run(options: Options) -> None:
    """Writes two figures, of activations and of gradients, each with its numbers."""
    clouds = surface_clouds(options, CLOUDS)
    batch = clouds.packed(0, CLOUDS)
    followed: dict[str, Curves] = {"activations": {}, "gradients": {}}
    for method in announced("fig-depth"):
        for curves in followed.values():
            curves[method] = {name: [] for name in COLORS}
        for seed in range(SEEDS):
            for name in COLORS:
                net = plain(method, DEPTH, CHANNELS, batch, seed, unit_response=name.startswith("unit"))
                if name == "standard":
                    standard_init(net, generator=drawing(seed))
                else:
                    variance_init(net, batch, generator=drawing(seed))
                layers = variance_report(net, batch).layers
                gradients = [layer.activation_gradient or 0.0 for layer in layers]
                followed["activations"][method][name].append([layer.variance for layer in layers])
                followed["gradients"][method][name].append(gradients)
    about = {"clouds": clouds.name, "channels": CHANNELS, "seeds": SEEDS}
    for what, curves in followed.items():
        numbers = {**about, "second_moment": curves}
        save(options, f"fig-depth-{what}", picture(curves, COLORS, what), numbers)
