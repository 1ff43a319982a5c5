"""PointConv's own network: batch norm on eight small clouds, or direct weights on one large cloud at a time.

The paper has clouds of 6,000 and of 16,000 points; here spheres are as large as to hold about so many.
"""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Cell, Grid, Grids
from experiments.networks import pointconv_net
from experiments.options import Options
from experiments.scenarios import Scenario, segmentation
from experiments.settings import Settings

CROPS = {"paper": 3000, "laptop": 80}
LARGE = {"paper": (16_000 / 120_000) ** 0.5, "laptop": 1.0}
"""Radii of the large clouds in units of those of the U-Net; points grow with the square, on surfaces."""
SMALL = (6_000 / 16_000) ** 0.5
ONE = {"batch": 1}
CLAIMS = {
    "direct on one large cloud is at least as good as batch norm on eight small ones": Claim(
        {**ONE, "column": "direct"}, {"batch": 8, "column": "BN"}
    ),
    "without a norm, standard weights do not train: direct has twice their IoU": Claim(
        "direct", "standard", ONE, factor=2
    ),
    "batch norm fails on one cloud at a time: direct is 10 points ahead": Claim(
        "direct", "BN", ONE, margin=0.1
    ),
}


def grids(options: Options) -> Grids:
    def settings(scenario: Scenario, cell: Cell) -> Settings:
        large = cell["batch"] == 1
        scale = LARGE[options.preset] * (1 if large else SMALL)
        return {
            **{name: scale * scenario.batches[1][name] for name in ("data.radius", "data.context")},
            "data.crops": CROPS[options.preset],
            "model.network": "pointconv",
            "model.first_reach": None,
            "optimizer.accumulate": 8 if large else 1,
        }

    yield Grid(
        "pointconv-architecture",
        "PointConv's own network: one large cloud at a time, gradients of eight, or eight small clouds",
        [segmentation(options)],
        {"batch": (1, 8), "method": ("PointConv",), "column": ("direct", "BN", "standard", "LSUV")},
        keep=lambda cell: cell["batch"] == 1 or cell["column"] == "BN",
        more=settings,
        model=lambda config, data, cell, generator: pointconv_net(config, data, generator, options.preset),
        claims=CLAIMS,
    )
