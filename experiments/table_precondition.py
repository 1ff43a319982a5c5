"""Preconditioned steps where they are least certain: bases that are learned, and one of four functions."""

from __future__ import annotations

from dataclasses import replace

from experiments.claims import Claim
from experiments.grid import Grids
from experiments.options import Options
from experiments.table_norm_free import planned, table
from pointvar.train import RECIPES

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
    whole = table(options)
    rate = {"optimizer.rate": RECIPES["norm-free"]["optimizer"]["rate"]}
    yield replace(
        whole,
        name="table-precondition",
        title="Learned bases with and without preconditioned steps",
        axes={**whole.axes, "method": METHODS, "column": ("norm-free", WITHOUT)},
        seeds=1,
        keep=lambda cell: planned(whole.scenarios, cell),
        more=lambda scenario, cell: rate,
        claims=CLAIMS,
        notes=["Both columns have the rate of the recipe."],
    )
