"""Table kpconv_abla: KPConv as published (a sum), and with Monte Carlo, at batches of 2, 4 and 8."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.columns import ADDED
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.scenarios import many_classes

BATCHES = (2, 4, 8)
CLAIMS = {
    "with direct weights at batch 2 only Monte Carlo learns: it has twice the accuracy of the sum": Claim(
        {"method": "KPConvN", "batch": 2, "column": "direct"},
        {"method": "KPConv", "batch": 2, "column": "direct"},
        factor=2,
    ),
    "at batch 8 direct trains the sum, too: within 2 points of batch norm": Claim(
        "direct", "BN", {"method": "KPConv", "batch": 8}, margin=-0.02
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-kpconv",
        "KPConv with a sum and with Monte Carlo",
        [many_classes(options)],
        {"batch": BATCHES, "method": ("KPConv", "KPConvN"), "column": ("direct", "BN", *ADDED)},
        claims=CLAIMS,
    )
