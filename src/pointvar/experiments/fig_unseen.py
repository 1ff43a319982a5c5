"""Clouds that the weights were not calibrated on: variance by depth, as published and with unit response.

Weights are set directly on some clouds; each other cloud goes through the network by itself. Layers are
homogeneous, so a factor that one layer is off compounds with depth, unless the operator is normalised.
"""

from __future__ import annotations

from typing import Any

import torch

from pointvar.experiments.by_depth import Curve, activations, picture, plain
from pointvar.experiments.clouds import surface_clouds
from pointvar.experiments.options import Options
from pointvar.init import variance_init
from pointvar.methods import METHODS
from pointvar.progress import track

DEPTH, CHANNELS, CALIBRATION, UNSEEN = 25, 64, 12, 12
COLORS = {"as published": "tab:blue", "unit response": "tab:green"}


def run(options: Options) -> None:
    """Writes one panel per method: the median cloud and the range over clouds."""
    clouds = surface_clouds(options.data, CALIBRATION + UNSEEN)
    seen = clouds.packed(slice(0, CALIBRATION))
    others = [clouds.packed(slice(i, i + 1)) for i in range(CALIBRATION, CALIBRATION + UNSEEN)]
    curves: dict[str, dict[str, list[Curve]]] = {}
    for method in track(list(METHODS), "fig-unseen"):
        curves[method] = {}
        for name in COLORS:
            net = plain(method, DEPTH, CHANNELS, seen, 0, unit=name == "unit response")
            variance_init(net, seen, generator=torch.Generator().manual_seed(1000))
            curves[method][name] = [activations(net, batch) for batch in others]
    last = {m: {n: _summary([c[-1] for c in by[n]]) for n in COLORS} for m, by in curves.items()}
    numbers: dict[str, Any] = {
        "clouds": clouds.name,
        "calibrated_on": CALIBRATION,
        "unseen": UNSEEN,
        "channels": CHANNELS,
        f"layer_{DEPTH}": last,
        "second_moment": curves,
    }
    options.save("fig-unseen", picture(curves, COLORS, reach=1e14, median=True), numbers)
    for method, by in last.items():
        texts = [f"{n} {s['median']:.2g} [{s['least']:.2g}, {s['largest']:.2g}]" for n, s in by.items()]
        print(f"  {method}: " + ", ".join(texts))


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": float(torch.tensor(values, dtype=torch.float64).median()),
        "least": min(values),
        "largest": max(values),
    }
