"""Table scanobjnn: five methods at batches of 2, 4, 8 and 16, with and without normalisation."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import BATCH_NORM_FAILS, Claim, numbers
from pointvar.experiments.columns import ADDED, PAPER_METHODS
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import classification

SEEDS = 3
BATCHES = (2, 4, 8, 16)
RULES = ("standard", "Xavier")  # "He" and "Xav.", at batch 2 only
BOTH = "direct + BN, not in the head"
"""Without a norm in the head the scale of the last convolution reaches it; standard weights make it small."""
PAPER = numbers(
    [
        *({"batch": 2, "column": c} for c in ("direct", "standard", "Xavier", "GN", "BN")),
        *({"batch": b, "column": c} for b in (4, 8, 16) for c in ("direct", "GN", "BN")),
    ],
    {
        "PCCNN": (85.7, 13.5, 13.5, 86.1, 23.3, 85.5, 86.7, 87.3, 85.2, 86.7, 87.3, 83.5, 86.6, 87.9),
        "KPConvN": (84.8, 78.9, 13.5, 83.8, 17.7, 84.5, 83.8, 83.4, 85.1, 84.6, 84.8, 84.1, 84.1, 85.3),
        "MCConv": (86.3, 13.5, 13.5, 85.5, 21.3, 85.9, 85.7, 83.5, 85.7, 85.6, 85.9, 84.4, 85.0, 85.6),
        "PointConv": (85.7, 85.1, 85.3, 85.0, 20.1, 85.2, 84.8, 83.4, 85.4, 84.6, 85.9, 85.4, 84.9, 85.4),
        "SPHConv": (82.2, 13.5, 13.5, 79.8, 26.2, 81.9, 80.8, 81.6, 81.0, 80.3, 82.8, 81.0, 80.8, 83.4),
    },
)
CLAIMS = [
    BATCH_NORM_FAILS,
    Claim(
        "batch norm gets better with larger batches: 16 against 2",
        {"column": "BN", "batch": 16},
        {"column": "BN", "batch": 2},
    ),
    Claim("direct is at least as good as He", {"column": "direct"}, {"column": "standard"}),
    Claim("direct is at least as good as Xavier", {"column": "direct"}, {"column": "Xavier"}),
    Claim(
        "direct is at least as good as group norm in most cells",
        {"column": "direct"},
        {"column": "GN"},
        most=True,
    ),
    Claim(
        "at batch 16 direct is within 3 points of batch norm for most methods",
        {"column": "direct", "batch": 16},
        {"column": "BN", "batch": 16},
        margin=-0.03,
        most=True,
    ),
    Claim(
        "batch norm at batch 2 fails because of the norm in the head: without it, twice the accuracy",
        {"column": "BN, not in the head", "batch": 2},
        {"column": "BN", "batch": 2},
        factor=2,
    ),
    Claim(
        "direct weights make up for the norm in the head: at batch 16 within 3 points of batch norm",
        {"column": BOTH, "batch": 16},
        {"column": "BN", "batch": 16},
        margin=-0.03,
    ),
    Claim(
        "norm-free is at least as good as group norm in most cells",
        {"column": "norm-free"},
        {"column": "GN"},
        most=True,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-scanobjnn",
        "Classification with small batches",
        [classification(options)],
        {
            "batch": BATCHES,
            "method": PAPER_METHODS,
            "column": ("direct", "GN", "BN", *RULES, *ADDED, BOTH),
        },
        SEEDS,
        repeat=repeated(options),
        keep=lambda cell: cell["batch"] == 2 or cell["column"] not in RULES,
        paper=PAPER,
        paper_data="ScanObjectNN",
        claims=CLAIMS,
    )
