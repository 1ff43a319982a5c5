"""Beyond the paper: bases as published, and orthonormal. The functions that can be learned are the same.

``fig-rank`` shows how many functions a basis really has; the methods with the fewest train worst.
"""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import classification
from pointvar.methods import METHODS

SEEDS = 3
PUBLISHED, ORTHONORMAL = "as published", "orthonormal"
COLUMNS = ("norm-free", "GN")
OVERLAPPING = ("KPConvN", "ConvPoint", "FlexConv")
CLAIMS = [
    *(
        Claim(
            f"{method}, whose functions overlap most, is 10 points better",
            {"method": method, "basis": ORTHONORMAL},
            {"method": method, "basis": PUBLISHED},
            margin=0.1,
        )
        for method in OVERLAPPING
    ),
    Claim(
        "no method is worse by more than 3 points",
        {"basis": ORTHONORMAL},
        {"basis": PUBLISHED},
        margin=-0.03,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-orthonormal",
        "Bases as published and orthonormal, batches of 2",
        [classification(options)],
        {"batch": (2,), "basis": (PUBLISHED, ORTHONORMAL), "method": tuple(METHODS), "column": COLUMNS},
        SEEDS,
        repeat=repeated(options),
        settings=lambda scenario, cell: {"model": {"orthonormal": cell["basis"] == ORTHONORMAL}},
        claims=CLAIMS,
    )
