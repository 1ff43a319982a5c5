"""The recipe norm-free without each of its parts, and with AdamW: which of them pay."""

from __future__ import annotations

from experiments import table_norm_free
from experiments.claims import Claim
from experiments.columns import PARTS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.rates import best_rates, choosing_rates, with_rates
from experiments.table_norm_free import CHOOSING, REPEATED, planned, shapes_and_scans

COLUMNS = (*(f"norm-free without {part}" for part in PARTS), "norm-free, AdamW")
CLAIMS = {
    f"norm-free is at least as good as {column}, for most methods": Claim("norm-free", column, most=True)
    for column in COLUMNS
}


def grids(options: Options) -> Grids:
    scenarios = shapes_and_scans(options)
    whole = best_rates(choosing_rates(table_norm_free.table(options), CHOOSING), options)
    known = {place: rate for place, rate in whole.items() if place[2] == "norm-free"}
    grid = Grid(
        "table-parts",
        "The recipe without each of its parts",
        scenarios,
        {"batch": (1, 2, 16), "method": REPEATED, "column": ("norm-free", *COLUMNS)},
        seeds=1,
        keep=lambda cell: planned(scenarios, cell),
        claims=CLAIMS,
    )
    yield from with_rates(grid, options, CHOOSING, known)
