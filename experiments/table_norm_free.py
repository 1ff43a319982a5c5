"""Beyond the paper: all ten methods without any normalisation of features, against group and batch norm.

First the learning rate of each column is chosen, for each data set, from the same few on a part of the
training data that is kept apart; then every method is trained with it and tested. Test data choose nothing.
"""

from __future__ import annotations

from experiments.claims import Claim, summarise
from experiments.grid import Grid, Grids, on_a_laptop
from experiments.options import Options
from experiments.scenarios import classification, segmentation, with_validation
from experiments.store import Store
from pointvar.methods import METHODS

REPEATED = ("MCConv", "KPConvN", "PCCNN", "SPHConv")
RATES = (0.003, 0.01, 0.03)
CHOOSING = ("KPConvN", "MCConv")
"""The methods whose mean on the validation data chooses a rate, at batches of 2."""
BATCHES = (1, 2, 16)
AHEAD, CLOSED = "unit + direct + AGC", "unit + closed form + AGC"
BETTER = {column: f"orthonormal + {column}" for column in (AHEAD, CLOSED, "GN")}
"""With bases whose functions do not overlap."""
COLUMNS = ("direct", "direct + AGC", AHEAD, CLOSED, "GN", "BN", *BETTER.values())
CLAIMS = {
    f"{AHEAD} is at least as good as group norm, less 2 points": Claim(AHEAD, "GN", margin=-0.02),
    f"{AHEAD} is ahead of group norm in most cells": Claim(AHEAD, "GN", most=True),
    f"{AHEAD} is ahead of direct in most cells": Claim(AHEAD, "direct", most=True),
    f"at batch 16 {AHEAD} is within 2 points of batch norm": Claim(AHEAD, "BN", {"batch": 16}, margin=-0.02),
    "no data are needed: the closed form is within 2 points of direct": Claim(CLOSED, AHEAD, margin=-0.02),
    **{
        f"{better} is ahead of {column} in most cells": Claim(better, column, most=True)
        for column, better in BETTER.items()
    },
    "with orthonormal bases, no norm is ahead of group norm in most cells": Claim(
        BETTER[AHEAD], BETTER["GN"], most=True
    ),
    "with orthonormal bases, no norm at batch 16 is within 2 points of batch norm": Claim(
        BETTER[AHEAD], "BN", {"batch": 16}, margin=-0.02
    ),
}


def grids(options: Options) -> Grids:
    scenarios = [classification(options), segmentation(options)]
    choice = Grid(
        "table-norm-free-rates",
        "Learning rates on a part of the training data",
        [with_validation(scenario) for scenario in scenarios],
        {"batch": (2,), "method": CHOOSING, "column": COLUMNS, "rate": RATES},
        seeds=1,
        more=lambda scenario, cell: {"optimizer.rate": cell["rate"]},
        columns="rate",
        rows="column",
        notes=["Nothing here is measured on test data."],
        command="table-norm-free",
        whole=True,
    )
    yield choice
    chosen = best_rates(choice, Store(options.output / f"{choice.name}.jsonl"))
    headed = {scenario.name for scenario in scenarios if scenario.metric == "accuracy"}
    yield Grid(
        "table-norm-free",
        "All methods without normalisation of features",
        scenarios,
        {"batch": BATCHES, "method": tuple(METHODS), "column": COLUMNS},
        repeat=on_a_laptop(REPEATED, BATCHES),
        keep=lambda cell: not (cell["column"] == "BN" and cell["batch"] == 1 and cell["data"] in headed),
        more=lambda scenario, cell: {"optimizer.rate": chosen[cell["data"], cell["column"]]},
        claims=CLAIMS,
        notes=[
            "Batch norm in the head of a classifier cannot see a batch of one cloud.",
            f"Rates, each the best of {', '.join(f'{r:g}' for r in RATES)} on validation data: "
            + ", ".join(f"{data} {column} {value:g}" for (data, column), value in chosen.items()),
        ],
    )


def best_rates(grid: Grid, store: Store) -> dict[tuple[str, str], float]:
    """The rate with the best mean over the choosing methods, by data set and column."""
    records, _ = grid.done(store)
    numbers = summarise(records, ["data", "column", "rate"], {s.name: s.metric for s in grid.scenarios})
    means = numbers.set_index(["data", "column", "rate"])["mean"].to_dict()
    return {
        (scenario.name, column): max(RATES, key=lambda rate: means.get((scenario.name, column, rate), 0.0))
        for scenario in grid.scenarios
        for column in COLUMNS
    }
