"""The geometry of pointvar against the libraries one would take instead.

    python benchmarks/geometry.py            # everything; prints tables, writes results/geometry.json
    python benchmarks/geometry.py --quick    # 10,000 points only; writes nothing unless --output is given
    python benchmarks/geometry.py --markdown # prints the tables of the last measurement
    python benchmarks/geometry.py --against OTHER/src  # this pointvar and another, in turns, without peers

All sides get an array of coordinates in the form they like best (made beforehand) and return indices;
building trees, grids and containers is part of the measured time. Results are compared before they
are timed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clouds import NEIGHBOURS, Case, real_cases, surface, uniform
from harness import (
    Task,
    against,
    busy,
    compared,
    fill,
    in_turns,
    interleaved,
    machine,
    once,
    same_kernels,
    save,
    say,
    show_ratios,
    table,
    use_threads,
)
from scipy.spatial import cKDTree
from torch import Tensor

import pointvar as pv

HERE = Path(__file__).resolve().parent
K = 16
THINNING = 16  # farthest points: one of so many is chosen
TOO_LONG = 60_000  # ms: a peer expected to take longer than this is left out

# How many times faster than each peer each operator shall be, by number of points.
TARGETS = {
    "ball query": {100_000: 8.0, 1_000_000: 6.0},
    "Poisson disk": {100_000: 30.0},
    "kernel density": {10_000: 20.0, 100_000: 20.0, 1_000_000: 20.0},
    "farthest points": {100_000: 1 / 1.5},
    "kNN": {10_000: 3.0, 100_000: 3.0, 1_000_000: 3.0},
}
GROWTH_TARGET = 2.0  # time per point, 1M against 100k
COLUMNS = {
    "operator": "operator",
    "cloud": "cloud",
    "points": "points",
    "ours": "pointvar (ms)",
    "peer": "peer",
    "theirs": "peer (ms)",
    "ratio": "times faster",
    "target": "target",
    "met": "met",
}
GROWTH_COLUMNS = {
    "operator": "operator",
    "cloud": "cloud",
    "small": "100k (ns per point)",
    "large": "1M (ns per point)",
    "growth": "growth",
    "target": "at most",
    "met": "met",
}


# Operators and their peers: each returns what is timed, after a look at the results


@dataclass
class Duel:
    operator: str
    ours: Task
    peers: dict[str, Task] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def ball_query(case: Case, threads: int) -> Duel:
    radius = case.radius

    def ours() -> pv.Neighborhood:
        cloud = case.cloud()
        return pv.ball_query(cloud, cloud, radius)

    def query_ball_point() -> list[Any]:
        return [cKDTree(part).query_ball_point(part, radius, workers=threads) for part in case.doubles]

    def query_pairs() -> list[Any]:
        return [cKDTree(part).query_pairs(radius, output_type="ndarray") for part in case.doubles]

    peers: dict[str, Task] = {
        "scipy query_ball_point": query_ball_point,
        "scipy query_pairs (each pair once)": query_pairs,
    }
    hood = ours()
    found = {"scipy query_pairs": 2 * sum(map(len, query_pairs())) + len(case.points)}
    if (task := _vesin(case, threads)) is not None:
        peers["vesin"] = task
        if not _takes_minutes("vesin", case):
            found["vesin"] = sum(len(pairs[0]) for pairs in task()) + len(case.points)
    if (task := _open3d(case)) is not None:
        peers["open3d"] = task
        found["open3d"] = sum(len(result[0]) for result in task())
    for name, pairs in found.items():  # float64 and closed balls there: a few pairs may differ
        _agree(f"pairs of {name}", pairs, hood.num_edges, 1e-4)
    notes = {"neighbours": round(hood.num_edges / len(case.points), 1), "radius": radius}
    return Duel("ball query", ours, peers, notes)


def _vesin(case: Case, threads: int) -> Task | None:
    try:
        from vesin import NeighborList
    except ImportError:
        return None
    box = np.zeros((3, 3))

    def task() -> list[Any]:
        search = NeighborList(cutoff=case.radius, full_list=True, n_threads=threads)
        return [search.compute(part, box, False, "ij") for part in case.doubles]

    return task


def _open3d(case: Case) -> Task | None:
    try:
        import open3d.core as o3c
    except ImportError:
        return None

    def search(part: np.ndarray) -> Any:
        tensor = o3c.Tensor.from_numpy(part)
        index = o3c.nns.NearestNeighborSearch(tensor)
        index.fixed_radius_index(case.radius)
        return index.fixed_radius_search(tensor, case.radius)

    return lambda: [search(part) for part in case.singles]


def knn(case: Case, threads: int) -> Duel:
    def ours() -> pv.Neighborhood:
        cloud = case.cloud()
        return pv.knn(cloud, cloud, K)

    def query() -> list[Any]:
        return [cKDTree(part).query(part, K, workers=threads) for part in case.doubles]

    farthest = np.concatenate([distance[:, -1] for distance, _ in query()])
    _agree("distance to the farthest neighbour", farthest, ours().radius.numpy(), 1e-3)
    return Duel("kNN", ours, {"scipy query": query})


def poisson_disk(case: Case, threads: int) -> Duel:
    import point_cloud_utils

    radius = case.radius

    def ours(seed: int = 1) -> Tensor:
        return pv.poisson_disk(case.cloud(), radius, torch.Generator().manual_seed(seed))

    def peer() -> list[Any]:
        thin = point_cloud_utils.downsample_point_cloud_poisson_disk
        return [thin(part, radius, random_seed=1) for part in case.doubles]

    cloud, keep = case.cloud(), ours()
    kept = cloud[keep]
    apart = pv.ball_query(kept, kept, radius).num_edges == len(keep)
    covered = bool((pv.ball_query(kept, cloud, radius).counts > 0).all())
    if not (apart and covered):
        raise AssertionError("the Poisson disk sampling is not a maximal one")
    notes = {"kept": len(keep), "kept by the peer": sum(map(len, peer()))}
    return Duel("Poisson disk", ours, {"point-cloud-utils": peer}, notes)


def kernel_density(case: Case, threads: int) -> Duel:
    h = 0.2 * case.radius

    def ours() -> Tensor:
        return pv.kernel_density(case.cloud(), h)

    def sums(part: np.ndarray) -> np.ndarray:
        """Each pair once, both ends summed by bincount: quicker than sparse_distance_matrix or ball lists."""
        i, j = cKDTree(part).query_pairs(4 * h, output_type="ndarray").T
        offset = part[i] - part[j]
        weight = np.exp(np.einsum("ed,ed->e", offset, offset) * (-0.5 / h**2))
        total = np.bincount(i, weight, len(part)) + np.bincount(j, weight, len(part)) + 1
        return total / (2 * np.pi * h * h) ** 1.5

    def peer() -> list[np.ndarray]:
        return [sums(part) for part in case.doubles]

    _agree("density", np.concatenate(peer()), ours().numpy(), 1e-3)
    return Duel("kernel density", ours, {"scipy query_pairs + numpy": peer}, {"bandwidth": h})


def farthest_points(case: Case, threads: int) -> Duel:
    from fpsample import bucket_fps_kdline_sampling

    points = case.singles[0]
    count = len(points) // THINNING

    def peer(h: int) -> np.ndarray:
        # Its start counts in the order of its own tree, so that it cannot be told where to begin.
        return bucket_fps_kdline_sampling(points, count, h=h, start_idx=0)

    def quickest(h: int) -> float:
        return min(once(lambda: peer(h)) for _ in range(3))

    height = min((5, 7, 9), key=quickest)
    theirs = peer(height).astype(np.int64)
    start = int(theirs[0])

    def ours() -> Tensor:
        return pv.farthest_points(case.cloud(), count=count, start=start)

    picks = ours().numpy()
    exact = _is_farthest(points, picks)
    if not exact:
        raise AssertionError("the farthest points are not exact")
    notes = {"chosen": count, "exact": exact, "peer exact": _is_farthest(points, theirs)}
    return Duel("farthest points", ours, {f"fpsample buckets, h = {height}": lambda: peer(height)}, notes)


def _is_farthest(points: np.ndarray, picks: np.ndarray) -> bool:
    """The definition, step by step in float32: no point is farther from those before than the next pick."""
    x, y, z = np.ascontiguousarray(points.T)
    distance = np.full(len(points), np.inf, np.float32)
    for pick, following in pairwise(picks):
        a, b, c = x - x[pick], y - y[pick], z - z[pick]
        np.minimum(distance, a * a + b * b + c * c, out=distance)
        if distance[following] != distance.max():
            return False
    return True


def _agree(what: str, theirs: Any, ours: Any, tolerance: float) -> None:
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    error = float(np.abs(a - b).max() / np.abs(b).mean())
    if not error <= tolerance:
        raise AssertionError(f"{what}: results differ by {error:.2g}")


# Measuring


# Seen to take minutes for one call: far fewer points per cell in one part of the cloud than in another.
MINUTES = {("vesin", "surface", 1_000_000)}


def _takes_minutes(peer: str, case: Case) -> bool:
    return (peer, case.name, len(case.points)) in MINUTES


def measure(duel: Duel, case: Case, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    size = len(case.points)
    tasks = {"pointvar": duel.ours, **duel.peers}
    times = interleaved(tasks, args.repeats, args.budget)
    ours = times.pop("pointvar")
    target = TARGETS[duel.operator].get(size)
    if args.in_turns:
        yield {"operator": duel.operator, "cloud": case.name, "points": size, "ours": ours}
    for peer, theirs in sorted(times.items(), key=lambda item: item[1]):
        ratio = theirs / ours
        say(f"  {duel.operator:16} {ours:10.2f} ms   {peer} {theirs:.2f} ms   x {ratio:.2f}")
        yield {
            "operator": duel.operator,
            "cloud": case.name,
            "points": size,
            "ours": ours,
            "peer": peer,
            "theirs": theirs,
            "ratio": ratio,
            "target": target,
            "met": None if target is None else ratio >= target,
            "notes": duel.notes,
        }


def growth(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Time per point at a million points against a hundred thousand."""
    time = {(r["operator"], r["cloud"], r["points"]): r["ours"] for r in rows}
    for (operator, cloud, size), large in time.items():
        small = time.get((operator, cloud, 100_000))
        if size != 1_000_000 or small is None:
            continue
        per_point = {"small": small * 1e6 / 100_000, "large": large * 1e6 / size}
        ratio = per_point["large"] / per_point["small"]
        target = GROWTH_TARGET if operator == "ball query" else None
        met = None if target is None else ratio <= target
        yield {
            "operator": operator,
            "cloud": cloud,
            **per_point,
            "growth": ratio,
            "target": target,
            "met": met,
        }


def run(args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Measures all cases; what is there so far is handed to ``keep`` after each."""
    load = busy()
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []

    def compare(case: Case, operators: list[Any]) -> None:
        say(f"{case.name}, {len(case.points):,} points, radius {case.radius:.4g}")
        for operator in operators:
            try:
                duel = operator(case, args.threads)
            except ImportError as error:
                skipped.append(f"{operator.__name__}: {error.name} is not installed")
                say(f"  {skipped[-1]}")
                continue
            if args.in_turns:
                duel.peers.clear()
            for peer in list(duel.peers):
                expected = _expected(rows, duel.operator, case, peer)
                if _takes_minutes(peer, case):
                    expected = math.inf
                if expected > TOO_LONG:
                    del duel.peers[peer]
                    skipped.append(f"{peer} on {case.name}, {len(case.points):,} points: takes too long")
                    say(f"  left out: {skipped[-1]}")
            rows.extend(measure(duel, case, args))

    def results() -> dict[str, Any]:
        settings = {"repeats": args.repeats, "budget_s": args.budget, "neighbours": NEIGHBOURS, "k": K}
        return {
            "machine": {**machine(), "load_before": load},
            "settings": settings,
            "rows": rows,
            "growth": list(growth(rows)),
            "skipped": skipped,
        }

    sizes = [10_000] if args.quick else args.sizes
    for size in sizes:
        for make in (surface, uniform):
            case = Case(make.__name__, [make(size, torch.Generator().manual_seed(size))])
            few = [poisson_disk, farthest_points] if size == sizes[:2][-1] else []
            compare(case, [ball_query, knn, kernel_density, *few])
            keep(results())
    for case in real_cases(args.data, args.quick):
        compare(case, [ball_query, knn, kernel_density, poisson_disk])
        keep(results())
    return results()


def _expected(rows: list[dict[str, Any]], operator: str, case: Case, peer: str) -> float:
    """Milliseconds, from the last smaller run of the same peer."""
    same = [r for r in rows if (r["operator"], r["cloud"], r["peer"]) == (operator, case.name, peer)]
    return same[-1]["theirs"] * len(case.points) / same[-1]["points"] if same else 0.0


def both(args: argparse.Namespace) -> dict[str, Any]:
    """The times of this pointvar and of another."""
    options = [f"--{name}={getattr(args, name)}" for name in ("threads", "repeats", "budget", "data")]
    options += ["--quick"] * args.quick + ["--sizes", *map(str, args.sizes)]
    mine, theirs = against(args.against, __file__, options)
    same_kernels(mine["machine"], theirs["machine"])
    rows = compared(mine["rows"], theirs["rows"], ("operator", "cloud", "points"), ("ours",))
    return {"machine": mine["machine"], "rows": rows}


def markdown(results: dict[str, Any]) -> str:
    facts = results["machine"]
    backend = f"{facts['backend']} backend"
    if facts["instruction_set"]:
        backend += f" ({facts['instruction_set']})"
    text = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, {facts['system']}; "
        f"torch {facts['torch']}, pointvar {facts['pointvar']}, {backend}; "
        f"load before the measurement {facts['load_before']}; {facts['date']}.",
        table(results["rows"], COLUMNS),
    ]
    if results["growth"]:
        text += ["Time per point of pointvar as the cloud grows:", table(results["growth"], GROWTH_COLUMNS)]
    if results["skipped"]:
        text.append("Left out: " + "; ".join(results["skipped"]) + ".")
    return "\n\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="for every side that can use them (2)")
    parser.add_argument("--repeats", type=int, default=15, help="measurements per task, at most (15)")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds per task, about (8)")
    parser.add_argument("--quick", action="store_true", help="10,000 points only, to try it")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--output", type=Path, help="JSON file (benchmarks/results/geometry.json)")
    parser.add_argument(
        "--markdown",
        nargs="?",
        const="-",
        metavar="FILE",
        help="measure nothing; print the tables of the JSON file, or fill them into FILE",
    )
    other = "folder of another pointvar, with native modules: measure both, and show the ratio of their times"
    parser.add_argument("--against", type=Path, metavar="SRC", help=other)
    parser.add_argument("--in-turns", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    stored = args.output or HERE / "results" / "geometry.json"
    if args.against:
        results = both(args)
        show_ratios(results["rows"])
        if args.output:
            save(results, args.output)
        return
    if args.markdown:
        text = markdown(json.loads(stored.read_text()))
        if args.markdown == "-":
            print(text)
        else:
            fill(Path(args.markdown), "geometry", text)
        return
    use_threads(args.threads)
    storing = args.output or not args.quick
    if args.in_turns:
        in_turns()
    results = run(args, lambda results: save(results, stored) if storing else None)
    if not args.in_turns:
        print(markdown(results))


if __name__ == "__main__":
    main()
