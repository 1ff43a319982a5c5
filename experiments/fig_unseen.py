"""Clouds that the weights were not calibrated on: variance by depth, by weights and with unit response.

Weights are set directly on some clouds; each other cloud goes through the network by itself. Layers are
homogeneous, so a factor that one layer is off compounds with depth, unless the operator is normalised.
"""

from __future__ import annotations

import torch

from experiments import figures
from experiments.options import Options

DEPTH, CHANNELS, CALIBRATION, UNSEEN = 25, 64, 12, 12


def run(options: Options) -> None:
    """Writes one panel per method: the median cloud and the range over clouds."""
    clouds = figures.surface_clouds(options, CALIBRATION + UNSEEN)
    seen = clouds.packed(0, CALIBRATION)
    others = [clouds.packed(i, i + 1) for i in range(CALIBRATION, CALIBRATION + UNSEEN)]

    def follow(method: str, name: str) -> list[figures.Curve]:
        net = figures.drawn(name, method, DEPTH, CHANNELS, seen)
        return [figures.activations(net, batch) for batch in others]

    methods = figures.announced("fig-unseen")
    curves = {method: {name: follow(method, name) for name in figures.DRAWN} for method in methods}
    last = {m: {n: _summary([c[-1] for c in by[n]]) for n in figures.DRAWN} for m, by in curves.items()}
    about = {"clouds": clouds.name, "calibrated_on": CALIBRATION, "unseen": UNSEEN, "channels": CHANNELS}
    numbers = {**about, f"layer_{DEPTH}": last, "second_moment": curves}
    figure = figures.picture(curves, figures.DRAWN, reach=1e14, middle=lambda values: values.median(0).values)
    figures.save(options, "fig-unseen", figure, numbers)


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": float(torch.tensor(values, dtype=torch.float64).median()),
        "least": min(values),
        "largest": max(values),
    }
