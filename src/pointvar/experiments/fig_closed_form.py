"""Unit response without data: weights in closed form against direct ones, and the coherence of neighbours,
for bases as published and orthonormal.

The coherence of a layer is Z / (C m) under direct weights: 1 if neighbours had the same features.
"""

from __future__ import annotations

from typing import Any

import torch

from pointvar.experiments.by_depth import Curve, activations, picture, plain
from pointvar.experiments.clouds import surface_clouds
from pointvar.experiments.options import Options
from pointvar.init import activation_moment, closed_form_init, variance_init
from pointvar.methods import METHODS
from pointvar.progress import track

DEPTH, CHANNELS, CLOUDS, SEEDS = 25, 64, 8, 3
COLORS = {"direct": "tab:blue", "closed form": "tab:purple"}


def run(options: Options) -> None:
    """Writes two figures per source of clouds: built-in shapes, and ModelNet40 where it is."""
    sources = {surface_clouds(data, 1).name: data for data in (None, options.data)}
    for source, data in sources.items():
        batch = surface_clouds(data, CLOUDS).packed(slice(0, CLOUDS))
        for orthonormal in (False, True):
            _follow(options, source, batch, orthonormal)


def _follow(options: Options, source: str, batch: Any, orthonormal: bool) -> None:
    moment = float(batch[0].square().mean())
    inner = activation_moment("leaky_relu")
    curves: dict[str, dict[str, list[Curve]]] = {}
    coherence: dict[str, list[Curve]] = {}
    for method in track(list(METHODS), f"fig-closed-form, {source}{', orthonormal' * orthonormal}"):
        curves[method] = {name: [] for name in COLORS}
        coherence[method] = []
        for seed in range(SEEDS):
            net = plain(method, DEPTH, CHANNELS, batch, seed, unit=True, orthonormal=orthonormal)
            report = variance_init(net, batch, generator=torch.Generator().manual_seed(1000 + seed))
            z = [entry.second_moment or 0.0 for entry in report.layers]
            first = z[0] / (batch[0].shape[1] * moment)
            coherence[method].append([first, *(value / (CHANNELS * inner) for value in z[1:])])
            curves[method]["direct"].append(activations(net, batch))
            closed_form_init(net, input_moment=moment, generator=torch.Generator().manual_seed(1000 + seed))
            curves[method]["closed form"].append(activations(net, batch))
    summary = {}
    for method, values in coherence.items():
        mean = torch.tensor(values).mean(0)
        summary[method] = {
            "coherence of the input": float(mean[0]),
            "coherence, least": float(mean[1:].min()),
            "coherence, mean": float(mean[1:].mean()),
            "coherence, largest": float(mean[1:].max()),
            "closed form, last layer": float(
                torch.tensor(curves[method]["closed form"])[:, -1].log().mean().exp()
            ),
        }
        print(f"  {method}: " + ", ".join(f"{name} {value:.3g}" for name, value in summary[method].items()))
    numbers = {
        "clouds": source,
        "orthonormal": orthonormal,
        "channels": CHANNELS,
        "seeds": SEEDS,
        "summary": summary,
        "second_moment": curves,
    }
    name = f"fig-closed-form-{source.replace(' ', '-').lower()}{'-orthonormal' * orthonormal}"
    options.save(name, picture(curves, COLORS, reach=1e3), numbers)
