"""Seconds that an initialisation takes, and that an epoch of training takes."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from experiments.columns import PAPER_METHODS
from experiments.grid import Cell, Grid, Grids, Outcome, outcome
from experiments.options import Options
from experiments.scenarios import classification, segmentation
from pointvar.train import Config, Data, fit

COLUMNS = ("direct", "LSUV", "epoch")
BATCH = {"accuracy": 16, "mean_iou": 1}
"""Clouds per batch, by the scenario's metric: as in the paper."""


def measure(config: Config, data: Data, cell: Cell, model: nn.Module | None = None) -> Outcome:
    """One epoch: what its initialisation takes, and what the rest takes."""
    result = fit(replace(config, epochs=1, evaluate_every=2, votes=1, output=None), data, verbose=False)
    found = outcome(result, data)
    return {**found, "shown": found["seconds" if cell["measured"] == "epoch" else "init_seconds"]}


def grids(options: Options) -> Grids:
    scenarios = [classification(options), segmentation(options)]
    epochs = ", ".join(
        f"{s.name} {s.batch(BATCH[s.metric]).get('epochs', s.settings.get('epochs'))}" for s in scenarios
    )
    yield Grid(
        "init-time",
        "Seconds of the initialisation, and of an epoch of training",
        scenarios,
        {"method": PAPER_METHODS, "measured": COLUMNS},
        more=lambda scenario, cell: {
            **scenario.batch(BATCH[scenario.metric]),
            "init.method": {"epoch": "direct"}.get(cell["measured"], cell["measured"].lower()),
        },
        repeat=lambda scenario, cell: True,
        run=measure,
        measure="shown",
        columns="measured",
        notes=[
            f"Epochs of a whole training: {epochs}.",
            "The paper: 6.1 s of 4 h on ScanObjectNN, 47.5 s of 3 days on ScanNet, on a GPU.",
        ],
    )
