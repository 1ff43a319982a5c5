"""Table scanobjnn: five methods at batches of 2, 4, 8 and 16, with and without normalisation."""

from __future__ import annotations

from experiments.claims import BATCH_NORM_FAILS, Claim
from experiments.columns import ADDED, PAPER_METHODS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.scenarios import classification

BATCHES = (2, 4, 8, 16)
RULES = ("standard", "Xavier")  # "He" and "Xav.", at batch 2 only
BOTH = "direct + BN, not in the head"
"""Without a norm in the head the scale of the last convolution reaches it; standard weights make it small."""
CLAIMS = {
    **BATCH_NORM_FAILS,
    "batch norm gets better with larger batches: 16 against 2": Claim(
        {"column": "BN", "batch": 16}, {"column": "BN", "batch": 2}
    ),
    "direct is at least as good as He": Claim("direct", "standard"),
    "direct is at least as good as Xavier": Claim("direct", "Xavier"),
    "direct is at least as good as group norm in most cells": Claim("direct", "GN", most=True),
    "at batch 16 direct is within 3 points of batch norm for most methods": Claim(
        "direct", "BN", {"batch": 16}, margin=-0.03, most=True
    ),
    "batch norm at batch 2 fails because of the norm in the head: without it, twice the accuracy": Claim(
        "BN, not in the head", "BN", {"batch": 2}, factor=2
    ),
    "direct weights make up for the norm in the head: at batch 16 within 3 points of batch norm": Claim(
        BOTH, "BN", {"batch": 16}, margin=-0.03
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-scanobjnn",
        "Classification with small batches",
        [classification(options)],
        {
            "batch": BATCHES,
            "method": PAPER_METHODS,
            "column": ("direct", "GN", "BN", *RULES, *ADDED, BOTH),
        },
        keep=lambda cell: cell["batch"] == 2 or cell["column"] not in RULES,
        claims=CLAIMS,
    )
