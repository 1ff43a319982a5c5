"""Memory and time of `pointvar predict` on LAS and LAZ files that are larger than what it holds in memory.

    python benchmarks/predict.py                                  # stores results/predict.json
    python benchmarks/predict.py --millions 1                     # a minute
    python benchmarks/predict.py --markdown docs/performance.md   # puts the stored table into the page

The files are synthetic: hills with boxes on them, four points per square metre, one strip after the other.
The network is small: what is measured is the memory of windows, and the least time. Each file has a process
of its own. Memory is the largest resident set, less what the process takes with the network loaded.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
import laspy
import numpy as np
import torch

import pointvar as pv
from pointvar.commands.workers import Job, Worker
from pointvar.models import read_notes
from pointvar.train import DataConfig
from pointvar.train.predict import survey_of

Row = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results" / "predict.json"
DENSITY = 4.0
AT_ONCE = 500_000


def write_network(path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    model = pv.models.SegmentationUNet(2, 4, channels=[8, 16], radii=[2.0, 4.0], generator=random)
    config = DataConfig(name="folder", task="segmentation", radius=40.0, context=48.0)
    features = {"names": ["one", "intensity"], "shift": [0.0, 1000.0], "scale": [1.0, 500.0]}
    notes: Row = {"classes": ["a", "b", "c", "d"], "codes": [1, 2, 6, 9], "features": features}
    pv.models.save(model, path, task="segmentation", data=asdict(config), **notes)


def write_survey(path: Path, count: int) -> None:
    """A square of so many points, in strips of 50 m, as a plane flies."""
    random = np.random.default_rng(0)
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales, header.offsets = [0.001] * 3, [85_000.0, 447_000.0, 0.0]
    side, done = (count / DENSITY) ** 0.5, 0
    with laspy.open(str(path), "w", header=header, do_compress=path.suffix == ".laz") as writer:
        while done < count:
            number = min(AT_ONCE, count - done)
            along = (done + np.arange(number)) / count * side * np.ceil(side / 50)
            x, y = along % side, 50 * np.floor(along / side) + 50 * random.random(number)
            z = 5 * np.sin(x / 80) * np.cos(y / 90) + random.normal(0, 0.05, number)
            z += 8.0 * ((x // 25 + y // 25) % 5 == 0)
            part = laspy.ScaleAwarePointRecord.zeros(number, header=header)
            part.x, part.y, part.z = x + 85_000, y + 447_000, z
            part.intensity = random.integers(0, 2000, number)
            part.classification = np.ones(number)
            writer.write_points(part)
            done += number


def measure(network: Path, file: Path, output: Path) -> Row:
    """In a process of its own."""
    job = Job(
        network, output, survey_of([file], read_notes(network), output / "work"), 1, 0, 150_000, False, "cpu"
    )
    worker = Worker(job)
    before, begin, used = _peak(), time.perf_counter(), time.process_time()
    result = worker(file)
    if result.counts is None:
        raise SystemExit(result.error)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - used
    row = {"points": sum(result.counts), "seconds": seconds, "cpu": cpu}
    return row | {"mb": _peak() - before, "model_mb": before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def markdown(results: Row) -> str:
    machine = results["machine"]
    text = f"{machine['cpu']}, 1 thread, {machine['system']}; torch {machine['torch']}; "
    text += f"load before the measurement {results['load_before']}; {machine['date']}.\n\n"
    columns = {"file": "file", "points": "points", "size": "file (MB)", "mb": "memory (MB)"}
    columns |= {"per": "s per million", "cpu_per": "CPU s per million"}
    return text + harness.table(results["rows"], columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 30], help="sizes of the files")
    parser.add_argument("--formats", nargs="+", default=["las", "laz"])
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON (benchmarks/results/predict.json)")
    parser.add_argument("--markdown", type=Path, help="only put the stored table into this document")
    parser.add_argument("--one", type=Path, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.markdown:
        harness.fill(args.markdown, "predict", markdown(json.loads(args.output.read_text())))
        return
    harness.use_threads(1)
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    results: Row = {"machine": harness.machine(), "load_before": harness.busy(), "rows": []}
    for millions in args.millions:
        for kind in args.formats:
            with tempfile.TemporaryDirectory(dir=".") as name:
                folder = Path(name).resolve()
                file, network, output = folder / f"survey.{kind}", folder / "net.safetensors", folder / "out"
                output.mkdir()
                write_network(network)
                write_survey(file, int(millions * 1e6))
                command = [sys.executable, __file__, "--one", str(network), str(file), str(output)]
                row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                row |= {"file": kind.upper(), "size": file.stat().st_size / 2**20}
                row |= {
                    "per": row["seconds"] / row["points"] * 1e6,
                    "cpu_per": row["cpu"] / row["points"] * 1e6,
                }
                results["rows"].append(row)
                harness.say(json.dumps(results["rows"][-1]))
    harness.save(results, args.output)
    print(markdown(results))


if __name__ == "__main__":
    main()
