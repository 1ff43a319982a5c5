"""Weights from tables of z of every other data set that is there, against direct ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from pointvar.data import Sample, crop_sphere
from pointvar.experiments.claims import Claim
from pointvar.experiments.clouds import NEIGHBORS, REACH, thinned
from pointvar.experiments.columns import PAPER_METHODS, Settings
from pointvar.experiments.grid import Cell, Table, repeated
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import Scenario, everything
from pointvar.init import compute_table
from pointvar.progress import track

SEEDS = 1
CLOUDS, DEPTH, CHANNELS, REPEATS = 16, 25, 64, 2
BATCH = {"accuracy": 4, "mean_iou": 1}
FAMILY = {"ModelNet10": "ModelNet", "ModelNet40": "ModelNet"}
"""Sets that have shapes in common count as one: no weights come from a table of the same data."""


def tables(options: Options) -> Iterator[Table]:
    scenarios = everything(options)
    sources = [s.name for s in scenarios if s.name != "ModelNet10"]
    folder = options.output / "table-transfer"
    if not options.report:
        for scenario in scenarios:
            if scenario.name in sources:
                make_table(scenario, folder / f"{scenario.name}.json")

    def settings(scenario: Scenario, cell: Cell) -> Settings:
        direct = cell["source"] == "direct"
        table = {"method": "transfer", "table": str(folder / f"{cell['source']}.json")}
        return {**scenario.batch(BATCH[scenario.metric]), "init": {"method": "direct"} if direct else table}

    def other(cell: Cell) -> bool:
        data, source = cell["data"], cell["source"]
        return FAMILY.get(data, data) != FAMILY.get(source, source)

    yield Table(
        "table-transfer",
        "Weights from tables of other data",
        scenarios,
        {"method": PAPER_METHODS, "source": ("direct", *sources)},
        SEEDS,
        repeat=repeated(options),
        keep=other,
        settings=settings,
        columns="source",
        claims=[
            Claim(
                f"a table of {source} is within 2 points of direct for most data and methods",
                {"source": source},
                {"source": "direct"},
                margin=-0.02,
                most=True,
            )
            for source in sources
        ],
        notes=[
            f"Tables: {DEPTH} layers of {CHANNELS} features, {CLOUDS} clouds, mean of {REPEATS} networks."
        ],
    )


def make_table(scenario: Scenario, path: Path) -> None:
    """Measures z on the training data of a scenario, unless it was done before."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    config = Table("", "", [scenario], {}, 1).config({"data": scenario.name, "seed": 0})
    samples = scenario.load(config).train
    chosen = [samples[i % len(samples)] for i in range(CLOUDS)]
    if config.model.network == "unet":
        chosen = [_sphere(scene, config.data.context, seed) for seed, scene in enumerate(chosen)]
    radius = (config.model.radii or [0.1])[0]
    batch = thinned([(s.points, s.features) for s in chosen], 0, radius, REACH, NEIGHBORS)
    table = compute_table(
        scenario.name,
        [batch],
        PAPER_METHODS,
        depth=DEPTH,
        channels=CHANNELS,
        max_neighbors=NEIGHBORS,
        repeats=REPEATS,
        provenance={"data": scenario.text, "clouds": CLOUDS, "radius": f"Poisson disk {radius}"},
        progress=lambda rows: track(rows, f"table of {scenario.name}"),
    )
    part = path.with_suffix(f".{os.getpid()}")  # whole or not there, also for others that run the same
    table.save(part)
    part.replace(path)


def _sphere(scene: Sample, radius: float, seed: int) -> Sample:
    centre = torch.randint(len(scene), (), generator=torch.Generator().manual_seed(seed))
    return crop_sphere(scene, scene.points[int(centre)], radius, radius).sample
