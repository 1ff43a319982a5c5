"""What variance-aware initialisation costs: one packed batch against forward passes over the same clouds.

    python benchmarks/initialisation.py [--markdown docs/performance.md]

The classifier for ScanObjectNN, shapes of 1,024 points, geometry computed beforehand for both sides.
"""

from __future__ import annotations

import argparse
import json
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=list(pv.methods.METHODS))
    parser.add_argument("--clouds", type=int, nargs="+", default=[16, 64], help="clouds in the batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds per side")
    parser.add_argument("--markdown", type=Path, help="only put the stored table into this document")
    arguments = parser.parse_args()
    if arguments.markdown:
        rows = json.loads(RESULTS.read_text())["rows"]
        harness.fill(arguments.markdown, "initialisation", harness.table(rows, COLUMNS))
        return
    harness.use_threads(arguments.threads)
    load, rows = harness.busy(), []
    for method, clouds in product(arguments.methods, arguments.clouds):
        harness.say(f"{method}, {clouds} clouds")
        rows.append(measure(method, clouds, arguments.repeats, arguments.budget))
        harness.save({"machine": harness.machine(), "load": load, "rows": rows}, RESULTS)
    print(harness.table(rows, COLUMNS))


if __name__ == "__main__":
    main()
