"""Segmentation of one cloud per batch, trained to the end, with the recipe norm-free beside."""

from __future__ import annotations

from experiments import table_segment
from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.long import scans_long, scans_short
from experiments.options import Options
from experiments.rates import recipe_rates, with_rates

METHODS = ("MCConv", "KPConvN")
COLUMNS = ("norm-free", "GN", "BN", "direct", "transfer")
PAPER = (
    "batch norm fails on one cloud per batch: direct is 10 points ahead",
    "transfer is within 2 points of direct",
)
"""Claims that are made in the same words of short trainings."""
CLAIMS = {
    **{text: table_segment.CLAIMS[text] for text in PAPER},
    **{
        f"trained to the end on one cloud per batch, norm-free is at least as good as {name}": Claim(
            "norm-free", column
        )
        for column, name in {"GN": "group norm", "BN": "batch norm", "direct": "direct"}.items()
    },
}


def grids(options: Options) -> Grids:
    grid = Grid(
        "table-segment-long",
        "Semantic segmentation with one cloud per batch, trained to the end",
        [scans_long(options)],
        {"batch": (1,), "method": METHODS, "column": COLUMNS},
        seeds=1,
        claims=CLAIMS,
        notes=["The transfer column takes a table that was made from other data."],
    )
    yield from with_rates(grid, options, {"method": METHODS[:1]}, recipe_rates(grid), shorter=scans_short)
