"""Convolutions of pointvar against the speed of a matrix product, and against plain torch code.

    python benchmarks/convolution.py            # everything; saves results/convolution.json as it goes
    python benchmarks/convolution.py --sections peers memory  # these only; the rest of the file stays
    python benchmarks/convolution.py --quick    # small sizes only; saves nothing unless --output is given
    python benchmarks/convolution.py --markdown # prints the tables of the last measurement
    python benchmarks/convolution.py --plot     # draws docs/img/roofline.png from the last measurement
    python benchmarks/convolution.py --against OTHER/src  # this pointvar and another, in turns, in one run

K = 16 and about 24 neighbours, points that fill a cube. The whole operator is measured, basis included.
The neighbourhood is ready: its list, its transposed list, offsets and densities are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from clouds import NEIGHBOURS
from convolution_report import draw, markdown
from harness import (
    Task,
    against,
    busy,
    compared,
    fill,
    in_turns,
    interleaved,
    machine,
    same_kernels,
    save,
    say,
    show_ratios,
    use_threads,
)
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
Section = Callable[[argparse.Namespace], Iterator[tuple[str, Row]]]  # names of tables, and their rows

TOO_LARGE = 16_384 * 128  # points times channels: peers that store [E, K, C] are left out
MEMORY_TARGETS = {NAIVE: 100.0, KPCONV: 10.0}
METHOD_LIMITS = {"ConvPoint": 3.0}  # times KPConvN; 2 for the others
UNIT_LIMIT = 5.0  # per cent


def gemm() -> Task:
    m, k, n = GEMM
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    return lambda: torch.mm(a, b, out=out)


def flops(hood: pv.Neighborhood, c: int, o: int, part: str) -> float:
    """Projections and matrix products: one each forward, four and three with backward."""
    projection, product = 2 * hood.num_edges * K * c, 2 * hood.queries.num_points * K * c * o
    return projection + product if part == PASSES[0] else 4 * projection + 3 * product


# Sections; each takes a minute at most


def limits(points: int, c: int, args: argparse.Namespace) -> Iterator[tuple[str, Row]]:
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
        yield (
            "limits",
            {
                **{"method": name, "order": order, "points": points, "channels": c, "pass": part, "ms": ms},
                **{"gflops": amount / ms / 1e6, "peak": peak, "percent": percent},
                **{"target": target, "met": percent >= target},
            },
        )


def against_peers(
    points: int,
    c: int,
    o: int,
    targets: tuple[float | None, float | None],
    first_layer: bool,
    args: argparse.Namespace,
) -> Iterator[tuple[str, Row]]:
    """``targets``: how many times faster than KPConv style code, in either pass."""
    hood = neighbourhood(points)
    conv = layer("KPConvN", hood, c, o, bias=False)
    twin = summed(conv)  # KPConv's code has no densities: it is compared with a sum
    x, gradient = inputs(hood, c, o)
    x.requires_grad_(not first_layer)
    sides = {"KPConvN": ours(conv, hood, x, gradient), "KPConv": ours(twin, hood, x, gradient)}
    for name, make in PEERS.items():
        if name in LARGE and points * c >= TOO_LARGE:
            yield "skipped", {"what": f"{name} at {points:,} points, {c} → {o}: too much memory"}
            continue
        try:
            peer = make(Problem(conv, hood))
        except ImportError as error:
            yield "skipped", {"what": f"{name}: {error.name} is not installed"}
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
            title = f"{c} → {o}" + (", first layer" if first_layer else "")
            yield (
                "peers",
                {
                    **{"points": points, "layer": title, "pass": part, "ours": mine, "peer": name},
                    **{"theirs": times[name], "ratio": ratio, "target": goal},
                    **{"met": None if goal is None else ratio >= goal},
                    "notes": {"neighbours": hood.num_edges / points, "most": int(hood.counts.max())},
                },
            )


def rival(peer: str) -> str:
    return "KPConv" if peer == KPCONV else "KPConvN"


def memory(side: str, points: int, args: argparse.Namespace) -> float:
    """``probe`` in a process of its own, where freed blocks go back to the system at once."""
    command = [sys.executable, str(HERE / "convolution.py"), "--threads", str(args.threads)]
    command += ["--probe", side, str(points), "64"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    say(f"  {side}, {points:,} points: {float(text):.1f} MB")
    return float(text)


def memories(points: int, args: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    mine = memory("pointvar", points, args)
    yield (
        "memory",
        {"points": points, "side": "pointvar", "mb": mine, "ratio": 1.0, "target": None, "met": None},
    )
    for peer, target in MEMORY_TARGETS.items():
        theirs = memory(peer, points, args)
        ratio = theirs / mine
        met = ratio >= target
        yield (
            "memory",
            {"points": points, "side": peer, "mb": theirs, "ratio": ratio, "target": target, "met": met},
        )


def growth(sizes: list[int], args: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    for points in sizes:
        mb = memory("pointvar", points, args)
        hood = neighbourhood(points)
        task = ours(layer("KPConvN", hood, 64, 64), hood, *inputs(hood, 64, 64))[PASSES[1]]
        ms = interleaved({"ours": task}, args.repeats, args.budget)["ours"]
        say(f"  {points:,} points {ms:.1f} ms")
        per_point = {"us_per_point": 1000 * ms / points, "bytes_per_point": 1e6 * mb / points}
        yield "growth", {"points": points, "ms": ms, "mb": mb, **per_point}


def zoo(points: int, c: int, args: argparse.Namespace) -> Iterator[tuple[str, Row]]:
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
    for name in pv.methods.METHODS:
        ratios = forward[name] / forward["KPConvN"], both[name] / both["KPConvN"]
        limit = METHOD_LIMITS.get(name, 2.0)
        say(f"  {name:13} {forward[name]:9.2f} {both[name]:9.2f} ms   x {ratios[0]:.2f}, {ratios[1]:.2f}")
        yield (
            "methods",
            {
                **{"method": name, "forward": forward[name], "forward_ratio": ratios[0]},
                **{"both": both[name], "both_ratio": ratios[1], "limit": limit, "met": max(ratios) <= limit},
                **{"points": points, "channels": c},
            },
        )
    for part in PASSES:
        without, extra = times[part]["KPConvN"], times[part][unit]
        percent = 100 * (extra / without - 1)
        say(f"  unit response, {part}: {percent:+.1f} %")
        yield (
            "unit_response",
            {
                **{"pass": part, "without": without, "with": extra, "percent": percent},
                **{"limit": UNIT_LIMIT, "met": percent <= UNIT_LIMIT},
            },
        )


SECTIONS: dict[str, Section] = {
    "limits-16k-64": partial(limits, 16_384, 64),
    "limits-16k-128": partial(limits, 16_384, 128),
    "limits-16k-256": partial(limits, 16_384, 256),
    "limits-100k-64": partial(limits, 100_000, 64),
    "limits-100k-128": partial(limits, 100_000, 128),
    "peers-64": partial(against_peers, 16_384, 64, 64, (20.0, 12.0), False),
    "peers-128": partial(against_peers, 16_384, 128, 128, (10.0, 7.0), False),
    "peers-256": partial(against_peers, 4_096, 256, 256, (None, 4.0), False),
    "peers-one": partial(against_peers, 16_384, 1, 64, (50.0, 10.0), False),
    "peers-first": partial(against_peers, 16_384, 1, 64, (50.0, 10.0), True),
    "memory": partial(memories, 16_384),
    "growth": partial(growth, [4_096, 16_384, 65_536, 262_144, 1_048_576]),
    "methods": partial(zoo, 16_384, 64),
}
QUICK: dict[str, Section] = {
    "limits": partial(limits, 4_096, 64),
    "peers-64": partial(against_peers, 4_096, 64, 64, (None, None), False),
    "peers-first": partial(against_peers, 4_096, 1, 64, (None, None), True),
    "memory": partial(memories, 4_096),
    "growth": partial(growth, [4_096, 16_384]),
    "methods": partial(zoo, 4_096, 64),
}


def measure(section: Section, args: argparse.Namespace) -> dict[str, Any]:
    """The rows of a section by table, and how they came about."""
    load, rows = busy(), list(section(args))
    tables = {name: [row for table, row in rows if table == name] for name in dict(rows)}
    facts = {"load_before": load, "repeats": args.repeats, "budget_s": args.budget}
    return {
        "machine": {**machine(), **facts, "neighbours": NEIGHBOURS, "k": K, "gemm": GEMM},
        "tables": tables,
    }


# Two versions of pointvar

IDENTITY = ("method", "order", "points", "channels", "layer", "peer", "side", "pass")
MEASURED = ("ms", "ours", "mb", "forward", "both", "without", "with")


def both(other: Path, options: list[str]) -> dict[str, Any]:
    """All rows as measured by this pointvar and by another."""
    mine, theirs = against(other, __file__, options)
    for name in mine:
        same_kernels(mine[name]["machine"], theirs[name]["machine"])
        tables = {kind: (rows, theirs[name]["tables"][kind]) for kind, rows in mine[name]["tables"].items()}
        rows = [
            {"table": kind, **row}
            for kind, sides in tables.items()
            for row in compared(*sides, IDENTITY, MEASURED)
        ]
        mine[name] = {"machine": mine[name]["machine"], "rows": rows}
    return mine


def chosen(sections: dict[str, Section], prefixes: list[str]) -> list[str]:
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in sections):
            raise SystemExit(f"no section begins with {prefix!r}; there are {', '.join(sections)}")
    return [name for name in sections if not prefixes or name.startswith(tuple(prefixes))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="for all sides (2)")
    parser.add_argument("--repeats", type=int, default=15, help="measurements per task, at most (15)")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per task, about (2)")
    parser.add_argument("--quick", action="store_true", help="small sizes only, to try it")
    some = f"only those that begin so; there are\n{', '.join(SECTIONS)}"
    parser.add_argument("--sections", nargs="+", default=[], metavar="NAME", help=some)
    parser.add_argument("--output", type=Path, help="JSON file (benchmarks/results/convolution.json)")
    show = "measure nothing; print the tables of the JSON file, or fill them into FILE"
    parser.add_argument("--markdown", nargs="?", const="-", metavar="FILE", help=show)
    picture = HERE.parent / "docs" / "img" / "roofline.png"
    show = "measure nothing; draw the JSON file (docs/img/roofline.png)"
    parser.add_argument("--plot", nargs="?", const=picture, type=Path, metavar="FILE", help=show)
    other = "folder of another pointvar, with native modules: measure both, and show the ratio of their times"
    parser.add_argument("--against", type=Path, metavar="SRC", help=other)
    parser.add_argument("--in-turns", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    stored = args.output or HERE / "results" / "convolution.json"
    use_threads(args.threads)
    if args.against:
        options = [f"--threads={args.threads}", f"--repeats={args.repeats}", f"--budget={args.budget}"]
        options += ["--quick"] * args.quick + ["--sections", *args.sections] * bool(args.sections)
        results = both(args.against, options)
        show_ratios([row for section in results.values() for row in section["rows"]])
        if args.output:
            save(results, args.output)
        return
    if args.in_turns:
        in_turns()
    if args.probe:
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
    sections = QUICK if args.quick else SECTIONS
    keep = bool(args.output) or not args.quick
    results = json.loads(stored.read_text()) if keep and stored.exists() else {}
    for name in chosen(sections, args.sections):
        say(name)
        results[name] = measure(sections[name], args)
        if keep:
            results = {name: results[name] for name in sections if name in results}
            save(results, stored)
    print(markdown(results))


if __name__ == "__main__":
    main()
