"""Plain networks of 10, 25 and 50 layers, without pooling or skips: which initialisations train at all."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.networks import PlainClassifier
from experiments.options import Options
from experiments.scenarios import classification, one_level

DEPTHS = (10, 25, 50)
METHODS = ("PCCNN", "KPConvN", "MCConv", "SPHConv")
COLUMNS = (
    "standard",
    "Xavier",
    "LSUV",
    "direct",
    "direct + AGC",
    "unit + direct + AGC",
    "unit + closed form + AGC",
    "GN",
)
CHANNELS, RADIUS, EPOCHS = 32, 0.2, 6
CLAIMS = {
    "direct trains where standard does not, for most depths and methods: twice the accuracy": Claim(
        "direct", "standard", factor=2, most=True
    ),
    "50 layers with unit response learn as well as 10, less 5 points": Claim(
        {"column": "unit + direct + AGC", "depth": 50},
        {"column": "unit + direct + AGC", "depth": 10},
        margin=-0.05,
    ),
    "at 50 layers unit response is ahead of direct alone": Claim(
        "unit + direct + AGC", "direct", {"depth": 50}
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-depth",
        "Plain networks of 10, 25 and 50 layers",
        [classification(options)],
        {"depth": DEPTHS, "batch": (4,), "method": METHODS, "column": COLUMNS},
        more=lambda scenario, cell: one_level(CHANNELS, RADIUS, EPOCHS),
        model=lambda config, data, cell, generator: PlainClassifier(config, data, cell["depth"], generator),
        claims=CLAIMS,
        notes=[
            f"The network is {CHANNELS} features at every layer, one level of Poisson radius {RADIUS}, the "
            "mean over each cloud and a linear layer; no dropout."
        ],
    )
