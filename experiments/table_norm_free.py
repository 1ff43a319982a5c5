"""Beyond the paper: all ten methods by the recipe norm-free, against batch norm, group norm and direct.

``table-parts`` takes the recipe apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments.claims import Claim
from experiments.grid import Cell, Grid, Grids, on_a_laptop
from experiments.options import Options
from experiments.rates import with_rates
from experiments.scenarios import Scenario, classification_thousand, segmentation, steady
from pointvar.methods import METHODS
from pointvar.train import RECIPES

REPEATED = ("MCConv", "KPConvN", "PCCNN", "SPHConv")
CHOOSING = {"method": ("KPConvN", "MCConv")}
"""The methods whose mean chooses a rate."""
BATCHES = {"accuracy": (2, 16), "mean_iou": (1,)}
"""Clouds per batch, of a classification and of a segmentation."""
COLUMNS = ("BN", "GN", "direct", "norm-free")
ALONE = ("GN", "norm-free")
"""Columns that are also run on one shape per batch; batch norm cannot be."""
CLAIMS = {
    **{
        f"norm-free is at least as good as {name}, less 2 points": Claim("norm-free", column, margin=-0.02)
        for column, name in {"GN": "group norm", "BN": "batch norm", "direct": "direct"}.items()
    },
    "at batch 2 norm-free is 20 points ahead of batch norm": Claim(
        "norm-free", "BN", {"batch": 2}, margin=0.2
    ),
    "norm-free is ahead of group norm in most cells": Claim("norm-free", "GN", most=True),
}


def grids(options: Options) -> Grids:
    yield from with_rates(table(options), options, CHOOSING)


def table(options: Options) -> Grid:
    """The table, whose rates are still to be chosen."""
    scenarios = shapes_and_scans(options)
    return Grid(
        "table-norm-free",
        "All methods without normalisation of features",
        scenarios,
        {"batch": (1, 2, 16), "method": tuple(METHODS), "column": COLUMNS},
        repeat=on_a_laptop(REPEATED, (1, 2, 16)),
        keep=lambda cell: planned(scenarios, cell) or _alone(cell),
        claims=CLAIMS,
    )


def compared(
    options: Options,
    name: str,
    title: str,
    column: str,
    claims: Mapping[str, Claim],
    methods: Sequence[str] = tuple(METHODS),
) -> Grid:
    """A table of the recipe norm-free and another column, both at its rate, one seed."""
    whole = table(options)
    rate = {"optimizer.rate": RECIPES["norm-free"]["optimizer"]["rate"]}
    return replace(
        whole,
        name=name,
        title=title,
        axes={**whole.axes, "method": tuple(methods), "column": ("norm-free", column)},
        seeds=1,
        keep=lambda cell: planned(whole.scenarios, cell),
        more=lambda scenario, cell: rate,
        claims=claims,
        notes=["Both columns have the rate of the recipe."],
    )


def shapes_and_scans(options: Options) -> list[Scenario]:
    """The data, all columns by the schedule of the recipe."""
    return [steady(classification_thousand(options)), steady(segmentation(options))]


def planned(scenarios: Sequence[Scenario], cell: Cell) -> bool:
    """Whether a batch size is one for these data."""
    metrics = {scenario.name: scenario.metric for scenario in scenarios}
    return cell["batch"] in BATCHES[metrics[cell["data"]]]


def _alone(cell: Cell) -> bool:
    """Whether a cell is one of those with a single shape per batch."""
    return cell["batch"] == 1 and cell["method"] in REPEATED and cell["column"] in ALONE
