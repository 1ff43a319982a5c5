"""Public networks as a user has them, at one and two shapes per batch: what takes the place of batch norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import pointvar
from experiments.architectures import ARCHITECTURES, NORMS
from experiments.claims import Claim
from experiments.columns import COLUMNS as ALL
from experiments.grid import Cell, Grid, Grids
from experiments.networks import DenseClassifier
from experiments.options import Options
from experiments.rates import with_rates
from experiments.scenarios import dense_shapes, steady
from experiments.settings import Settings
from pointvar.train import Config, Data

NETWORKS = tuple(name for name in ARCHITECTURES if name != "PointMLP")
"""PointMLP divides by a deviation of each cloud itself, whatever its norms are."""
CHOOSING = {"network": ("PointNet++", "PointNeXt")}
"""The networks whose mean chooses the rate of a column at a batch size."""
RATES = (0.0001, 0.0003, 0.001, 0.003)
OWN: Settings = ALL["as it comes"]
COLUMNS: dict[str, Settings] = {
    "BN": OWN,
    "none": OWN,
    "GN": OWN,
    "DyT": OWN,
    "variance_init": ALL["variance_init"],
    "norm_free": OWN,
}
BRANCHES: dict[str, dict[str, Any]] = {
    "norm_free, branches share": {"residual": "scale"},
    "norm_free, branches from 0": {"residual": "zero"},
}
NORM_FREE: dict[str, dict[str, Any]] = {
    "norm_free": {},
    "norm_free, not centred": {"center": 0.0},
    **BRANCHES,
}
"""Columns whose networks ``norm_free`` takes the norms out of -> how; all but the first are of
``table-any-parts``."""
CLAIMS = {
    "at batch 2 norm_free is ahead of batch norm": Claim("norm_free", "BN", {"batch": 2}),
    **{
        f"at batch {batch} norm_free is at least as good as {name}, less 2 points": Claim(
            "norm_free", column, {"batch": batch}, margin=-0.02
        )
        for batch in (2, 1)
        for column, name in {
            "GN": "group norm",
            "DyT": "dynamic tanh",
            "none": "no norm",
            "variance_init": "variance_init",
        }.items()
    },
}


def grids(options: Options) -> Grids:
    yield from with_rates(table(options), options, CHOOSING, rates=RATES)


def table(options: Options) -> Grid:
    """The table, before rates are chosen."""
    scenario = steady(dense_shapes(options))
    return Grid(
        "table-any-network",
        "Public networks with and without norms",
        [scenario],
        {"batch": (2, 1), "network": NETWORKS, "column": tuple(COLUMNS)},
        repeat=lambda scenario, cell: cell["batch"] == 2,
        keep=lambda cell: (cell["batch"], cell["column"]) != (1, "BN"),
        more=lambda scenario, cell: {"optimizer.name": "adamw"},
        model=network,
        rows="network",
        by_column=COLUMNS,
        claims=CLAIMS,
        notes=[
            "Networks of published structure and small widths (experiments/architectures), about a minute "
            "of one core per cell. The input is coordinates alone; there is no augmentation.",
            "No dropout: where a head drops half of its features, twice, no column learns much at batch 2 in "
            "so few steps.",
            "BN, GN and DyT (dynamic tanh): all norms of a network are of that kind. none: it has no norms. "
            "variance_init: none, with the weights of all layers drawn. norm_free: BN after "
            "pointvar.norm_free.",
            "Batch norm in a head cannot train on a single row, so that there is no BN at batch 1.",
            "Weight decay is for point convolutions, of which there are none here.",
            "Each column has its own rate at each batch size, chosen by the mean of "
            f"{' and '.join(CHOOSING['network'])}.",
        ],
    )


def network(config: Config, data: Data, cell: Cell, generator: torch.Generator) -> nn.Module:
    """The network of a cell. ``norm_free`` is given one with batch norm, and changes it in place."""
    column, make = cell["column"], ARCHITECTURES[cell["network"]]
    norm = "BN" if column in NORM_FREE else "none" if column == "variance_init" else column
    # The layers draw from torch's global generator; ``fit`` puts it back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        made = make(len(data.classes), NORMS[norm])
        for part in made.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        if column in NORM_FREE:
            pointvar.norm_free(made, calibration(config, data), **NORM_FREE[column])
    return DenseClassifier(made)


def calibration(config: Config, data: Data) -> list[torch.Tensor]:
    """Batches of training points, as many and as large as other initialisations get, ``[B, N, 3]``."""
    count, size = config.init.batches, config.data.batch_size
    chosen = [data.train[i].points for i in range(min(count * size, len(data.train)))]
    return list(torch.stack(chosen).split(size))
