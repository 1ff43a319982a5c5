"""Results on disk as training, experiments and prediction leave them, made up in a moment.

As a script it writes them, and a report on them, to a folder: python tests/report/report_demo.py FOLDER
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch

import pointvar as pv
from pointvar.data import Rooms, Shapes, write_ply

CONFIG = """data:
  name: shapes
  batch_size: {batch}
model:
  network: classifier
  method: MCConv
  norm: {norm}
init:
  method: {init}
optimizer:
  rate: 0.005
epochs: 12
seed: {seed}
"""


def write_run(
    folder: Path, norm: str, init: str, seed: int = 0, epochs: int = 12, speed: float = 0.3
) -> Path:
    """The directory of a run; one with fewer than 12 epochs is not finished."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    (folder / "config.yaml").write_text(CONFIG.format(norm=norm, init=init, seed=seed, batch=2))
    (folder / "versions.json").write_text(
        json.dumps({"pointvar": pv.__version__, "torch": torch.__version__})
    )
    rows = []
    for epoch in range(1, epochs + 1):
        rise = 1 - math.exp(-speed * epoch)
        row = {
            "epoch": epoch,
            "step": 50 * epoch,
            "rate": 0.005 if epoch < 9 else 0.0005,
            "train_loss": 3.2 * math.exp(-speed * epoch) + 0.1 * random.random(),
            "train_accuracy": 0.95 * rise,
        }
        if epoch % 2 == 0:
            score = 0.86 * rise + 0.02 * random.random()
            row |= {"accuracy": score, "mean_accuracy": score - 0.02, "mean_iou": score - 0.15}
        rows.append({**row, "seconds": 7.5 * epoch})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if epochs == 12:
        scores = {key: rows[-1][key] for key in ("accuracy", "mean_accuracy", "mean_iou")}
        classes = {name: 0.9 - 0.05 * i for i, name in enumerate(Shapes(1).classes[:8])}
        layer = {"kind": "MCConv", "target": 1.0, "depth": None, "calls": 1, "note": ""}
        layers = [
            {"name": f"convolutions.{i}", **layer, "variance": 0.02 / i, "second_moment": 50.0 * i}
            for i in range(1, 7)
        ]
        init = {
            "method": init,
            "layers": layers,
            "left_alone": {"head.1": "a linear layer keeps what it has"},
        }
        init |= {"batches": 4, "clouds": 8, "points": 8192, "passes": 4, "seconds": 0.41}
        summary = {"metrics": {**scores, "iou": {**classes, "none": None}}, "diverged": None, "init": init}
        summary |= {"epochs": epochs, "steps": 600, "seconds": 90.0, "parameters": 1_234_567}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def write_results(folder: Path) -> Path:
    """A figure with its numbers, a grid of cells, and variances by layer of a network as they are."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    methods = ("PCCNN", "KPConv", "MCConv", "PointConv", "SPHConv", "FlexConv")
    draws = {
        method: {
            "standard": (10 ** (-(0.1 + 0.1 * i) * np.arange(25) + random.normal(0, 0.2, (5, 25)))).tolist(),
            "direct": (10 ** random.normal(0, 0.05, (5, 25))).tolist(),
        }
        for i, method in enumerate(methods)
    }
    summary = {
        m: {name: {"least": min(map(min, d)), "largest": max(map(max, d))} for name, d in by.items()}
        for m, by in draws.items()
    }
    numbers = {"caption": "Of ten methods.", "clouds": "synthetic shapes", "channels": 64, "seeds": 5}
    numbers |= {"summary": summary, "second_moment": draws}
    (folder / "fig-variance.json").write_text(json.dumps(numbers))
    (folder / "fig-variance.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 80">'
        '<path d="M10 70L290 10" stroke="#a33"/></svg>'
    )
    cells = [
        {
            "method": method,
            "init": init,
            "seed": seed,
            "accuracy": (0.4 + 0.4 * np.sort(random.random(9))).tolist(),
            "seconds": 31.2 + seed,
        }
        for method in methods[:3]
        for init in ("standard", "direct")
        for seed in range(2)
    ]
    (folder / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    cloud = pv.PointCloud(torch.rand(400, 3, generator=torch.Generator().manual_seed(0)))
    hood = pv.ball_query(cloud, cloud, 0.25)
    network = pv.models.PlainNet(12, 16, 3, method="MCConv", generator=torch.Generator().manual_seed(0))
    variance = pv.variance_report(network, (cloud.points, hood))
    (folder / "variance.json").write_text(json.dumps(variance.to_dict()))
    return folder


def write_room(folder: Path, points: int = 40_000) -> Path:
    """A room with labels and predictions that are wrong in places, as PLY, and names of classes."""
    folder.mkdir(parents=True)
    rooms = Rooms(1, num_points=points)
    sample = rooms[0]
    labels = sample.label.numpy()
    predictions = labels.copy()
    near = np.linalg.norm(sample.points.numpy() - sample.points.numpy()[len(labels) // 3], axis=1) < 0.7
    predictions[near] = (predictions[near] + 1) % len(rooms.classes)
    write_ply(
        folder / "room.ply", sample.points, colors=sample.features, label=labels, prediction=predictions
    )
    (folder / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(rooms.classes)))
    return folder


def write_all(folder: Path) -> list[Path]:
    """Two runs, results and a room."""
    return [
        write_run(folder / "runs" / "direct", "none", "direct"),
        write_run(folder / "runs" / "standard", "none", "standard", seed=1, epochs=7, speed=0.1),
        write_results(folder / "results"),
        write_room(folder / "predictions"),
    ]


if __name__ == "__main__":
    from pointvar.report import gather

    target = Path(sys.argv[1])
    print(gather(write_all(target), "Shapes without batch normalisation").save(target / "report.html"))
