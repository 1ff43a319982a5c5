"""Unit response without data: weights in closed form against direct ones, and the coherence of neighbours.

The coherence of a layer is Z / (C m) under direct weights: 1 if neighbours had the same features.
"""

from __future__ import annotations

import torch

from experiments import figures
from experiments.options import Options
from pointvar.init import activation_moment, closed_form_init, variance_init

DEPTH, CHANNELS, CLOUDS, SEEDS = 25, 64, 8, 3
COLORS = {name: figures.PALETTE[name] for name in ("direct", "closed form")}


def run(options: Options) -> None:
    """Writes a figure per source of clouds: built-in shapes, and ModelNet40 where it is."""
    sources = [figures.surface_clouds(options, CLOUDS, synthetic) for synthetic in (True, False)]
    for clouds in {clouds.name: clouds for clouds in sources}.values():
        _follow(options, clouds.name, clouds.packed(0, CLOUDS))


def _follow(options: Options, source: str, batch: figures.Batch) -> None:
    name = f"fig-closed-form-{source.replace(' ', '-').lower()}"
    moment = float(batch[0].square().mean())
    inner = activation_moment("leaky_relu")
    curves: figures.Curves = {}
    summary = {}
    for method in figures.announced(name):
        curves[method] = {drawn: [] for drawn in COLORS}
        coherence: list[figures.Curve] = []
        for seed in range(SEEDS):
            net = figures.plain(method, DEPTH, CHANNELS, batch, seed, unit_response=True)
            report = variance_init(net, batch, generator=figures.drawing(seed))
            z = [entry.second_moment or 0.0 for entry in report.layers]
            first = z[0] / (batch[0].shape[1] * moment)
            coherence.append([first, *(value / (CHANNELS * inner) for value in z[1:])])
            curves[method]["direct"].append(figures.activations(net, batch))
            closed_form_init(net, input_moment=moment, generator=figures.drawing(seed))
            curves[method]["closed form"].append(figures.activations(net, batch))
        mean = torch.tensor(coherence).mean(0)
        last = torch.tensor(curves[method]["closed form"])[:, -1]
        summary[method] = {
            "coherence of the input": float(mean[0]),
            "coherence, least": float(mean[1:].min()),
            "coherence, mean": float(mean[1:].mean()),
            "coherence, largest": float(mean[1:].max()),
            "closed form, last layer": float(last.log().mean().exp()),
        }
    about = {"clouds": source, "channels": CHANNELS, "seeds": SEEDS}
    numbers = {**about, "summary": summary, "second_moment": curves}
    figures.save(options, name, figures.picture(curves, COLORS, reach=1e3), numbers)
