"""Table class: ModelNet40 with batches of 16, batch norm against initialisations without a norm."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.columns import ADDED, PAPER_METHODS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.scenarios import many_classes

CLAIMS = {
    "direct is within 2 points of batch norm": Claim("direct", "BN", margin=-0.02),
    "transfer is within 1 point of direct": Claim("transfer", "direct", margin=-0.01),
    "without a norm, standard weights do not learn for most methods: direct has twice their accuracy": Claim(
        "direct", "standard", factor=2, most=True
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-class",
        "Classification with batches of 16",
        [many_classes(options)],
        {
            "batch": (16,),
            "method": PAPER_METHODS,
            "column": ("BN", "standard", "direct", "transfer", *ADDED),
        },
        claims=CLAIMS,
        notes=["The transfer column takes a table that was made from other data."],
    )
