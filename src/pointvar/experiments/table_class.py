"""Table class: ModelNet40 with batches of 16, batch norm against initialisations without a norm."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim, numbers
from pointvar.experiments.columns import ADDED, ORTHONORMAL_NORM_FREE, PAPER_METHODS
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import many_classes

SEEDS = 3
PAPER = numbers(
    [{"column": c} for c in ("BN", "standard", "direct", "transfer")],
    {
        "PCCNN": (91.0, 4.1, 90.0, 89.7),
        "KPConvN": (91.1, 90.8, 91.0, 91.2),
        "MCConv": (91.0, 4.1, 90.4, 90.6),
        "PointConv": (90.7, 90.8, 90.6, 90.1),
        "SPHConv": (90.3, 4.1, 90.0, 90.0),
    },
)
CLAIMS = [
    Claim("direct is within 2 points of batch norm", {"column": "direct"}, {"column": "BN"}, margin=-0.02),
    Claim("transfer is within 1 point of direct", {"column": "transfer"}, {"column": "direct"}, margin=-0.01),
    Claim(
        "without a norm, standard weights do not learn for most methods: direct has twice their accuracy",
        {"column": "direct"},
        {"column": "standard"},
        factor=2,
        most=True,
    ),
    Claim(
        "with orthonormal bases, no norm is within 2 points of batch norm",
        {"column": ORTHONORMAL_NORM_FREE},
        {"column": "BN"},
        margin=-0.02,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-class",
        "Classification with batches of 16",
        [many_classes(options)],
        {
            "batch": (16,),
            "method": PAPER_METHODS,
            "column": ("BN", "standard", "direct", "transfer", *ADDED, ORTHONORMAL_NORM_FREE),
        },
        SEEDS,
        repeat=repeated(options),
        paper=PAPER,
        paper_data="ModelNet40",
        claims=CLAIMS,
        notes=["The transfer column takes a table that was made from other data."],
    )
