"""The recipe norm-free without each of its parts and with centred draws: what pays; SGD and AdamW."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.columns import PARTS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.rates import recipe_rates, with_rates
from experiments.table_norm_free import CHOOSING, REPEATED, planned, shapes_and_scans

CHANGED = (*(f"norm-free without {part}" for part in PARTS), "norm-free, centred")
OPTIMISERS = ("norm-free, SGD", "BN, AdamW", "GN, AdamW")
CLAIM = "norm-free is at least as good as {column}, for most methods"
CLAIMS = {
    CLAIM.format(column=column): Claim("norm-free", column, most=True) for column in (*CHANGED, *OPTIMISERS)
}


def grids(options: Options) -> Grids:
    scenarios = shapes_and_scans(options)
    grid = Grid(
        "table-parts",
        "The recipe without each of its parts, and with one more",
        scenarios,
        {"batch": (1, 2, 16), "method": REPEATED, "column": ("norm-free", *CHANGED, *OPTIMISERS)},
        seeds=1,
        keep=lambda cell: planned(scenarios, cell),
        claims=CLAIMS,
    )
    yield from with_rates(grid, options, CHOOSING, recipe_rates(grid, ("norm-free", *CHANGED)))
