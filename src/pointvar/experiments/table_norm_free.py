"""Beyond the paper: all ten methods without any normalisation of features, against group and batch norm.

First the learning rate of each column is chosen, for each data set, from the same few on a part of the
training data that is kept apart; then every method is trained with it and tested. Test data choose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim, summarise
from pointvar.experiments.columns import Settings
from pointvar.experiments.grid import Cell, Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import Scenario, classification, segmentation, with_validation
from pointvar.experiments.store import Store
from pointvar.methods import METHODS

SEEDS = 3
REPEATED = ("MCConv", "KPConvN", "PCCNN", "SPHConv")
RATES = (0.003, 0.01, 0.03)
CHOOSING = ("KPConvN", "MCConv")
"""The methods whose mean on the validation data chooses a rate, at batches of 2."""
BATCHES = (1, 2, 16)
AHEAD, CLOSED = "unit + direct + AGC", "unit + closed form + AGC"
BETTER = {column: f"orthonormal + {column}" for column in (AHEAD, CLOSED, "GN")}
"""With bases whose functions do not overlap."""
COLUMNS = ("direct", "direct + AGC", AHEAD, CLOSED, "GN", "BN", *BETTER.values())
CLAIMS = [
    Claim(
        f"{AHEAD} is at least as good as group norm, less 2 points",
        {"column": AHEAD},
        {"column": "GN"},
        margin=-0.02,
    ),
    Claim(f"{AHEAD} is ahead of group norm in most cells", {"column": AHEAD}, {"column": "GN"}, most=True),
    Claim(f"{AHEAD} is ahead of direct in most cells", {"column": AHEAD}, {"column": "direct"}, most=True),
    Claim(
        f"at batch 16 {AHEAD} is within 2 points of batch norm",
        {"column": AHEAD, "batch": 16},
        {"column": "BN", "batch": 16},
        margin=-0.02,
    ),
    Claim(
        "no data are needed: the closed form is within 2 points of direct",
        {"column": CLOSED},
        {"column": AHEAD},
        margin=-0.02,
    ),
    *(
        Claim(
            f"{better} is ahead of {column} in most cells", {"column": better}, {"column": column}, most=True
        )
        for column, better in BETTER.items()
    ),
    Claim(
        "with orthonormal bases, no norm is ahead of group norm in most cells",
        {"column": BETTER[AHEAD]},
        {"column": BETTER["GN"]},
        most=True,
    ),
    Claim(
        "with orthonormal bases, no norm at batch 16 is within 2 points of batch norm",
        {"column": BETTER[AHEAD], "batch": 16},
        {"column": "BN", "batch": 16},
        margin=-0.02,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    scenarios = [classification(options), segmentation(options)]
    choice = Table(
        "table-norm-free-rates",
        "Learning rates on a part of the training data",
        [with_validation(scenario) for scenario in scenarios],
        {"batch": (2,), "method": CHOOSING, "column": COLUMNS, "rate": RATES},
        seeds=1,
        settings=lambda scenario, cell: {"optimizer": {"rate": cell["rate"]}},
        columns="rate",
        rows="column",
        notes=["Nothing here is measured on test data."],
        command="table-norm-free",
        whole=True,
    )
    yield choice
    chosen = best_rates(choice, Store(options.output / f"{choice.name}.jsonl"))

    def rate(scenario: Scenario, cell: Cell) -> Settings:
        return {"optimizer": {"rate": chosen[cell["data"], cell["column"]]}}

    headed = {scenario.name for scenario in scenarios if scenario.metric == "accuracy"}
    yield Table(
        "table-norm-free",
        "All methods without normalisation of features",
        scenarios,
        {"batch": BATCHES, "method": tuple(METHODS), "column": COLUMNS},
        SEEDS,
        repeat=repeated(options, REPEATED, BATCHES),
        keep=lambda cell: not (cell["column"] == "BN" and cell["batch"] == 1 and cell["data"] in headed),
        settings=rate,
        claims=CLAIMS,
        notes=[
            "Batch norm in the head of a classifier cannot see a batch of one cloud.",
            f"Rates, each the best of {', '.join(f'{r:g}' for r in RATES)} on validation data: "
            + ", ".join(f"{data} {column} {value:g}" for (data, column), value in chosen.items()),
        ],
    )


def best_rates(table: Table, store: Store) -> dict[tuple[str, str], float]:
    """The rate with the best mean over the choosing methods, by data set and column."""
    summaries = summarise(store.done(table)[0], {s.name: s.metric for s in table.scenarios})
    best: dict[tuple[str, str], float] = {}
    for scenario in table.scenarios:
        for column in COLUMNS:
            means = {
                rate: sum(
                    s.mean
                    for s in summaries
                    if (s.group["data"], s.group["column"], s.group["rate"]) == (scenario.name, column, rate)
                )
                for rate in RATES
            }
            best[scenario.name, column] = max(means, key=lambda rate: means[rate])
    return best
