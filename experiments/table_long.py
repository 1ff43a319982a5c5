"""Shapes, trained to the end: batch norm, group norm, direct, and the recipe norm-free beside."""

from __future__ import annotations

from experiments import table_scanobjnn
from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.long import shapes_long, shapes_short
from experiments.options import Options
from experiments.rates import recipe_rates, with_rates

METHODS = ("MCConv", "PCCNN", "KPConvN")
HEAD = "BN, not in the head"
COLUMNS = ("norm-free", "GN", "BN", "direct", HEAD)
CHOOSING = {"method": ("MCConv", "KPConvN")}
PAPER = (
    "batch norm fails at batch 2: direct has at least twice its accuracy",
    "batch norm gets better with larger batches: 16 against 2",
    "direct is at least as good as group norm in most cells",
    "at batch 16 direct is within 3 points of batch norm for most methods",
)
"""Claims that are made in the same words of short trainings."""
SIXTEEN = {"batch": 16}
NORMS = {"GN": "group norm", "BN": "batch norm"}
CLAIMS = {
    **{text: table_scanobjnn.CLAIMS[text] for text in PAPER},
    "direct is within 2 points of batch norm": Claim("direct", "BN", SIXTEEN, margin=-0.02),
    **{
        f"trained to the end, norm-free at batch 2 is at least as good as {name}": Claim(
            "norm-free", column, {"batch": 2}
        )
        for column, name in NORMS.items()
    },
    **{
        f"trained to the end, norm-free at batch 16 is at least as good as {name}, less 0.7 points (one "
        "standard error)": Claim("norm-free", column, SIXTEEN, margin=-0.007)
        for column, name in NORMS.items()
    },
    "trained to the end, norm-free is at least as good as direct": Claim("norm-free", "direct"),
}


def grids(options: Options) -> Grids:
    grid = Grid(
        "table-long",
        "Classification, trained to the end",
        [shapes_long(options)],
        {"batch": (2, 16), "method": METHODS, "column": COLUMNS},
        seeds=1,
        keep=lambda cell: cell["column"] != HEAD or cell["method"] == METHODS[0],
        claims=CLAIMS,
    )
    yield from with_rates(grid, options, CHOOSING, recipe_rates(grid), shorter=shapes_short)
