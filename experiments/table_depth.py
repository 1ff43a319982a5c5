"""Plain networks of 10 to 100 layers, without pooling or skips: which initialisations train at all."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.networks import PlainClassifier
from experiments.options import Options
from experiments.rates import with_rates
from experiments.scenarios import classification, one_level, steady

DEPTHS = (10, 25, 50, 100)
METHODS = ("MCConv", "KPConvN")
COLUMNS = ("GN", "direct", "norm-free", "norm-free, centred", "norm-free, centred, without unit response")
DEEPEST = ("GN", "norm-free", "norm-free, centred")
"""Columns that learn something at 50 layers; the others are not run at 100."""
NAMES = {"GN": "group norm"}
CHANNELS, RADIUS, EPOCHS = 32, 0.2, 6
CLAIMS = {
    "100 layers of norm-free learn as well as 10, less 5 points": Claim(
        {"column": "norm-free", "depth": 100}, {"column": "norm-free", "depth": 10}, margin=-0.05
    ),
    **{
        f"at each depth norm-free is at least as good as {NAMES.get(column, column)}, less 2 points": Claim(
            "norm-free", column, margin=-0.02
        )
        for column in COLUMNS
        if column != "norm-free"
    },
}


def grids(options: Options) -> Grids:
    grid = Grid(
        "table-depth",
        f"Plain networks of {DEPTHS[0]} to {DEPTHS[-1]} layers",
        [steady(classification(options))],
        {"depth": DEPTHS, "batch": (4,), "method": METHODS, "column": COLUMNS},
        keep=lambda cell: cell["depth"] < DEPTHS[-1] or cell["column"] in DEEPEST,
        repeat=lambda scenario, cell: True,
        more=lambda scenario, cell: one_level(CHANNELS, RADIUS, EPOCHS),
        model=lambda config, data, cell, generator: PlainClassifier(config, data, cell["depth"], generator),
        claims=CLAIMS,
        notes=[
            f"The network is {CHANNELS} features at every layer, one level of Poisson radius {RADIUS}, the "
            "mean over each cloud and a linear layer; no dropout.",
            "Each depth has rates of its own.",
            f"Columns that learn nothing at 50 layers are not run at {DEPTHS[-1]}.",
        ],
    )
    yield from with_rates(grid, options, {}, by=("data", "depth", "batch", "column"))
