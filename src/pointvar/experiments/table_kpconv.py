"""Table kpconv_abla: KPConv as published (a sum), and with Monte Carlo, at batches of 2, 4 and 8."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim, numbers
from pointvar.experiments.columns import ADDED
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import many_classes

SEEDS = 3
BATCHES = (2, 4, 8)
PAPER = numbers(
    [{"batch": b, "column": c} for b in BATCHES for c in ("direct", "BN")],
    {"KPConv": (4.1, 21.4, 4.1, 90.4, 90.9, 91.0), "KPConvN": (90.3, 14.6, 90.6, 90.6, 90.6, 91.5)},
)
CLAIMS = [
    Claim(
        "with direct weights at batch 2 only Monte Carlo learns: it has twice the accuracy of the sum",
        {"method": "KPConvN", "batch": 2, "column": "direct"},
        {"method": "KPConv", "batch": 2, "column": "direct"},
        factor=2,
    ),
    Claim(
        "at batch 8 direct trains the sum, too: within 2 points of batch norm",
        {"method": "KPConv", "batch": 8, "column": "direct"},
        {"method": "KPConv", "batch": 8, "column": "BN"},
        margin=-0.02,
    ),
    Claim(
        "norm-free trains the sum at batch 2: within 2 points of Monte Carlo with direct weights",
        {"method": "KPConv", "batch": 2, "column": "norm-free"},
        {"method": "KPConvN", "batch": 2, "column": "direct"},
        margin=-0.02,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-kpconv",
        "KPConv with a sum and with Monte Carlo",
        [many_classes(options)],
        {"batch": BATCHES, "method": ("KPConv", "KPConvN"), "column": ("direct", "BN", *ADDED)},
        SEEDS,
        repeat=repeated(options),
        paper=PAPER,
        paper_data="ModelNet40",
        claims=CLAIMS,
    )
