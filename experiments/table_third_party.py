"""Networks of PyTorch Geometric with one cloud per batch: as they come, and after ``variance_init``."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.networks import GEOMETRIC, GeometricClassifier
from experiments.options import Options
from experiments.scenarios import classification, one_level

DEPTHS = (5, 20)
CHANNELS, RADIUS, EPOCHS = 32, 0.15, 5
CLAIMS = {
    f"at {depth} layers variance_init is at least as good as what the layers start from": Claim(
        "variance_init", "as it comes", {"depth": depth}
    )
    for depth in DEPTHS
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-third-party",
        "Networks of PyTorch Geometric, one cloud per batch",
        [classification(options)],
        {
            "depth": DEPTHS,
            "batch": (1,),
            "layer": GEOMETRIC,
            "column": ("as it comes", "variance_init"),
        },
        more=lambda scenario, cell: one_level(CHANNELS, RADIUS, EPOCHS),
        model=lambda config, data, cell, generator: GeometricClassifier(
            config, data, cell["layer"], cell["depth"], generator
        ),
        rows="layer",
        claims=CLAIMS,
        notes=[f"Layers of {CHANNELS} features with ReLU on the coordinates, the mean, and a linear layer."],
    )
