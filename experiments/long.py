"""Data and recipes of trainings that go to the end, and the short ones that choose their rates.

Measured before the first run, in clouds per second of the time of one core, two trainings at a time: the
slowest and the fastest of the columns and methods tried, on a Xeon with AVX-512 at 2.5 GHz, the slowest
machine so far. Of AHN3 the time of an evaluation after 120 steps is included. No cell takes more than an hour
there. The length is the same for all columns.

=====================================================  ===========  ==============================
ModelNet40, 256 points, 64/128/256, batches of 2       32 to 55     10 epochs in about 50 minutes
the same, batches of 16                                93 to 98     20 epochs in about 40 minutes
ModelNet10, 1,024 points, 128/256/512, batches of 2    8 to 11      30 epochs in about 60 minutes
AHN3, spheres of 16 m, 32/64/128/256, one per batch    4 to 5       3,000 steps in about 12 minutes
=====================================================  ===========  ==============================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from experiments.options import Options
from experiments.scenarios import LAPTOP, Scenario, aerial, modelnet, rooms, shapes, with_validation
from experiments.settings import Settings

EPOCHS = {2: 10, 16: 20}
"""Of the shapes, by the number of clouds per batch."""
EPOCHS_SIZE = {2: 30}
EPOCHS_SCANS = {1: 10}
CROPS = 300
"""Spheres per epoch of a segmentation."""
LONG: Settings = {
    "data.scale": 0.1,  # as published for ModelNet40
    "init.batches": 50,
    "evaluate_every": 1,
    "logger": "none",
    "checkpoint_steps": 500,
}


def falling(epochs: int) -> Settings:
    """The rate falls twice, when it does by the published recipe for ModelNet40."""
    return {"epochs": epochs, "optimizer.milestones": [round(0.7 * epochs), round(0.9 * epochs)]}


def falling_scans(epochs: int) -> Settings:
    """The same for ScanNet."""
    milestones = [round(0.6 * epochs), round(0.8 * epochs)]
    return {"epochs": epochs, "optimizer.milestones": milestones, "optimizer.gamma": 0.25}


def shapes_long(options: Options) -> Scenario:
    """All of ModelNet40 that there is, half the width of the paper's network for ScanObjectNN."""
    path = options.file("modelnet40_256.npz")
    found = shapes(options) if path is None else modelnet(path, LAPTOP, {}, 40, 9520, 2385, 256)
    return _long(found, {"model.channels": [64, 128, 256], "model.head": 256}, EPOCHS, falling)


def shapes_short(scenario: Scenario) -> Scenario:
    """A tenth of the training data to train, another to choose by."""
    return _short(with_validation(scenario, 0.1, train=0.1), {2: falling(4), 16: falling(10)})


def shapes_size(options: Options) -> Scenario:
    """ModelNet10 and the paper's own network for ScanObjectNN."""
    path = options.file("modelnet10_small.npz")
    found = shapes(options) if path is None else modelnet(path, LAPTOP, {}, 10, 1000, 499, 1024)
    sizes = {"model.channels": [128, 256, 512], "model.head": 512, "evaluate_every": 2}
    return _long(found, sizes, EPOCHS_SIZE, falling)


def shapes_size_short(scenario: Scenario) -> Scenario:
    """Four fifths of the training data to train, the rest to choose by."""
    return _short(with_validation(scenario), {2: falling(4)})


def scans_long(options: Options) -> Scenario:
    """The aerial tile with scaled features, four levels, half the width of the paper's U-Net."""
    found = aerial(options, scaled=True) or rooms(options)
    first = found.settings["model.radii"][0]
    sizes = {"model.channels": [32, 64, 128, 256], "model.radii": [first * 2**level for level in range(4)]}
    return _long(found, {**sizes, "data.crops": CROPS}, EPOCHS_SCANS, falling_scans)


def scans_short(scenario: Scenario) -> Scenario:
    """600 steps on four fifths of the half to train on, the rest of it to choose by."""
    return _short(with_validation(scenario), {1: {**falling_scans(4), "data.crops": CROPS // 2}})


def _long(
    scenario: Scenario, settings: Settings, epochs: Mapping[int, int], lasting: Callable[[int], Settings]
) -> Scenario:
    batches = {size: lasting(count) for size, count in epochs.items()}
    changed: dict[str, Any] = {**scenario.settings, **LONG, **settings}
    return replace(scenario, settings=changed, batches=batches, preset="long")


def _short(scenario: Scenario, batches: Mapping[int, Settings]) -> Scenario:
    """So short that nothing is kept of a cell that was stopped, and evaluated once, at the end."""
    settings = {**scenario.settings, "evaluate_every": 10_000}
    return replace(scenario, settings=settings, batches=batches, preset="laptop")
