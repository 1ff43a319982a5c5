"""The recipe norm-free without each of its parts: which of them pay; SGD and AdamW, with norms and not."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.columns import PARTS
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.rates import Rates, with_rates
from experiments.table_norm_free import BATCHES, CHOOSING, REPEATED, planned, shapes_and_scans
from pointvar.train import RECIPES

WITHOUT = tuple(f"norm-free without {part}" for part in PARTS)
OPTIMISERS = ("norm-free, SGD", "BN, AdamW", "GN, AdamW")
CLAIMS = {
    f"norm-free is at least as good as {column}, for most methods": Claim("norm-free", column, most=True)
    for column in (*WITHOUT, *OPTIMISERS)
}


def grids(options: Options) -> Grids:
    scenarios = shapes_and_scans(options)
    rate = RECIPES["norm-free"]["optimizer"]["rate"]
    places = [(scenario.name, batch) for scenario in scenarios for batch in BATCHES[scenario.metric]]
    known: Rates = {(*place, column): rate for place in places for column in ("norm-free", *WITHOUT)}
    grid = Grid(
        "table-parts",
        "The recipe without each of its parts",
        scenarios,
        {"batch": (1, 2, 16), "method": REPEATED, "column": ("norm-free", *WITHOUT, *OPTIMISERS)},
        seeds=1,
        keep=lambda cell: planned(scenarios, cell),
        claims=CLAIMS,
        notes=["What is left of the recipe keeps its rate; the other columns have rates of their own."],
    )
    yield from with_rates(grid, options, CHOOSING, known)
