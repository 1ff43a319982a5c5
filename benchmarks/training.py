"""Training steps against the speed of a matrix product, and where their time goes.

    python benchmarks/training.py                       # all of it; stores results/training.json as it goes
    python benchmarks/training.py --cases small paper-2 --threads 1   # these only; the rest of the file stays
    python benchmarks/training.py --against OTHER/src   # this pointvar and another, in turns, in one run
    python benchmarks/training.py --markdown docs/performance.md   # puts the stored tables into the page

Every step has clouds and a geometry of its own. The limit is three times the operations of the forward pass,
2 E K C + 2 M K C O over all convolutions, at the speed of a matrix product (2048 x 1024 times 1024 x 1024)
that is measured in turns with the steps. "pyg" is a classifier step against the same step, with the same
weights and neighbourhoods, by the message passing of PyTorch Geometric.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any

import harness
import torch
from steps import CASES, PARTS, Step

Row = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results" / "training.json"
LIMITS = {"small": 40.0, "paper-2": 70.0, "paper-16": 80.0, "unet": 65.0}  # %, at least
FASTER = {"small": 2.5}  # than the version before, at least
PYG = 8.0  # times slower, at least
SHAPE = (2048, 1024, 1024)
TURN = 0.3  # seconds: so many steps are done in a row
MILLISECONDS = {part: f"{part} (ms)" for part in PARTS}
COLUMNS = {
    "case": "case",
    "threads": "threads",
    **MILLISECONDS,
    "step": "step (ms)",
    "limit": "limit (ms)",
    "share": "% of limit",
    "unclipped": "% without clipping",
    "target": "target",
    "met": "met",
    "gigabytes": "peak memory (GB)",
}
PYG_COLUMNS = {
    "threads": "threads",
    "step": "pointvar (ms)",
    "pyg": "PyG (ms)",
    "ratio": "times faster",
    "target": "target",
    "met": "met",
}
AGAINST_COLUMNS = {
    "case": "case",
    "threads": "threads",
    "this": "this version (ms)",
    "other": "the version before (ms)",
    "ratio": "times faster",
    "target": "target",
    "met": "met",
}


class Timed:
    """A step as a task: each call does as many in a row as fill a turn, and keeps the times of the parts."""

    def __init__(self, step: Step) -> None:
        self.step, self.numbers = step, count()
        self.times: dict[str, list[float]] = {part: [] for part in PARTS}
        self.once()  # fills caches
        begin = time.perf_counter()
        self.once()
        self.burst = max(1, int(TURN / (time.perf_counter() - begin)))
        self.times = {part: [] for part in PARTS}

    def once(self) -> None:
        mark = time.perf_counter()
        for part in self.step.parts(next(self.numbers)):
            now = time.perf_counter()
            self.times[part].append(1000 * (now - mark))
            mark = now

    def __call__(self) -> None:
        for _ in range(self.burst):
            self.once()

    def medians(self) -> Row:
        parts = {part: median(times) for part, times in self.times.items()}
        whole = [sum(times) for times in zip(*self.times.values(), strict=True)]
        rest = [sum(times) for times in zip(*(self.times[p] for p in PARTS if p != "clipping"), strict=True)]
        return {**parts, "step": median(whole), "without": median(rest), "steps": len(whole)}


def measure(case: str, threads: int, turns: int) -> Row:
    harness.use_threads(threads)
    load = harness.busy()
    a, b = (torch.randn(shape) for shape in (SHAPE[:2], SHAPE[1:]))
    step = Step(case)
    operations = step.operations(range(1 if case == "unet" else 8))
    timed = Timed(step)
    pyg = Timed(step.twin()) if case == "pyg" else None
    products = []
    for _ in range(turns):
        harness.once(timed)
        products.append(harness.once(lambda: [torch.mm(a, b) for _ in range(8)]) / 8)
        if pyg is not None:
            harness.once(pyg)
    row: Row = {"case": case, "threads": threads, **timed.medians(), "load_before": load}
    speed = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2] / median(products)  # per millisecond
    row |= {"points": step.batches[0].cloud.num_points, "gflops": speed / 1e6, "operations": 3 * operations}
    row["limit"] = 3 * operations / speed
    row |= {"share": 100 * row["limit"] / row["step"], "unclipped": 100 * row["limit"] / row["without"]}
    row["target"] = LIMITS.get(case)
    row["met"] = None if row["target"] is None else row["share"] >= row["target"]
    row["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if pyg is not None:
        row["pyg"] = pyg.medians()["step"]
    return row


def compare(other: Path, options: list[str]) -> list[Row]:
    mine, theirs = harness.against(other, __file__, options)
    harness.same_kernels(mine["machine"], theirs["machine"])
    harness.show_ratios(harness.compared(mine["rows"], theirs["rows"], ("case", "threads"), [*PARTS, "step"]))
    rows = []
    for a, b in zip(mine["rows"], theirs["rows"], strict=True):
        ratio, target = b["step"] / a["step"], FASTER.get(a["case"])
        met = None if target is None else ratio >= target
        rows.append({key: a[key] for key in ("case", "threads")})
        rows[-1] |= {"this": a["step"], "other": b["step"], "ratio": ratio, "target": target, "met": met}
        rows[-1]["parts"] = {part: [a[part], b[part]] for part in PARTS}
    return rows


def markdown(results: Row) -> str:
    facts, rows = results["machine"], results["rows"]
    speeds = {row["threads"]: f"{row['gflops']:.0f} GFLOP/s on {row['threads']}" for row in rows}
    text = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}; torch {facts['torch']}, "
        f"{facts['backend']} backend ({facts['instruction_set']}); matrix product by threads: "
        f"{', '.join(speeds.values())}; load "
        f"before a case at most {max(row['load_before'] for row in rows)}; {facts['date']}.",
        harness.table([row for row in rows if "pyg" not in row], COLUMNS),
    ]
    pairs = [{**row, "ratio": row["pyg"] / row["step"], "target": PYG} for row in rows if "pyg" in row]
    if pairs:
        pairs = [{**row, "met": row["ratio"] >= PYG} for row in pairs]
        text += ["Against PyTorch Geometric, 4 clouds of 1,024 points:", harness.table(pairs, PYG_COLUMNS)]
    if results.get("against"):
        text += ["Against the version before:", harness.table(results["against"], AGAINST_COLUMNS)]
    return "\n\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=8, help="of 0.3 seconds, or one step, each (8)")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="JSON (benchmarks/results/training.json)"
    )
    parser.add_argument("--against", type=Path, metavar="SRC", help="another folder that holds pointvar")
    parser.add_argument("--markdown", type=Path, help="only put the stored tables into this document")
    parser.add_argument("--in-turns", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    stored = json.loads(args.output.read_text()) if args.output.exists() else {}
    if args.markdown:
        harness.fill(args.markdown, "training", markdown(stored))
        return
    if args.one:
        print(json.dumps(measure(args.cases[0], args.threads[0], args.turns)))
        return
    if args.against:
        options = ["--cases", *args.cases, "--threads", *map(str, args.threads), f"--turns={args.turns}"]
        harness.save({**stored, "against": compare(args.against, options)}, args.output)
        return
    if args.in_turns:
        harness.in_turns()
    rows = {(row["case"], row["threads"]): row for row in stored.get("rows", [])}
    for case, threads in product(args.cases, args.threads):
        harness.say(f"{case}, {threads} threads")
        if args.in_turns:
            rows[case, threads] = measure(case, threads, args.turns)
        else:  # a process of its own, for its peak memory
            command = [sys.executable, __file__, "--one", "--cases", case, "--threads", str(threads)]
            done = subprocess.run([*command, f"--turns={args.turns}"], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{case} failed with code {done.returncode}")
            rows[case, threads] = json.loads(done.stdout.splitlines()[-1])
        in_order = sorted(rows.values(), key=lambda row: (CASES.index(row["case"]), row["threads"]))
        stored |= {"machine": harness.machine(), "rows": in_order}
        harness.save(stored, args.output)
    if not args.in_turns:
        print(markdown(stored))


if __name__ == "__main__":
    main()
