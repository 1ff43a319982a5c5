"""Gradients of four large clouds, seen one at a time: a virtual batch does not help batch norm."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim, numbers
from pointvar.experiments.columns import ADDED_UNET
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import segmentation

SEEDS = 3
PAPER = numbers(
    [{"accumulate": 1, "column": "direct"}, {"accumulate": 4, "column": "BN"}],
    {"KPConvN": (66.1, 32.1), "MCConv": (67.4, 54.5)},
)
CLAIMS = [
    Claim(
        "batch norm still fails at a virtual batch of 4: direct with no accumulation is 10 points ahead",
        {"accumulate": 1, "column": "direct"},
        {"accumulate": 4, "column": "BN"},
        margin=0.1,
    ),
    Claim(
        "the same where direct accumulates, too",
        {"accumulate": 4, "column": "direct"},
        {"accumulate": 4, "column": "BN"},
        margin=0.1,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "gradient-accumulation",
        "One large cloud at a time, gradients of one or of four",
        [segmentation(options)],
        {
            "accumulate": (4, 1),
            "batch": (1,),
            "method": ("KPConvN", "MCConv"),
            "column": ("BN", "direct", *ADDED_UNET),
        },
        SEEDS,
        repeat=repeated(options),
        settings=lambda scenario, cell: {"optimizer": {"accumulate": cell["accumulate"]}},
        paper=PAPER,
        paper_data="ScanNet",
        claims=CLAIMS,
    )
