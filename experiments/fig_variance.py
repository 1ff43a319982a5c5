"""25 layers of all ten methods: the variance of features under standard, direct and transferred weights.

The transferred weights come from a table made on other data than the clouds shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from experiments import figures
from experiments.options import Options
from pointvar.init import standard_init, transfer_init, variance_init

DEPTH, CHANNELS, CLOUDS, SEEDS = 25, 64, 12, 10
COLORS = {name: figures.PALETTE[name] for name in ("standard", "direct", "direct, exact", "transfer")}


def run(options: Options) -> None:
    """Writes one panel per method; the numbers hold every draw."""
    clouds = figures.surface_clouds(options, CLOUDS)
    batch = clouds.packed(0, CLOUDS)
    moment = float(batch[0].square().mean())
    table = "synthetic" if clouds.name == "ModelNet40" else "modelnet40"
    draw: dict[str, Callable[..., Any]] = {
        "standard": standard_init,
        "direct": lambda net, generator: variance_init(net, batch, generator=generator),
        "direct, exact": lambda net, generator: variance_init(net, batch, exact=True, generator=generator),
        "transfer": lambda net, generator: transfer_init(
            net, table, input_moment=moment, generator=generator
        ),
    }

    def follow(method: str, name: str, seed: int) -> figures.Curve:
        net = figures.plain(method, DEPTH, CHANNELS, batch, seed)
        draw[name](net, generator=figures.drawing(seed))
        return figures.activations(net, batch)

    curves = {
        method: {name: [follow(method, name, seed) for seed in range(SEEDS)] for name in COLORS}
        for method in figures.announced("fig-variance")
    }
    summary = {method: {name: _summary(c) for name, c in by.items()} for method, by in curves.items()}
    about = {"clouds": clouds.name, "table": table, "channels": CHANNELS, "seeds": SEEDS}
    numbers = {**about, "summary": summary, "second_moment": curves}
    figures.save(options, "fig-variance", figures.picture(curves, COLORS), numbers)


def _summary(curves: list[figures.Curve]) -> dict[str, list[str]]:
    """Over all layers: range of the mean over seeds, and of the single draws."""
    values = torch.tensor(curves, dtype=torch.float64)
    mean = values.mean(0)
    ranges = {"mean": (mean.min(), mean.max()), "draws": (values.min(), values.max())}
    return {name: [f"{float(low):.3g}", f"{float(high):.3g}"] for name, (low, high) in ranges.items()}
