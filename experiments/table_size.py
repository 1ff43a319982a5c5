"""The paper's own network for ScanObjectNN, trained to the end on other shapes at batches of 2."""

from __future__ import annotations

from experiments import table_scanobjnn
from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.long import shapes_size, shapes_size_short
from experiments.options import Options
from experiments.rates import recipe_rates, with_rates

METHODS = ("MCConv", "PCCNN")
COLUMNS = ("norm-free", "GN", "direct")
PAPER = "direct is at least as good as group norm in most cells"
"""A claim that is made in the same words of short trainings."""
CLAIMS = {
    PAPER: table_scanobjnn.CLAIMS[PAPER],
    "at the paper's size norm-free is at least as good as group norm": Claim("norm-free", "GN"),
    "at the paper's size norm-free is at least as good as direct": Claim("norm-free", "direct"),
}


def grids(options: Options) -> Grids:
    grid = Grid(
        "table-size",
        "The paper's own network, trained to the end",
        [shapes_size(options)],
        {"batch": (2,), "method": METHODS, "column": COLUMNS},
        seeds=1,
        claims=CLAIMS,
    )
    yield from with_rates(
        grid, options, {"method": METHODS[:1]}, recipe_rates(grid), shorter=shapes_size_short
    )
