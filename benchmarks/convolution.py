"""Convolutions of pointvar against the speed of a matrix product, and against plain torch code.

    python benchmarks/convolution.py            # everything; prints tables, writes results/convolution.json
    python benchmarks/convolution.py --quick    # small sizes only; writes nothing unless --output is given
    python benchmarks/convolution.py --markdown # prints the tables of the last measurement
    python benchmarks/convolution.py --plot     # draws docs/img/roofline.png from the last measurement

K = 16 and about 24 neighbours, points that fill a cube. The whole operator is measured, basis included.
The neighbourhood is ready: its list, its transposed list, offsets and densities are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from clouds import NEIGHBOURS
from harness import Task, busy, fill, interleaved, machine, save, say, table, use_threads
from peers import (
    KPCONV,
    LARGE,
    NAIVE,
    PASSES,
    PEERS,
    Problem,
    agree,
    inputs,
    layer,
    neighbourhood,
    ours,
    plain,
    probe,
    summed,
)

import pointvar as pv

HERE = Path(__file__).resolve().parent
K = 16
GEMM = (2048, 1024, 1024)
Row = dict[str, Any]

# Points and channels; then, how many times faster than KPConv style code, in either pass.
LIMIT_SIZES = [(16_384, 64), (16_384, 128), (16_384, 256), (100_000, 64), (100_000, 128)]
PEER_SIZES: list[tuple[int, int, int, float | None, float | None]] = [
    (16_384, 64, 64, 20.0, 12.0),
    (16_384, 128, 128, 10.0, 7.0),
    (4_096, 256, 256, None, 4.0),
    (16_384, 1, 64, 50.0, 10.0),
]
TOO_LARGE = 16_384 * 128  # points times channels: peers that store [E, K, C] are left out
MEMORY_TARGETS = {NAIVE: 100.0, KPCONV: 10.0}
GROWTH_SIZES = [4_096, 16_384, 65_536, 262_144, 1_048_576]
METHOD_SIZE = (16_384, 64)
METHOD_LIMITS = {"ConvPoint": 3.0}  # times KPConvN; 2 for the others
UNIT_LIMIT = 5.0  # per cent

COLUMNS = {
    "limits": {
        "method": "method",
        "order": "points are",
        "points": "points",
        "channels": "C = O",
        "pass": "pass",
        "ms": "ms",
        "gflops": "GFLOP/s",
        "percent": "% of limit",
        "target": "target",
        "met": "met",
    },
    "peers": {
        "points": "points",
        "layer": "layer",
        "pass": "pass",
        "ours": "pointvar (ms)",
        "peer": "peer",
        "theirs": "peer (ms)",
        "ratio": "times faster",
        "target": "target",
        "met": "met",
    },
    "memory": {"side": "side", "mb": "MB", "ratio": "times pointvar", "target": "at least", "met": "met"},
    "growth": {
        "points": "points",
        "ms": "ms",
        "us_per_point": "µs per point",
        "mb": "MB",
        "bytes_per_point": "bytes per point",
    },
    "methods": {
        "method": "method",
        "forward": "forward (ms)",
        "forward_ratio": "times KPConvN",
        "both": "forward+backward (ms)",
        "both_ratio": "times KPConvN ",
        "limit": "at most",
        "met": "met",
    },
    "unit_response": {
        "pass": "pass",
        "without": "without (ms)",
        "with": "with (ms)",
        "percent": "more (%)",
        "limit": "at most",
        "met": "met",
    },
}
TITLES = {
    "limits": "Against the matrix product:",
    "peers": "Against plain torch code:",
    "memory": "Peak memory of forward+backward above inputs, outputs, gradients and parameters, {memory}:",
    "growth": "KPConvN 64 → 64, forward+backward, as the cloud grows:",
    "methods": "The named methods, {methods}:",
    "unit_response": "Unit response, KPConvN, {methods}:",
}


def gemm() -> Task:
    m, k, n = GEMM
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    return lambda: torch.mm(a, b, out=out)


def flops(hood: pv.Neighborhood, c: int, o: int, part: str) -> float:
    """Projections and matrix products: one each forward, four and three with backward."""
    projection, product = 2 * hood.num_edges * K * c, 2 * hood.queries.num_points * K * c * o
    return projection + product if part == PASSES[0] else 4 * projection + 3 * product


# Sections of the result


def limits(sizes: list[tuple[int, int]], args: argparse.Namespace) -> Iterator[Row]:
    for points, c in sizes:
        say(f"limits: {points:,} points, {c} channels")
        tasks: dict[Any, Task] = {"gemm": gemm()}
        work = {}
        for order in ("unsorted", "Morton order"):
            hood = neighbourhood(points, order)
            x, gradient = inputs(hood, c, c)
            for name in ("KPConvN", "MCConv"):
                for part, task in ours(layer(name, hood, c, c), hood, x, gradient).items():
                    tasks[name, order, part] = task
                    work[name, order, part] = flops(hood, c, c, part)
        times = interleaved(tasks, args.repeats, args.budget)
        peak = 2 * GEMM[0] * GEMM[1] * GEMM[2] / times["gemm"] / 1e6
        for (name, order, part), amount in work.items():
            ms = times[name, order, part]
            percent = 100 * amount / ms / 1e6 / peak
            forward = 80.0 if points <= 16_384 else 70.0
            target = forward if part == PASSES[0] else 65.0 if name == "MCConv" else 75.0
            say(f"  {name:8} {order:13} {part:17} {ms:9.2f} ms   {percent:.1f} % of {peak:.0f} GFLOP/s")
            yield {
                **{"method": name, "order": order, "points": points, "channels": c, "pass": part, "ms": ms},
                **{"gflops": amount / ms / 1e6, "peak": peak, "percent": percent},
                **{"target": target, "met": percent >= target},
            }


def against_peers(sizes: list[Any], args: argparse.Namespace, skipped: list[str]) -> Iterator[Row]:
    for points, c, o, *targets in sizes:
        say(f"peers: {points:,} points, {c} -> {o}")
        hood = neighbourhood(points)
        conv = layer("KPConvN", hood, c, o, bias=False)
        twin = summed(conv)  # KPConv's code has no densities: it is compared with a sum
        x, gradient = inputs(hood, c, o)
        sides = {"KPConvN": ours(conv, hood, x, gradient), "KPConv": ours(twin, hood, x, gradient)}
        for name, make in PEERS.items():
            if name in LARGE and points * c >= TOO_LARGE:
                skipped.append(f"{name} at {points:,} points, {c} → {o}: too much memory")
                continue
            try:
                peer = make(Problem(conv, hood))
            except ImportError as error:
                skipped.append(f"{name}: {error.name} is not installed")
                continue
            sides[name] = plain(peer, conv.weight, x, gradient)
            agree(name, sides[name], sides[rival(name)])
        for part, target in zip(PASSES, targets, strict=True):
            # The matrix product comes first, so that neither of ours pays for the pages a peer has freed.
            tasks = {"gemm": gemm(), **{name: side[part] for name, side in sides.items()}}
            times = interleaved(tasks, args.repeats, args.budget)
            for name in [name for name in times if name in PEERS]:
                mine, ratio = times[rival(name)], times[name] / times[rival(name)]
                say(f"  {part:17} {mine:9.2f} ms   {name} {times[name]:.2f} ms   x {ratio:.2f}")
                goal = target if name == KPCONV else None
                yield {
                    **{"points": points, "layer": f"{c} → {o}", "pass": part, "ours": mine, "peer": name},
                    **{"theirs": times[name], "ratio": ratio, "target": goal},
                    **{"met": None if goal is None else ratio >= goal},
                    "notes": {"neighbours": hood.num_edges / points, "most": int(hood.counts.max())},
                }


def rival(peer: str) -> str:
    return "KPConv" if peer == KPCONV else "KPConvN"


def memory(side: str, points: int, args: argparse.Namespace) -> float:
    """``probe`` in a process of its own, where freed blocks go back to the system at once."""
    command = [sys.executable, str(HERE / "convolution.py"), "--threads", str(args.threads)]
    command += ["--probe", side, str(points), "64"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    say(f"memory: {side}, {points:,} points: {float(text):.1f} MB")
    return float(text)


def memories(points: int, args: argparse.Namespace) -> Iterator[Row]:
    mine = memory("pointvar", points, args)
    yield {"side": "pointvar", "mb": mine, "ratio": 1.0, "target": None, "met": None}
    for peer, target in MEMORY_TARGETS.items():
        theirs = memory(peer, points, args)
        ratio = theirs / mine
        yield {"side": peer, "mb": theirs, "ratio": ratio, "target": target, "met": ratio >= target}


def growth(sizes: list[int], args: argparse.Namespace) -> Iterator[Row]:
    for points in sizes:
        mb = memory("pointvar", points, args)
        hood = neighbourhood(points)
        task = ours(layer("KPConvN", hood, 64, 64), hood, *inputs(hood, 64, 64))[PASSES[1]]
        ms = interleaved({"ours": task}, args.repeats, args.budget)["ours"]
        say(f"growth: {points:,} points {ms:.1f} ms")
        per_point = {"us_per_point": 1000 * ms / points, "bytes_per_point": 1e6 * mb / points}
        yield {"points": points, "ms": ms, "mb": mb, **per_point}


def zoo(points: int, c: int, args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    say(f"methods: {points:,} points, {c} channels")
    hood = neighbourhood(points)
    x, gradient = inputs(hood, c, c)
    layers = {name: layer(name, hood, c, c) for name in pv.methods.METHODS}
    unit = "KPConvN with unit response"
    layers[unit] = layer("KPConvN", hood, c, c, unit_response=True)
    sides = {name: ours(conv, hood, x, gradient) for name, conv in layers.items()}
    times: dict[str, dict[str, float]] = {}
    for part in PASSES:
        tasks = {name: side[part] for name, side in sides.items()}
        times[part] = interleaved(tasks, args.repeats, args.budget)
    forward, both = (times[part] for part in PASSES)
    rows, overhead = [], []
    for name in pv.methods.METHODS:
        ratios = forward[name] / forward["KPConvN"], both[name] / both["KPConvN"]
        limit = METHOD_LIMITS.get(name, 2.0)
        say(f"  {name:13} {forward[name]:9.2f} {both[name]:9.2f} ms   x {ratios[0]:.2f}, {ratios[1]:.2f}")
        rows.append(
            {
                **{"method": name, "forward": forward[name], "forward_ratio": ratios[0]},
                **{"both": both[name], "both_ratio": ratios[1], "limit": limit, "met": max(ratios) <= limit},
            }
        )
    for part in PASSES:
        without, extra = times[part]["KPConvN"], times[part][unit]
        percent = 100 * (extra / without - 1)
        say(f"  unit response, {part}: {percent:+.1f} %")
        overhead.append(
            {
                **{"pass": part, "without": without, "with": extra, "percent": percent},
                **{"limit": UNIT_LIMIT, "met": percent <= UNIT_LIMIT},
            }
        )
    return rows, overhead


# All of it


def run(args: argparse.Namespace) -> dict[str, Any]:
    load, quick = busy(), args.quick
    skipped: list[str] = []
    rows = list(limits([(4_096, 64)] if quick else LIMIT_SIZES, args))
    peer_sizes = [(4_096, 64, 64, None, None), (4_096, 1, 64, None, None)] if quick else PEER_SIZES
    peers = list(against_peers(peer_sizes, args, skipped))
    size = 4_096 if quick else 16_384
    memory_rows = list(memories(size, args))
    grown = list(growth(GROWTH_SIZES[:2] if quick else GROWTH_SIZES, args))
    points, c = (4_096, 64) if quick else METHOD_SIZE
    methods, unit = zoo(points, c, args)
    return {
        "machine": {**machine(), "load_before": load},
        "settings": {
            **{"repeats": args.repeats, "budget_s": args.budget, "neighbours": NEIGHBOURS, "k": K},
            **{"gemm": GEMM, "gemm_gflops": median(row["peak"] for row in rows)},
            "titles": {"memory": f"{size:,} points, 64 → 64", "methods": f"{points:,} points, {c} → {c}"},
        },
        **{"limits": rows, "peers": peers, "memory": memory_rows, "growth": grown},
        **{"methods": methods, "unit_response": unit, "skipped": list(dict.fromkeys(skipped))},
    }


def markdown(results: dict[str, Any]) -> str:
    facts, settings = results["machine"], results["settings"]
    text = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, {facts['system']}; "
        f"torch {facts['torch']}, pointvar {facts['pointvar']}, {facts['backend']} backend "
        f"({facts['instruction_set'] or 'plain'}); matrix product {settings['gemm_gflops']:.0f} GFLOP/s; "
        f"load before the measurement {facts['load_before']}; {facts['date']}."
    ]
    for section, title in TITLES.items():
        text += [title.format(**settings["titles"]), table(results[section], COLUMNS[section])]
        if section == "limits":
            text.append("![GFLOP/s of each row under the peak of the matrix product](img/roofline.png)")
    if results["skipped"]:
        text.append("Left out: " + "; ".join(results["skipped"]) + ".")
    return "\n\n".join(text)


def draw(results: dict[str, Any], path: Path) -> None:
    """GFLOP/s of each measured row under the peak of the matrix product."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, peak = results["limits"], results["settings"]["gemm_gflops"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, constrained_layout=True)
    sizes = list(dict.fromkeys((row["points"], row["channels"]) for row in rows))
    styles = list(dict.fromkeys((row["method"], row["order"]) for row in rows))
    colours = {"KPConvN": "tab:blue", "MCConv": "tab:orange"}
    for axis, part in zip(axes, PASSES, strict=True):
        axis.axhline(peak, color="black", lw=1.2)
        axis.annotate("matrix product", (0.01, peak), (0, 3), ("axes fraction", "data"), "offset points")
        for place, (method, order) in enumerate(styles):
            values = {
                (r["points"], r["channels"]): r["gflops"]
                for r in rows
                if (r["method"], r["order"], r["pass"]) == (method, order, part)
            }
            x = [i + 0.2 * (place - (len(styles) - 1) / 2) for i in range(len(sizes))]
            hatch = "" if order == "unsorted" else "///"
            heights = [values[size] for size in sizes]
            label = f"{method}, {order}"
            axis.bar(x, heights, 0.18, color=colours[method], hatch=hatch, ec="white", label=label)
        names = [f"{points / 1000:.0f}k\n{c} → {c}" for points, c in sizes]
        axis.set_xticks(range(len(sizes)), names)
        axis.set(title=part, xlabel="points and channels", ylim=(0, 1.15 * peak))
    axes[0].set_ylabel("GFLOP/s")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="for all sides (2)")
    parser.add_argument("--repeats", type=int, default=15, help="measurements per task, at most (15)")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds per task, about (8)")
    parser.add_argument("--quick", action="store_true", help="small sizes only, to try it")
    parser.add_argument("--output", type=Path, help="JSON file (benchmarks/results/convolution.json)")
    show = "measure nothing; print the tables of the JSON file, or fill them into FILE"
    parser.add_argument("--markdown", nargs="?", const="-", metavar="FILE", help=show)
    picture = HERE.parent / "docs" / "img" / "roofline.png"
    show = "measure nothing; draw the JSON file (docs/img/roofline.png)"
    parser.add_argument("--plot", nargs="?", const=picture, type=Path, metavar="FILE", help=show)
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    stored = args.output or HERE / "results" / "convolution.json"
    if args.probe:
        use_threads(args.threads)
        print(probe(args.probe[0], int(args.probe[1]), int(args.probe[2])))
        return
    if args.markdown or args.plot:
        results = json.loads(stored.read_text())
        if args.plot:
            draw(results, args.plot)
        if args.markdown == "-":
            print(markdown(results))
        elif args.markdown:
            fill(Path(args.markdown), "convolution", markdown(results))
        return
    use_threads(args.threads)
    results = run(args)
    print(markdown(results))
    if args.output or not args.quick:
        save(results, stored)


if __name__ == "__main__":
    main()
