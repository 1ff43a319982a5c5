"""Beyond the paper: why KPConvN is hard to train. Its hats are so wide that they are nearly one function.

The effective rank of each method's basis is drawn by ``fig-rank``: KPConvN, ConvPoint and FlexConv, the
methods that train worst, have the least. Here only the width of the hats differs.
"""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim
from pointvar.experiments.grid import Table
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import classification

SEEDS = 3
WIDE, NARROW = "as wide as KPConvN's", "as wide as KPConv's"
COLUMNS = ("direct", "GN", "norm-free")


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-overlap",
        "Hats around kernel points, wide or narrow; Monte Carlo, batches of 2",
        [classification(options)],
        {"batch": (2,), "hats": (NARROW, WIDE), "column": COLUMNS},
        SEEDS,
        settings=lambda scenario, cell: {
            "model": {"method": "KPConvN"}
            if cell["hats"] == WIDE
            else {"basis": "LinearCorrelation", "estimator": "MonteCarlo"}
        },
        rows="hats",
        claims=[
            Claim(
                f"{column}: narrow hats are 10 points ahead of wide ones",
                {"hats": NARROW, "column": column},
                {"hats": WIDE, "column": column},
                margin=0.1,
            )
            for column in COLUMNS
        ],
    )
