"""Small trainings that show at once if something is wrong: ModelNet10, 500 shapes, 20 epochs, batches of two.

    python benchmarks/sanity.py modelnet10_small.npz --output benchmarks/results/sanity.json

Each takes about a minute on one core. One seed and 250 test shapes: differences of 0.02 are noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointvar.data import Sample
from pointvar.train import Data, fit, load_config

BASE: dict[str, Any] = {
    "data": {"batch_size": 2, "rotate": False, "scale": 0.0},
    "model": {"channels": [32, 64, 128], "head": 128, "radii": [0.1, 0.2, 0.4]},
    "optimizer": {"rate": 0.005, "milestones": [15]},
    "epochs": 20,
}
RUNS: dict[str, dict[str, Any]] = {
    "standard": {"init": {"method": "standard"}},
    "batch norm": {"init": {"method": "standard"}, "model": {"norm": "batch"}},
    "batch norm, not in the head": {
        "init": {"method": "standard"},
        "model": {"norm": "batch", "head_norm": "none"},
    },
    "direct": {"init": {"method": "direct"}},
    "direct, AGC": {"init": {"method": "direct"}, "optimizer": {"agc": 0.05}},
    "unit response, direct, AGC": {
        "init": {"method": "direct"},
        "model": {"unit_response": True},
        "optimizer": {"agc": 0.05, "rate": 0.01},
    },
    "unit response, closed form, AGC": {
        "init": {"method": "closed"},
        "model": {"unit_response": True},
        "optimizer": {"agc": 0.05, "rate": 0.01},
    },
    "group norm": {
        "init": {"method": "standard"},
        "model": {"norm": "group"},
        "optimizer": {"rate": 0.003},
    },
}


def read(path: Path, points: int = 512, train: int = 500, test: int = 250) -> Data:
    """The first shapes of a shuffled set, so that all classes occur."""
    content = np.load(path)
    sets = []
    for split, size in (("train", train), ("test", test)):
        order = np.random.default_rng(0).permutation(len(content[f"{split}_label"]))[:size]
        clouds = content[f"{split}_points"][order, :points].astype(np.float32)
        labels = content[f"{split}_label"][order].tolist()
        sets.append(
            [
                Sample(torch.from_numpy(cloud), torch.ones(points, 1), int(label))
                for cloud, label in zip(clouds, labels, strict=True)
            ]
        )
    classes = [str(name) for name in content["classes"]]
    return Data(sets[0], sets[1], classes, 1)  # type: ignore[arg-type]  # a list serves as a data set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, help="JSON, written after each run")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), help="these runs only")
    parser.add_argument("--methods", nargs="*", default=["MCConv"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    data = read(arguments.data)
    rows = []
    print(f"{'method':10} {'run':34} {'seed':>4} {'last':>6} {'best':>6} {'train':>6} {'s':>6}")
    for method in arguments.methods:
        for name in arguments.only or RUNS:
            for seed in arguments.seeds:
                rest = {"seed": seed, "threads": arguments.threads, "epochs": arguments.epochs}
                config = load_config(BASE, RUNS[name], {"model": {"method": method}}, rest)
                result = fit(config, data)
                accuracy = result.accuracy or [float("nan")]
                row = {
                    "method": method,
                    "run": name,
                    "seed": seed,
                    "last": accuracy[-1],
                    "best": max(accuracy),
                    "train": result.history[-1]["train_accuracy"] if result.history else float("nan"),
                    "seconds": round(result.seconds, 1),
                    "diverged": result.diverged,
                    "accuracy": accuracy,
                }
                rows.append(row)
                print(
                    f"{method:10} {name:34} {seed:4} {row['last']:6.3f} {row['best']:6.3f} "
                    f"{row['train']:6.3f} {row['seconds']:6.1f}",
                    flush=True,
                )
                if arguments.output is not None:
                    arguments.output.parent.mkdir(parents=True, exist_ok=True)
                    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
