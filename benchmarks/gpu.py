"""Convolutions and geometry on a GPU: Triton against plain torch and the code that one would write otherwise.

    python benchmarks/gpu.py                                  # stores results/gpu.json
    python benchmarks/gpu.py --markdown docs/performance.md   # puts the stored tables into the page

Without a GPU nothing is measured. What a call reads, writes and computes follows from its shapes, and so does
the time that this takes at least at the speed of a GPU's memory and arithmetic: modelled, not measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import harness
import torch
from peers import LARGE, PASSES, PEERS, Problem, agree, inputs, layer, neighbourhood, ours, plain, summed

from pointvar.ops import Edges, Values, backends, reference, reference_convolve, triton_geometry

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
from host_waits import HostWaits  # noqa: E402

Row = dict[str, Any]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
POINTS, NEIGHBOURS, K, DIM = 100_000, 24, 16, 3
LAYERS = [("float32", 64), ("float32", 256), ("bfloat16", 64), ("bfloat16", 256)]
TOO_LARGE = 16_384 * 128  # points times channels: peers that store [E, K, C] are left out


class Device(NamedTuple):
    """Of the data sheet: bytes per second; operations per second of float32, and of bfloat16 in products."""

    bandwidth: float
    float32: float
    bfloat16: float


DEVICES = {
    "A100": Device(2.04e12, 19.5e12, 312e12),
    "H100": Device(3.35e12, 67e12, 989e12),
}


class Step(NamedTuple):
    """A kernel, or a matrix product: bytes to and from memory, and operations."""

    bytes: int
    flops: int
    product: bool = False


def steps(points: int, neighbours: int, c: int, o: int, dtype: str, backward: bool) -> list[Step]:
    """What a convolution does; backward: what is added by the gradients of features and weight.

    Neighbours are read anew for each edge, as if no cache kept any of them.
    """
    number = {"float32": 4, "bfloat16": 2}[dtype]
    edges = points * neighbours
    weight = K * c * o
    on_edges = 4 * (DIM + 1) + 8 * (2 if backward else 1)  # offset and q, and which point, and which edge
    inner, outer = (o, c) if backward else (c, o)
    phi = points * K * inner * number
    projection = Step(edges * (inner * number + on_edges) + phi, 2 * edges * K * inner)
    product = Step(phi + number * (weight + points * outer), 2 * points * weight, True)
    return [projection, product, product] if backward else [projection, product]


def least_time(work: list[Step], device: Device, dtype: str) -> float:
    """Milliseconds, the larger of the two times of each step."""

    def seconds(step: Step) -> float:
        speed = device.bfloat16 if step.product and dtype == "bfloat16" else device.float32
        return max(step.bytes / device.bandwidth, step.flops / speed)

    return 1000 * sum(map(seconds, work))


def modelled() -> list[Row]:
    rows = []
    for dtype, c in LAYERS:
        for name, backward in (("forward", False), ("backward", True)):
            work = steps(POINTS, NEIGHBOURS, c, c, dtype, backward)
            total = {"gb": sum(s.bytes for s in work) / 1e9, "gflop": sum(s.flops for s in work) / 1e9}
            times = {device: least_time(work, facts, dtype) for device, facts in DEVICES.items()}
            rows.append({"layer": f"{c} → {c}", "dtype": dtype, "pass": name, **total, **times})
    return rows


def counted() -> list[Row]:
    """How often the host would wait for a device in plain torch, and how many operators it would start."""
    hood = neighbourhood(POINTS)
    columns = hood.transposed()  # once for each list of edges
    pair, radius = (hood.support.points, hood.support.offsets), hood.radius[:1]
    values = torch.rand(hood.num_edges, K)
    edges = Edges(hood.row_offsets, hood.indices, Values(values), transposed=lambda: columns)
    features, weight, none = torch.rand(POINTS, 64), torch.rand(K, 64, 64), values.new_empty(0)
    picks = torch.tensor([256]), torch.tensor([0]), 256
    wanted = [True, True, True, False, False]
    calls: dict[str, harness.Task] = {
        "convolution": lambda: reference_convolve.convolve(features, weight, None, edges),
        "its gradients": lambda: reference_convolve.convolve_backward(
            features, none, features, weight, edges, wanted
        ),
        "ball query": lambda: reference.ball_query(*pair, *pair, radius, -1, 0),
        "nearest points": lambda: reference.knn(*pair, *pair, 16),
        "Poisson disk": lambda: reference.poisson_disk(*pair, radius, 0),
        "density": lambda: reference.kernel_density(*pair, 0.2 * radius),
        "256 farthest points": lambda: reference.farthest_points(*pair, *picks),
    }
    rows = []
    for name, call in calls.items():
        harness.say(f"counting: {name}")
        with HostWaits() as seen:
            call()
        rows.append({"operator": name, "waits": seen.total, "operators": seen.calls})
    return rows


# Measured, on a GPU


def finished(task: harness.Task) -> harness.Task:
    """The task, and the wait until the device has done it."""

    def run() -> Any:
        result = task()
        torch.cuda.synchronize()
        return result

    return run


def in_plain_torch(task: harness.Task) -> harness.Task:
    def run() -> Any:
        with mock.patch.dict(backends.BACKENDS, clear=True):
            return task()

    return run


def convolutions(points: int, c: int) -> list[Row]:
    hood = neighbourhood(points).to("cuda")
    conv = layer("KPConvN", hood, c, c, bias=False).cuda()
    x, gradient = (tensor.detach().cuda() for tensor in inputs(hood, c, c))
    x.requires_grad_()
    sides = {"pointvar": ours(conv, hood, x, gradient), "KPConv": ours(summed(conv), hood, x, gradient)}
    sides["plain torch"] = {part: in_plain_torch(task) for part, task in sides["pointvar"].items()}
    for name, make in PEERS.items():
        if name not in LARGE or points * c < TOO_LARGE:
            sides[name] = plain(make(Problem(conv, hood)), conv.weight, x, gradient)
            agree(name, sides[name], sides["KPConv" if "KPConv" in name else "pointvar"])
    rows = []
    for part in PASSES:
        times = harness.interleaved({name: finished(side[part]) for name, side in sides.items()}, 15, 2.0)
        rows += [
            {"points": points, "layer": f"{c} → {c}", "pass": part, "side": name, "ms": ms}
            for name, ms in times.items()
        ]
    return rows


def geometry(points: int) -> list[Row]:
    hood = neighbourhood(points).to("cuda")
    pair = hood.support.points, hood.support.offsets
    radius = hood.radius[:1]
    calls: dict[str, Callable[[Any], Any]] = {
        "ball query": lambda kernels: kernels.ball_query(*pair, *pair, radius, -1, 0),
        "nearest points": lambda kernels: kernels.knn(*pair, *pair, 16),
        "Poisson disk": lambda kernels: kernels.poisson_disk(*pair, radius, 0),
        "density": lambda kernels: kernels.kernel_density(*pair, 0.2 * radius),
    }
    rows = []
    for name, call in calls.items():
        sides = {"pointvar": triton_geometry, "plain torch": reference}
        tasks = {side: finished(lambda call=call, m=module: call(m)) for side, module in sides.items()}
        times = harness.interleaved(tasks, 15, 2.0)
        rows += [{"points": points, "operator": name, "side": side, "ms": ms} for side, ms in times.items()]
    return rows


def tests() -> str:
    """Runs those that need a GPU; the last line of what they say."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests"]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    harness.say(told.stdout)
    return told.stdout.strip().splitlines()[-1]


def measure() -> dict[str, Any]:
    if backends.of("cuda").name != "triton":
        raise SystemExit(f"nothing to measure: on cuda runs {backends.describe('cuda')}")
    device = torch.cuda.get_device_name()
    harness.say(f"on {device}; ten minutes, with the tests")
    rows: dict[str, list[Row]] = {"convolution": [], "geometry": []}
    for points, c in ((16_384, 64), (POINTS, 64), (POINTS, 256)):
        harness.say(f"convolution, {points:,} points, {c} channels")
        rows["convolution"] += convolutions(points, c)
    for points in (16_384, POINTS, 10 * POINTS):
        harness.say(f"geometry, {points:,} points")
        rows["geometry"] += geometry(points)
    facts = {"device": device, "cuda": torch.version.cuda, "hip": torch.version.hip}
    return {**facts, "tests": tests(), **rows}


def page(stored: dict[str, Any]) -> str:
    columns = {"layer": "layer", "dtype": "dtype", "pass": "pass", "gb": "GB", "gflop": "GFLOP"}
    columns |= {name: f"{name}, modelled (ms)" for name in DEVICES}
    text = f"{POINTS:,} points, {NEIGHBOURS} neighbours, K = {K}.\n\n"
    text += harness.table(stored["modelled"], columns)
    text += f"\n\nPlain torch at {POINTS:,} points, as on a device without kernels: how often the host waits "
    text += "for it, and how many operators a call starts.\n\n"
    text += harness.table(stored["counted"], {"operator": "", "waits": "waits", "operators": "operators"})
    if "measured" not in stored:
        return text + "\n\nNothing is measured yet."
    measured = stored["measured"]
    text += f"\n\nMeasured on {measured['device']}.\n"
    for name in ("convolution", "geometry"):
        rows = measured[name]
        text += "\n" + harness.table(rows, {key: key for key in rows[0]}) + "\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="JSON file (benchmarks/results/gpu.json)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="only fill the stored tables into FILE")
    args = parser.parse_args()
    if args.markdown:
        harness.fill(args.markdown, "gpu", page(json.loads(args.output.read_text())))
        return
    results: dict[str, Any] = {"modelled": modelled(), "counted": counted()}
    if torch.cuda.is_available():
        results["measured"] = measure()
    else:
        harness.say("there is no GPU here: nothing is measured, times are modelled")
    harness.save({"machine": harness.machine(), **results}, args.output)
    print(page(results))


if __name__ == "__main__":
    main()
