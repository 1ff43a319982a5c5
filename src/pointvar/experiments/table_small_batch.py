"""Table class_small_batch: ModelNet40 with batches of 2 and 4, direct against batch norm."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import BATCH_NORM_FAILS, Claim, numbers
from pointvar.experiments.columns import ADDED, ORTHONORMAL_NORM_FREE, PAPER_METHODS
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import many_classes

SEEDS = 3
BATCHES = (2, 4)
PAPER = numbers(
    [{"batch": b, "column": c} for b in BATCHES for c in ("direct", "BN")],
    {
        "PCCNN": (90.3, 28.3, 90.3, 90.4),
        "KPConvN": (90.3, 14.6, 90.6, 90.6),
        "MCConv": (90.0, 14.8, 90.0, 90.1),
        "PointConv": (90.5, 13.2, 90.6, 90.4),
        "SPHConv": (90.0, 19.7, 90.1, 88.6),
    },
)
CLAIMS = [
    BATCH_NORM_FAILS,
    Claim(
        "at batch 4 direct is within 1 point of batch norm",
        {"column": "direct", "batch": 4},
        {"column": "BN", "batch": 4},
        margin=-0.01,
    ),
    Claim(
        "at batch 2 orthonormal bases are ahead of those published, without a norm",
        {"column": ORTHONORMAL_NORM_FREE, "batch": 2},
        {"column": "norm-free", "batch": 2},
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-small-batch",
        "Classification of many classes with small batches",
        [many_classes(options)],
        {
            "batch": BATCHES,
            "method": PAPER_METHODS,
            "column": ("direct", "BN", *ADDED, ORTHONORMAL_NORM_FREE),
        },
        SEEDS,
        repeat=repeated(options),
        paper=PAPER,
        paper_data="ModelNet40",
        claims=CLAIMS,
    )
