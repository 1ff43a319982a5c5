"""PointConv's own network: batch norm on eight small clouds, or direct weights on one large cloud at a time.

The paper has clouds of 6,000 and of 16,000 points; here spheres are as large as to hold about so many.
"""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim
from pointvar.experiments.columns import ADDED_UNET, Settings
from pointvar.experiments.grid import Cell, Table, repeated
from pointvar.experiments.networks import pointconv_net
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import Scenario, segmentation

SEEDS = 3
CROPS = {"paper": 3000, "laptop": 80}
LARGE = {"paper": (16_000 / 120_000) ** 0.5, "laptop": 1.0}
"""Radii of the large clouds in units of those of the U-Net; points grow with the square, on surfaces."""
SMALL = (6_000 / 16_000) ** 0.5
PAPER = [
    ({"batch": 8, "column": "BN"}, 57.7),
    ({"batch": 1, "column": "direct"}, 59.3),
    ({"batch": 1, "column": "standard"}, 1.7),
    ({"batch": 1, "column": "BN"}, 30.5),
]
ONE = {"batch": 1}
CLAIMS = [
    Claim(
        "direct on one large cloud is at least as good as batch norm on eight small ones",
        {**ONE, "column": "direct"},
        {"batch": 8, "column": "BN"},
    ),
    Claim(
        "without a norm, standard weights do not train: direct has twice their IoU",
        {**ONE, "column": "direct"},
        {**ONE, "column": "standard"},
        factor=2,
    ),
    Claim(
        "batch norm fails on one cloud at a time: direct is 10 points ahead",
        {**ONE, "column": "direct"},
        {**ONE, "column": "BN"},
        margin=0.1,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    def settings(scenario: Scenario, cell: Cell) -> Settings:
        large = cell["batch"] == 1
        scale = LARGE[options.preset] * (1 if large else SMALL)
        spheres = {key: scale * scenario.batches[1]["data"][key] for key in ("radius", "context")}
        return {
            "data": {**spheres, "crops": CROPS[options.preset]},
            "model": {"network": "pointconv", "first_reach": None},
            "optimizer": {"accumulate": 8 if large else 1},
        }

    yield Table(
        "pointconv-architecture",
        "PointConv's own network: one large cloud at a time, gradients of eight, or eight small clouds",
        [segmentation(options)],
        {"batch": (1, 8), "method": ("PointConv",), "column": ("direct", "BN", "standard", *ADDED_UNET)},
        SEEDS,
        repeat=repeated(options),
        keep=lambda cell: cell["batch"] == 1 or cell["column"] == "BN",
        settings=settings,
        model=lambda config, data, cell, generator: pointconv_net(config, data, generator, options.preset),
        paper=PAPER,
        paper_data="ScanNet",
        claims=CLAIMS,
    )
