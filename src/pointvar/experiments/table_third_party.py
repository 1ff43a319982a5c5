"""Networks of PyTorch Geometric with one cloud per batch: as they come, and after ``variance_init``."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.networks import GEOMETRIC, GeometricClassifier
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import classification, one_level

SEEDS = 3
DEPTHS = (5, 20)
CHANNELS, RADIUS, EPOCHS = 32, 0.15, 5
CLAIMS = [
    Claim(
        f"at {depth} layers variance_init{clipped} is at least as good as what the layers start from",
        {"column": f"variance_init{clipped}", "depth": depth},
        {"column": f"as it comes{clipped}", "depth": depth},
    )
    for depth in DEPTHS
    for clipped in ("", " + AGC")
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-third-party",
        "Networks of PyTorch Geometric, one cloud per batch",
        [classification(options)],
        {
            "depth": DEPTHS,
            "batch": (1,),
            "layer": GEOMETRIC,
            "column": ("as it comes", "variance_init", "as it comes + AGC", "variance_init + AGC"),
        },
        SEEDS,
        repeat=repeated(options),
        settings=lambda scenario, cell: one_level(CHANNELS, RADIUS, EPOCHS),
        model=lambda config, data, cell, generator: GeometricClassifier(
            cell["layer"], cell["depth"], CHANNELS, RADIUS, config, data, generator
        ),
        rows="layer",
        claims=CLAIMS,
        notes=[f"Layers of {CHANNELS} features with ReLU on the coordinates, the mean, and a linear layer."],
    )
