"""Plain networks of 10, 25 and 50 layers, without pooling or skips: which initialisations train at all."""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.networks import PlainClassifier
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import classification, one_level

SEEDS = 3
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
CLAIMS = [
    Claim(
        "direct trains where standard does not, for most depths and methods: twice the accuracy",
        {"column": "direct"},
        {"column": "standard"},
        factor=2,
        most=True,
    ),
    Claim(
        "50 layers with unit response learn as well as 10, less 5 points",
        {"column": "unit + direct + AGC", "depth": 50},
        {"column": "unit + direct + AGC", "depth": 10},
        margin=-0.05,
    ),
    Claim(
        "at 50 layers unit response is ahead of direct alone",
        {"column": "unit + direct + AGC", "depth": 50},
        {"column": "direct", "depth": 50},
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-depth",
        "Plain networks of 10, 25 and 50 layers",
        [classification(options)],
        {"depth": DEPTHS, "batch": (4,), "method": METHODS, "column": COLUMNS},
        SEEDS,
        repeat=repeated(options),
        settings=lambda scenario, cell: one_level(CHANNELS, RADIUS, EPOCHS),
        model=lambda config, data, cell, generator: PlainClassifier(
            cell["depth"], CHANNELS, RADIUS, config, data, generator
        ),
        claims=CLAIMS,
        notes=[
            f"The network is {CHANNELS} features at every layer, one level of Poisson radius {RADIUS}, the "
            "mean over each cloud and a linear layer; no dropout."
        ],
    )
