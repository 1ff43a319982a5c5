"""Centred draws on top of the recipe norm-free, all ten methods."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grids
from experiments.options import Options
from experiments.table_norm_free import compared

CENTRED = "norm-free, centred"
CLAIMS = {
    "norm-free is at least as good as with centred draws, less 2 points": Claim(
        "norm-free", CENTRED, margin=-0.02
    )
}


def grids(options: Options) -> Grids:
    title = "The recipe with and without centred draws"
    yield compared(options, "table-centring", title, CENTRED, CLAIMS)
