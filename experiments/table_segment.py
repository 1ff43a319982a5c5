"""Table segment: a U-Net on one large cloud per batch, or on four small ones."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.columns import PAPER_METHODS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.scenarios import segmentation

COLUMNS = {
    1: ("BN", "standard", "direct", "transfer", "GN", "LSUV"),
    4: ("BN", "direct", "GN", "LSUV"),
}
ONE = {"batch": 1}
CLAIMS = {
    "batch norm fails on one cloud per batch: direct is 10 points ahead": Claim(
        "direct", "BN", ONE, margin=0.1
    ),
    "direct is ahead of standard": Claim("direct", "standard", ONE),
    "transfer is ahead of standard": Claim("transfer", "standard", ONE),
    "transfer is within 2 points of direct": Claim("transfer", "direct", ONE, margin=-0.02),
    "direct on one large cloud is at least as good as batch norm on four small ones, for most methods": Claim(
        {**ONE, "column": "direct"}, {"batch": 4, "column": "BN"}, most=True
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-segment",
        "Semantic segmentation: one large cloud per batch, or four small ones",
        [segmentation(options)],
        {"batch": tuple(COLUMNS), "method": PAPER_METHODS, "column": COLUMNS[1]},
        keep=lambda cell: cell["column"] in COLUMNS[cell["batch"]],
        claims=CLAIMS,
        notes=["The transfer column takes a table that was made from other data."],
    )
