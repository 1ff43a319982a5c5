"""Beyond the paper: is a network without normalisation worse, or only slower? The same, trained longer."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grid, Grids, on_a_laptop
from experiments.options import Options
from experiments.scenarios import classification, lasting

EPOCHS = (10, 30, 90)
METHODS = ("KPConvN", "MCConv", "SPHConv")
COLUMNS = ("direct", "norm-free", "GN", "BN, not in the head")
LONG = EPOCHS[-1]
CLAIMS = {
    f"what direct loses to group norm in {EPOCHS[0]} epochs it regains in {LONG}: within 3 points": Claim(
        "direct", "GN", {"epochs": LONG}, margin=-0.03
    ),
    f"after {LONG} epochs norm-free is within 3 points of group norm": Claim(
        "norm-free", "GN", {"epochs": LONG}, margin=-0.03
    ),
    f"direct is 20 points better after {LONG} epochs than after {EPOCHS[0]}": Claim(
        {"column": "direct", "epochs": LONG}, {"column": "direct", "epochs": EPOCHS[0]}, margin=0.2
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-epochs",
        "Slower, or worse? Batches of 2, trained longer",
        [classification(options)],
        {"batch": (2,), "epochs": EPOCHS, "method": METHODS, "column": COLUMNS},
        repeat=on_a_laptop(batches=()),
        more=lambda scenario, cell: lasting(cell["epochs"]),
        claims=CLAIMS,
    )
