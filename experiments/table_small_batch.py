"""Table class_small_batch: ModelNet40 with batches of 2 and 4, direct against batch norm."""

from __future__ import annotations

from experiments.claims import BATCH_NORM_FAILS, Claim
from experiments.columns import ADDED, PAPER_METHODS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.scenarios import many_classes

BATCHES = (2, 4)
CLAIMS = {
    **BATCH_NORM_FAILS,
    "at batch 4 direct is within 1 point of batch norm": Claim("direct", "BN", {"batch": 4}, margin=-0.01),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-small-batch",
        "Classification of many classes with small batches",
        [many_classes(options)],
        {
            "batch": BATCHES,
            "method": PAPER_METHODS,
            "column": ("direct", "BN", *ADDED),
        },
        claims=CLAIMS,
    )
