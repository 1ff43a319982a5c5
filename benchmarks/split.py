"""Where the time of a training step goes: kernels, matrix products, and what stands around them.

    python benchmarks/split.py                                  # stores results/split.json
    python benchmarks/split.py --markdown docs/performance.md   # puts the stored table into the page

Nothing looks into the step while it is measured; its time is taken apart by comparison.

    matrix products   those of the convolutions, of the same sizes, alone: one forward, two backward
    dispatch, Python  the same step with next to nothing to compute, and the share of torch's operators in it
    kernels           what is left of forward and backward pass: projection, basis, activations
    Lightning         what a step of `fit` takes more than the same step in a plain loop
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import harness
import lightning.pytorch as lightning
import torch
from steps import Step
from torch.profiler import ProfilerActivity, profile
from training import Timed

from pointvar.data import Shapes
from pointvar.train import ClassificationModule, Config, Data, Loader, fit, load_config
from pointvar.train.build import build_model
from pointvar.train.loader import loaders

Row = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results" / "split.json"
CASES = ["small", "paper-2"]
STEPS = 60  # of a training with Lightning and of one without


def products(step: Step) -> list[harness.Task]:
    """All matrix products of the convolutions of a step, into memory that is there."""
    result = []
    for number, (_, rows, inputs, outputs) in enumerate(step.sizes(0)):
        phi, weight, gradient = (
            torch.randn(shape) for shape in ((rows, inputs), (inputs, outputs), (rows, outputs))
        )
        result += [(phi, weight), (phi.T, gradient)]
        if number:  # input features have no gradients
            result.append((gradient, weight.T))
    return [partial(torch.mm, a, b, out=torch.mm(a, b)) for a, b in result]


def share_of_operators(step: Step) -> float:
    """How much of a step is spent in torch's operators, Python and custom operators apart."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        begin = time.perf_counter()
        for number in range(20):
            for _ in step.parts(number):
                pass
        elapsed = time.perf_counter() - begin
    own = sum(e.self_cpu_time_total for e in recorded.key_averages() if e.key.startswith("aten::"))
    return own / 1e6 / elapsed


def in_lightning(case: str) -> float:
    """Milliseconds that a step of ``fit`` takes more than the same step in a plain loop; medians."""
    widths = {} if case == "small" else {"channels": [128, 256, 512], "head": 512}
    settings = {
        "data": {"batch_size": 2, "train_size": 2 * STEPS, "test_size": 2},
        "model": {"unit_response": True, **widths},
        "init": {"method": "none"},
        "optimizer": {"agc": 0.05, "rate": 1e-5},
    }
    config: Config = load_config("shapes", {**settings, "epochs": 1, "votes": 1, "threads": 1})
    shapes = Shapes(2 * STEPS, num_points=512, seed=1)
    samples = [shapes[i] for i in range(len(shapes))]
    data = Data(samples, samples[:2], shapes.classes, samples[0].features.shape[1], "classification")

    class Clock(lightning.Callback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_train_batch_start(self, *_: Any) -> None:
            self.times.append(time.perf_counter())

    def plain() -> list[float]:
        model = build_model(config.model, data, torch.Generator().manual_seed(0))
        module = ClassificationModule(model, data.classes, config.optimizer)
        optimizer = module.configure_optimizers()["optimizer"]
        train: Loader = loaders(config, data, model)[0]
        times = []
        for batch in train:
            times.append(time.perf_counter())
            torch.default_generator.manual_seed(batch.seed)
            loss = module.loss(model(batch.features, batch.levels), batch)
            loss.backward()
            module.configure_gradient_clipping()
            optimizer.step()
            optimizer.zero_grad()
        return times

    def step(times: list[float]) -> float:
        return median(b - a for a, b in pairwise(times))

    clock = Clock()
    found = []
    for _ in range(3):
        before = step(plain())
        clock.times.clear()
        fit(config, data, callbacks=[clock], verbose=False)
        found.append(step(clock.times) - (before + step(plain())) / 2)
    return 1000 * median(found)


def measure(case: str, turns: int) -> Row:
    step, empty = Step(case), Step(case, empty=True)
    tasks = products(step)
    timed, nothing, multiplied = Timed(step), Timed(empty), []
    for _ in range(turns):
        harness.once(timed)
        harness.once(nothing)
        multiplied.append(harness.once(lambda: [multiply() for multiply in tasks for _ in range(4)]) / 4)
    parts, around = timed.medians(), nothing.medians()
    passes, idle = (row["forward"] + row["backward"] for row in (parts, around))
    dispatch, matrices = idle * share_of_operators(empty), median(multiplied)
    return {
        "geometry": parts["geometry"],
        "Python between operators": idle - dispatch,
        "dispatch": dispatch,
        "kernels": passes - idle - matrices,
        "matrix products": matrices,
        "clipping": parts["clipping"],
        "optimiser": parts["optimiser"],
        "Lightning": in_lightning(case),
    }


def markdown(results: Row) -> str:
    splits = results["splits"]
    totals = {case: sum(split.values()) for case, split in splits.items()}
    columns = {"part": "part"}
    for case in splits:
        columns |= {case: f"{case} (ms)", f"{case} share": f"{case} (%)"}
    rows: list[Row] = [{"part": part} for part in next(iter(splits.values()))]
    for row in rows:
        for case, split in splits.items():
            value = split[row["part"]]
            row |= {case: round(value, 2), f"{case} share": round(100 * value / totals[case], 1)}
    total: Row = {"part": "together"}
    for case, value in totals.items():
        total |= {case: round(value, 2), f"{case} share": 100.0}
    return harness.table([*rows, total], columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON (benchmarks/results/split.json)")
    parser.add_argument("--markdown", type=Path, help="only put the stored table into this document")
    args = parser.parse_args()
    if args.markdown:
        harness.fill(args.markdown, "split", markdown(json.loads(args.output.read_text())))
        return
    harness.use_threads(1)
    load = harness.busy()
    splits = {case: measure(case, args.turns) for case in args.cases}
    results = {"machine": harness.machine(), "load_before": load, "splits": splits}
    harness.save(results, args.output)
    print(markdown(results))


if __name__ == "__main__":
    main()
