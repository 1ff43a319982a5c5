"""CPU time of a new process from torch's own import to a model, a first pass and a first operator.

    python benchmarks/first_contact.py --against OTHER/src --output benchmarks/results/first_contact.json

Each measurement is a process of its own with one thread; those of two versions take turns. It is the time of
the processor, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import harness

CONTACT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
begin = time.process_time()
import torch
times, names = {"torch itself": time.process_time() - begin}, ("sympy", "torch._dynamo")

def passed(name, begin):
    times[name] = time.process_time() - begin
    return time.process_time()

now = start = time.process_time()
import pointvar as pv
model = pv.models.SegmentationUNet(1, 4, channels=(16, 32), radii=(0.1, 0.2))
now = passed("import and construct a U-Net", now)
cloud = pv.PointCloud(torch.rand(1000, 3))
model(torch.ones(1000, 1), model.hierarchy(cloud)).sum().backward()
now = passed("its levels, forward and backward", now)
pv.ball_query(cloud, cloud, 0.1)
passed("first operator called alone", now)
passed("all beyond torch", start)
times["imported"] = [name for name in names if name in sys.modules]
print(json.dumps(times))
"""


def contact(source: Path) -> dict[str, Any]:
    run = subprocess.run([sys.executable, "-c", CONTACT, str(source)], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    return json.loads(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", type=Path, help="folder of another version, with its native modules")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    harness.use_threads(1)
    sources = {"now": Path(__file__).resolve().parent.parent / "src"}
    if arguments.against:
        sources = {"before": arguments.against.resolve(), **sources}
    load = harness.busy()
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sources}
    for turn in range(arguments.repeats + 1):  # the first one writes byte code
        for side, source in sources.items():
            times = contact(source)
            if turn:
                found[side].append(times)
    rows = []
    for name in found["now"][0]:
        row: dict[str, Any] = {"what": name, "unit": "ms"}
        for side, runs in found.items():
            if name == "imported":
                row = {**row, "unit": "", side: ", ".join(runs[0][name]) or "nothing"}
            else:
                row[side] = round(1000 * median(run[name] for run in runs), 1)
        rows.append(row)
    print(harness.table(rows, {key: key for key in rows[0]}))
    if arguments.output:
        result = {"machine": harness.machine(), "load": load, "repeats": arguments.repeats, "rows": rows}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
