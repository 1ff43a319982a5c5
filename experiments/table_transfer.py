"""Weights from tables of z of every other data set that is there, against direct ones."""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.claims import Claim
from experiments.columns import PAPER_METHODS
from experiments.figures import NEIGHBORS, thinned
from experiments.grid import Cell, Grid, Grids
from experiments.options import Options
from experiments.scenarios import Scenario, everything
from experiments.settings import Settings, configuration
from pointvar.data import Sample, crop_sphere
from pointvar.init import compute_table

CLOUDS, DEPTH, CHANNELS, REPEATS = 16, 25, 64, 2
BATCH = {"accuracy": 4, "mean_iou": 1}
FAMILY = {"ModelNet10": "ModelNet", "ModelNet40": "ModelNet"}
"""Sets that have shapes in common count as one: no weights come from a table of the same data."""


def grids(options: Options) -> Grids:
    scenarios = everything(options)
    sources = [s.name for s in scenarios if s.name != "ModelNet10"]
    folder = options.output / "table-transfer"
    if not options.report:
        for scenario in scenarios:
            if scenario.name in sources:
                make_table(scenario, folder / f"{scenario.name}.json")

    def settings(scenario: Scenario, cell: Cell) -> Settings:
        direct = cell["source"] == "direct"
        table = {"init.method": "transfer", "init.table": str(folder / f"{cell['source']}.json")}
        return {**scenario.batch(BATCH[scenario.metric]), **({"init.method": "direct"} if direct else table)}

    def other(cell: Cell) -> bool:
        data, source = cell["data"], cell["source"]
        return FAMILY.get(data, data) != FAMILY.get(source, source)

    yield Grid(
        "table-transfer",
        "Weights from tables of other data",
        scenarios,
        {"method": PAPER_METHODS, "source": ("direct", *sources)},
        seeds=1,
        keep=other,
        more=settings,
        columns="source",
        claims={
            f"a table of {source} is within 2 points of direct for most data and methods": Claim(
                {"source": source}, {"source": "direct"}, margin=-0.02, most=True
            )
            for source in sources
        },
        notes=[
            f"Tables: {DEPTH} layers of {CHANNELS} features, {CLOUDS} clouds, mean of {REPEATS} networks."
        ],
    )


def make_table(scenario: Scenario, path: Path) -> None:
    """Measures z on the training data of a scenario, unless it was done before."""
    if path.exists():
        return
    print(f"table of {scenario.name}: {path}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    config = configuration(scenario.settings)
    samples = scenario.load(config).train
    chosen = [samples[i % len(samples)] for i in range(CLOUDS)]
    if config.model.network == "unet":
        chosen = [_sphere(scene, config.data.context, seed) for seed, scene in enumerate(chosen)]
    radius = (config.model.radii or [0.1])[0]
    batch = thinned([(s.points, s.features) for s in chosen], radius)
    table = compute_table(
        scenario.name,
        [batch],
        PAPER_METHODS,
        depth=DEPTH,
        channels=CHANNELS,
        max_neighbors=NEIGHBORS,
        repeats=REPEATS,
        provenance={"data": scenario.text, "clouds": CLOUDS, "radius": f"Poisson disk {radius}"},
    )
    table.save(path)


def _sphere(scene: Sample, radius: float, seed: int) -> Sample:
    centre = torch.randint(len(scene), (), generator=torch.Generator().manual_seed(seed))
    return crop_sphere(scene, scene.points[int(centre)], radius, radius).sample
