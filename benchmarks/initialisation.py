"""What variance-aware initialisation costs, in forward passes over the same clouds.

    python benchmarks/initialisation.py [--markdown docs/performance.md]

One packed batch: the classifier for ScanObjectNN, shapes of 1,024 points, geometry computed beforehand for
both sides. Several batches: weights as ``norm_free`` draws them, centred and exact, of that classifier and of
a PointNeXt that is not ours (experiments/architectures), whose geometry is part of its passes.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import harness
import torch

import pointvar as pv
from pointvar.data import Shapes, collate

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "initialisation.json"
MOST = 1.4  # forward passes
COLUMNS = {
    "method": "method",
    "clouds": "clouds",
    "forward": "forward pass (ms)",
    "init": "initialisation (ms)",
    "draw": "of which random numbers (ms)",
    "passes": "in forward passes",
    "target": "at most",
    "met": "met",
}


def measure(method: str, clouds: int, repeats: int, budget: float) -> dict[str, Any]:
    shapes = Shapes(clouds)
    batch = collate([shapes[i] for i in range(clouds)])
    model = pv.models.preset("scanobjectnn", num_classes=15, method=method).train()
    levels = model.hierarchy(batch.cloud, generator=torch.Generator().manual_seed(0))
    inputs = (batch.features, levels)

    def forward() -> Any:
        with torch.no_grad():
            return model(*inputs)

    def initialise() -> Any:
        return pv.variance_init(model, inputs)

    weights = [torch.empty_like(block.convolution.weight) for block in model.blocks]

    def draw() -> Any:
        for weight in weights:
            weight.normal_()

    tasks = {"forward": forward, "draw": draw, "init": initialise}
    times = harness.interleaved(tasks, repeats, budget)
    ratio = times["init"] / times["forward"]
    return {
        "method": method,
        "clouds": clouds,
        **times,
        "passes": ratio,
        "target": MOST,
        "met": ratio <= MOST,
    }


SEVERAL = 1.5  # forward passes per batch
BATCHES = {
    "network": "network",
    "batches": "batches",
    "clouds": "clouds in each",
    "forward": "forward passes of all (ms)",
    "init": "centred and exact (ms)",
    "passes": "in forward passes",
    "target": "at most",
    "met": "met",
}


def classifier(method: str, batches: int, clouds: int) -> tuple[Any, list[Any]]:
    model = pv.models.preset("scanobjectnn", num_classes=15, method=method).train()
    shapes = Shapes(batches * clouds)
    packed = [collate([shapes[i * clouds + j] for j in range(clouds)]) for i in range(batches)]
    return model, [(batch.features, model.hierarchy(batch.cloud)) for batch in packed]


def pointnext(batches: int, clouds: int) -> tuple[Any, list[Any]]:
    sys.path.append(str(HERE.parent))
    from experiments.architectures import ARCHITECTURES

    model = ARCHITECTURES["PointNeXt"](15)
    pv.nn.remove_norms(model)
    points = torch.stack([shape.points for shape in Shapes(batches * clouds)])
    return model, list(points.split(clouds))


def measure_several(name: str, batches: int, clouds: int, repeats: int, budget: float) -> dict[str, Any]:
    made = pointnext(batches, clouds) if name == "PointNeXt" else classifier(name, batches, clouds)
    model, inputs = made

    def forward() -> None:
        with torch.no_grad():
            for batch in inputs:
                model(*batch) if isinstance(batch, tuple) else model(batch)

    def initialise() -> Any:
        return pv.variance_init(model, inputs, exact=True, center="auto")

    times = harness.interleaved({"forward": forward, "init": initialise}, repeats, budget)
    ratio = times["init"] / times["forward"]
    sizes = {"batches": batches, "clouds": clouds}
    return {"network": name, **sizes, **times, "passes": ratio, "target": SEVERAL, "met": ratio <= SEVERAL}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=list(pv.methods.METHODS))
    parser.add_argument("--clouds", type=int, nargs="+", default=[16, 64], help="clouds in the batch")
    parser.add_argument("--only-batches", action="store_true", help="measure several batches alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds per side")
    parser.add_argument("--markdown", type=Path, help="only put the stored table into this document")
    arguments = parser.parse_args()
    if arguments.markdown:
        stored = json.loads(RESULTS.read_text())
        harness.fill(arguments.markdown, "initialisation", harness.table(stored["rows"], COLUMNS))
        harness.fill(arguments.markdown, "initialisation-batches", harness.table(stored["batches"], BATCHES))
        return
    harness.use_threads(arguments.threads)
    load, rows, several = harness.busy(), [], []
    stored: dict[str, Any] = {"machine": harness.machine(), "load": load, "rows": rows}
    if arguments.only_batches:
        stored = json.loads(RESULTS.read_text())
    stored |= {"batches": several, "batches_load": load}
    for method, clouds in product(() if arguments.only_batches else arguments.methods, arguments.clouds):
        harness.say(f"{method}, {clouds} clouds")
        rows.append(measure(method, clouds, arguments.repeats, arguments.budget))
        harness.save(stored, RESULTS)
    for name in ("MCConv", "KPConvN", "PointNeXt"):
        harness.say(f"{name}, 8 batches of 16 clouds")
        several.append(measure_several(name, 8, 16, arguments.repeats, arguments.budget))
        harness.save(stored, RESULTS)
    print(harness.table(stored["rows"], COLUMNS), harness.table(several, BATCHES), sep="\n\n")


if __name__ == "__main__":
    main()
