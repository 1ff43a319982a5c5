"""One training step of the paper's networks: clouds per second, where the time goes, peak memory.

    python benchmarks/training.py --threads 2 --output benchmarks/results/training.json

Each case runs in a process of its own, for its peak memory. "pyg" is the same classifier, with the same
weights and neighbourhoods, by the message passing and the pooling of PyTorch Geometric.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pointvar as pv
from pointvar.data import Sample, Shapes, collate, crop_sphere
from pointvar.data.rooms import Rooms
from pointvar.train import Data, load_config
from pointvar.train.build import build_model
from pointvar.train.clipping import decayed

RESULTS = Path(__file__).resolve().parent / "results" / "training.json"
CASES = [
    "scanobjectnn",
    "modelnet40",
    "scannet",
    "scannet-recompute",
    "pyg-scanobjectnn",
    "ours-scanobjectnn",
]
"""The last two are the pair to compare, on batches of four."""


def samples(case: str, batch: int) -> list[Sample]:
    """Clouds of the size of the data set's, made on the spot."""
    if "scannet" in case:
        room = Rooms(1, num_points=120_000, floor=(5.0, 5.5))[0]
        return [crop_sphere(room, room.points.mean(0), 2.0, 4.0).sample]
    normals = "modelnet" in case
    shapes = Shapes(batch, num_points=2048 if normals else 1024, partial=not normals, normals=normals)
    chosen = [shapes[index] for index in range(batch)]
    if normals:
        random = torch.Generator().manual_seed(0)
        keep = [pv.poisson_disk(pv.PointCloud(s.points), 0.05, generator=random) for s in chosen]
        chosen = [sample[index] for sample, index in zip(chosen, keep, strict=True)]
    return chosen


def measure(case: str, repeats: int, batch_size: int | None, threads: int) -> dict[str, Any]:
    """Medians of the parts of a step, in seconds."""
    torch.set_num_threads(threads)
    recipe = case.removeprefix("pyg-").removeprefix("ours-").removesuffix("-recompute")
    config = load_config(recipe, {"model": {"recompute": case.endswith("recompute")}})
    size = batch_size or (4 if "-scanobjectnn" in case else config.data.batch_size)
    batch = collate(samples(case, size))
    segment = recipe == "scannet"
    classes = 20 if segment else 40 if recipe == "modelnet40" else 15
    task: Any = "segmentation" if segment else "classification"
    data = Data([0], [0], [str(c) for c in range(classes)], batch.features.shape[1], task)
    model: Any = build_model(config.model, data, torch.Generator().manual_seed(0))
    inner = (batch.labels >= 0).nonzero().squeeze(1)
    queries = {"queries": batch.cloud[inner]} if segment else {}
    step: nn.Module = PyGClassifier(model) if case.startswith("pyg") else model
    groups = list(decayed(model))
    rest = [p for p in model.parameters() if not any(p is g for g in groups)]
    optimizer = torch.optim.SGD(
        [{"params": groups, "weight_decay": 1e-4}, {"params": rest}], lr=0.005, momentum=0.9
    )
    labels = batch.labels[inner] if segment else batch.labels % classes
    parts: dict[str, list[float]] = {"geometry": [], "forward": [], "backward": [], "optimiser": []}
    for repeat in range(repeats + 1):
        marks = [time.perf_counter()]
        levels = model.hierarchy(batch.cloud, generator=torch.Generator().manual_seed(repeat), **queries)
        marks.append(time.perf_counter())
        loss = nn.functional.cross_entropy(step(batch.features, levels), labels % classes)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(time.perf_counter())
        if repeat:  # the first fills caches
            for part, begin, end in zip(parts.values(), marks, marks[1:], strict=False):
                part.append(end - begin)
    median = {name: statistics.median(values) for name, values in parts.items()}
    return {
        "case": case,
        "clouds": size,
        "points": batch.cloud.num_points,
        "threads": threads,
        "clouds_per_second": size / sum(median.values()),
        "seconds": median,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": float(loss.detach()),
    }


class PyGClassifier(nn.Module):
    """The classifier by message passing; shares the parameters of ours."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.layers = nn.ModuleList([_pyg_layer(block.convolution) for block in model.blocks])

    def forward(self, features: Tensor, levels: pv.Hierarchy) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        for level in range(len(levels)):
            features = features[levels.kept[level]]
            hood = levels.within(level)
            for number in (2 * level, 2 * level + 1):
                before = self.model.blocks[number].before
                if before is not None:
                    features = before(features, hood.support)
                features = self.layers[number](features, hood)
        cloud = levels.clouds[-1]
        return self.model.head(global_mean_pool(features, cloud.batch, cloud.num_clouds))


def _pyg_layer(convolution: Any) -> nn.Module:
    from torch_geometric.nn import MessagePassing

    class Layer(MessagePassing):  # type: ignore[misc, valid-type]
        """phi by messages of K C numbers, summed at the queries; then one linear map."""

        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.convolution = convolution

        def forward(self, x: Tensor, hood: pv.Neighborhood) -> Tensor:
            basis = self.convolution.basis(hood.relative_positions(), hood.edge_radius())
            values = basis * self.convolution.estimator(hood)[:, None]
            edges = torch.stack([hood.indices, hood.rows])
            phi = self.propagate(edges, x=x, values=values, size=(len(x), hood.queries.num_points))
            return phi @ self.convolution.weight.flatten(0, 1)

        def message(self, x_j: Tensor, values: Tensor) -> Tensor:
            return (values[:, :, None] * x_j[:, None, :]).flatten(1)

    return Layer()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, help="instead of the recipe's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON, written after each case")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        row = measure(arguments.one, arguments.repeats, arguments.batch_size, arguments.threads)
        print(json.dumps(row))
        return
    rows = []
    head = " ".join(
        f"{name:>9}" for name in ("clouds/s", "geometry", "forward", "backward", "optimiser", "GB")
    )
    print(f"{'case':20} {'points':>8} {head}")
    for case in arguments.cases:
        command = [sys.executable, __file__, "--one", case, "--repeats", str(arguments.repeats)]
        command += ["--threads", str(arguments.threads)]
        command += ["--batch-size", str(arguments.batch_size)] if arguments.batch_size else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{case:20} failed with code {done.returncode}")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        times = " ".join(f"{seconds * 1000:7.1f}ms" for seconds in row["seconds"].values())
        rate, memory = row["clouds_per_second"], row["peak_gigabytes"]
        print(f"{case:20} {row['points']:8} {rate:9.2f} {times} {memory:9.2f}", flush=True)
        if arguments.output is not None:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
