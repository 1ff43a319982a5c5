"""25 layers of all ten methods: the variance of features under standard, direct and transferred weights.

The transferred weights come from a table made on other data than the clouds shown.
"""

from __future__ import annotations

from typing import Any

import torch

from pointvar.experiments.by_depth import Curve, activations, initialisers, picture, plain
from pointvar.experiments.clouds import surface_clouds
from pointvar.experiments.options import Options
from pointvar.methods import METHODS
from pointvar.progress import track

DEPTH, CHANNELS, CLOUDS, SEEDS = 25, 64, 12, 10
COLORS = {"standard": "tab:red", "direct": "tab:blue", "direct, exact": "black", "transfer": "tab:orange"}


def run(options: Options) -> None:
    """Writes one panel per method; the numbers hold every draw."""
    clouds = surface_clouds(options.data, CLOUDS)
    table = "synthetic" if clouds.name == "ModelNet40" else "modelnet40"
    batch = clouds.packed(slice(0, CLOUDS))
    curves: dict[str, dict[str, list[Curve]]] = {}
    for method in track(list(METHODS), "fig-variance"):
        curves[method] = {name: [] for name in COLORS}
        for seed in range(SEEDS):
            for name, initialise in initialisers(batch, table).items():
                net = plain(method, DEPTH, CHANNELS, batch, seed)
                initialise(net, torch.Generator().manual_seed(1000 + seed))
                curves[method][name].append(activations(net, batch))
    numbers: dict[str, Any] = {
        "clouds": clouds.name,
        "table": table,
        "channels": CHANNELS,
        "seeds": SEEDS,
        "summary": {method: {name: _summary(c) for name, c in by.items()} for method, by in curves.items()},
        "second_moment": curves,
    }
    options.save("fig-variance", picture(curves, COLORS), numbers)
    for method, by in numbers["summary"].items():
        parts = [f"{n} mean {s['mean']}, draws {s['draws']}" for n, s in by.items()]
        print(f"  {method}: " + "; ".join(parts))


def _summary(curves: list[Curve]) -> dict[str, list[str]]:
    """Over all layers: range of the mean over seeds, and of the single draws."""
    values = torch.tensor(curves, dtype=torch.float64)
    mean = values.mean(0)
    ranges = {"mean": (mean.min(), mean.max()), "draws": (values.min(), values.max())}
    return {name: [f"{float(low):.3g}", f"{float(high):.3g}"] for name, (low, high) in ranges.items()}
