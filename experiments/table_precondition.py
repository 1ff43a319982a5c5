"""Preconditioned steps where they are least certain: bases that are learned, and one of four functions."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grids
from experiments.options import Options
from experiments.table_norm_free import compared

METHODS = ("ConvPoint", "PointConv", "FlexConv")
"""``table-parts`` has those that are not here; MCConv, which is learned too, is there."""
WITHOUT = "norm-free without preconditioning"
CLAIMS = {
    f"{method} is no worse with preconditioned steps, less 2 points": Claim(
        "norm-free", WITHOUT, {"method": method}, margin=-0.02
    )
    for method in METHODS
}


def grids(options: Options) -> Grids:
    title = "Learned bases with and without preconditioned steps"
    yield compared(options, "table-precondition", title, WITHOUT, CLAIMS, METHODS)
