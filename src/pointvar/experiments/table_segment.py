"""Table segment: a U-Net on one large cloud per batch, or on four small ones."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim, numbers
from pointvar.experiments.columns import ADDED_UNET, PAPER_METHODS
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import segmentation

SEEDS = 3
COLUMNS = {
    1: ("BN", "standard", "direct", "transfer", "GN", *ADDED_UNET),
    4: ("BN", "direct", "GN", *ADDED_UNET),
}
PAPER = numbers(
    [
        *({"batch": 1, "column": c} for c in ("BN", "standard", "direct", "transfer")),
        *({"batch": 4, "column": c} for c in ("BN", "direct")),
    ],
    {
        "PCCNN": (32.4, 13.3, 65.1, 63.6, 65.7, 62.6),
        "KPConvN": (33.9, 52.5, 66.1, 64.9, 66.0, 67.7),
        "MCConv": (40.3, 58.8, 67.4, 67.9, 66.1, 65.1),
        "PointConv": (41.4, 1.6, 62.3, 61.7, 64.2, 62.5),
        "SPHConv": (28.1, 46.4, 60.7, 60.6, 59.5, 60.1),
    },
)
ONE = {"batch": 1}
CLAIMS = [
    Claim(
        "batch norm fails on one cloud per batch: direct is 10 points ahead",
        {**ONE, "column": "direct"},
        {**ONE, "column": "BN"},
        margin=0.1,
    ),
    Claim("direct is ahead of standard", {**ONE, "column": "direct"}, {**ONE, "column": "standard"}),
    Claim("transfer is ahead of standard", {**ONE, "column": "transfer"}, {**ONE, "column": "standard"}),
    Claim(
        "transfer is within 2 points of direct",
        {**ONE, "column": "transfer"},
        {**ONE, "column": "direct"},
        margin=-0.02,
    ),
    Claim(
        "direct on one large cloud is at least as good as batch norm on four small ones, for most methods",
        {**ONE, "column": "direct"},
        {"batch": 4, "column": "BN"},
        most=True,
    ),
    Claim(
        "norm-free on one cloud is at least as good as group norm, for most methods",
        {**ONE, "column": "norm-free"},
        {**ONE, "column": "GN"},
        most=True,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-segment",
        "Semantic segmentation: one large cloud per batch, or four small ones",
        [segmentation(options)],
        {"batch": tuple(COLUMNS), "method": PAPER_METHODS, "column": COLUMNS[1]},
        SEEDS,
        repeat=repeated(options),
        keep=lambda cell: cell["column"] in COLUMNS[cell["batch"]],
        paper=PAPER,
        paper_data="ScanNet",
        claims=CLAIMS,
        notes=["The transfer column takes a table that was made from other data."],
    )
