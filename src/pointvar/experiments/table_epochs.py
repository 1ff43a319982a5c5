"""Beyond the paper: is a network without normalisation worse, or only slower? The same, trained longer."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import classification

SEEDS = 3
EPOCHS = (10, 30, 90)
METHODS = ("KPConvN", "MCConv", "SPHConv")
COLUMNS = ("direct", "norm-free", "GN", "BN, not in the head")
LONG = EPOCHS[-1]
CLAIMS = [
    Claim(
        f"what direct loses to group norm in {EPOCHS[0]} epochs it regains in {LONG}: within 3 points",
        {"column": "direct", "epochs": LONG},
        {"column": "GN", "epochs": LONG},
        margin=-0.03,
    ),
    Claim(
        f"after {LONG} epochs norm-free is within 3 points of group norm",
        {"column": "norm-free", "epochs": LONG},
        {"column": "GN", "epochs": LONG},
        margin=-0.03,
    ),
    Claim(
        f"direct is 20 points better after {LONG} epochs than after {EPOCHS[0]}",
        {"column": "direct", "epochs": LONG},
        {"column": "direct", "epochs": EPOCHS[0]},
        margin=0.2,
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-epochs",
        "Slower, or worse? Batches of 2, trained longer",
        [classification(options)],
        {"batch": (2,), "epochs": EPOCHS, "method": METHODS, "column": COLUMNS},
        SEEDS,
        repeat=repeated(options, batches=()),
        settings=lambda scenario, cell: {
            "epochs": cell["epochs"],
            "optimizer": {"milestones": [round(0.8 * cell["epochs"])]},
        },
        claims=CLAIMS,
    )
