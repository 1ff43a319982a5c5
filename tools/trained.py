"""Trains a network that comes with the library, and packs it.

    python tools/trained.py NAME --data FOLDER

The recipe is norm-free, the budget ten to twenty minutes of one core. The test data are looked at once, at
the end, with the weights as they are packed (float16), and what comes out is part of the file. The same
command goes on where it was stopped. Files lie in ``src/pointvar/models/trained``; ``make pages`` lists them
in the documentation.

- ``modelnet10``: the shapes of the ten classes of ModelNet10 in FOLDER/modelnet10_small.npz (1,024 points)
  and FOLDER/modelnet40_256.npz (256 points); tested on the test shapes of the former.
- ``aerial``: FOLDER/ahn3_delft.npz, its west half to train, its east half to test. The features are the
  constant 1 and the height above the ground, so that any scan in metres will do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import safe_open

import pointvar
from pointvar.atomic import write_atomically
from pointvar.data import ModelNet, write_ply
from pointvar.models import load
from pointvar.train import Config, Data, evaluate, fit, load_config, load_data

TARGET = Path(__file__).parents[1] / "src" / "pointvar" / "models" / "trained"
RECIPE = {
    "model": {"method": "KPConvN"},
    "init": {"batches": 50},
    "evaluate_every": 10_000,  # once, at the end
    "logger": "none",
    "checkpoint_steps": 250,
}
CODES = {1: "other/vegetation", 2: "ground", 6: "building", 9: "water", 26: "civil structure"}
"""Of the tile's classes, in its order, the codes that AHN has for them."""

Made = tuple[Config, Data, dict[str, str]]
"""The training, its data, and what is to be known of it."""


def modelnet10(folder: Path, work: Path) -> Made:
    config = load_config(
        RECIPE,
        {
            "data": {
                "name": "modelnet",
                "variant": "10",
                "rotate": False,
                "batch_size": 16,
                "drop_last": True,
            },
            "model": {
                "network": "classifier",
                "channels": [40, 80, 160],
                "head": 160,
                "dropout": 0.1,
                "head_dropout": 0.3,
            },
            "epochs": 40,
        },
    )
    large, few = folder / "modelnet10_small.npz", folder / "modelnet40_256.npz"
    train, test = (ModelNet(large, split) for split in ("train", "test"))
    more = ModelNet(few, "train")
    place = [train.classes.index(name) if name in train.classes else -1 for name in more.classes]
    samples = [train[i] for i in range(len(train))]
    for index in range(len(more)):
        sample = more[index]
        if place[sample.label] >= 0:
            samples.append(replace(sample, label=place[sample.label]))
    about = {
        "title": "Classifier of single objects: the ten classes of ModelNet10",
        "data": "ModelNet (https://modelnet.cs.princeton.edu), official split",
        "terms": "for academic research, as ModelNet is; copyright of its models is with their authors",
        "input": "points of one object of any size, upright (z) and facing as in ModelNet",
    }
    return config, Data(samples, test, train.classes, 1, features={"names": []}), about


def aerial(folder: Path, work: Path) -> Made:
    with np.load(folder / "ahn3_delft.npz") as arrays:
        points, label = arrays["xyz"], np.array(list(CODES))[arrays["label"]]
        assert arrays["classes"].tolist() == list(CODES.values())
    east = points[:, 0] >= np.median(points[:, 0])
    for split, part in (("train", ~east), ("test", east)):
        (work / split).mkdir(parents=True, exist_ok=True)
        write_ply(work / split / "tile.ply", points[part], label=label[part].astype(np.int32))
    config = load_config(
        RECIPE,
        {
            "data": {
                "name": "folder",
                "path": str(work),
                "task": "segmentation",
                "features": ["one", "height"],
                "classes": {code: CODES[code] for code in (1, 2, 6)},  # the others are too few to learn
                "mirror": True,
                "radius": 10.0,
                "context": 16.0,
                "crops": 300,
                "batch_size": 1,
            },
            "model": {
                "network": "unet",
                "channels": [24, 40, 64, 96],
                "radii": [0.8, 1.6, 3.2, 6.4],
                "first_reach": 1.5,
            },
            "optimizer": {"class_weights": True},
            "epochs": 20,
        },
    )
    about = {
        "title": "Segmenter of aerial laser scans: ground, buildings, and the rest, mostly vegetation",
        "data": "AHN3, a tile of Delft (https://www.ahn.nl), its west half",
        "terms": "any use: AHN is open data (CC0)",
        "input": "an aerial scan in metres, up is z, 4 points per square metre or more (trained on 8)",
    }
    return config, load_data(config.data), about


NETWORKS: dict[str, Callable[[Path, Path], Made]] = {"modelnet10": modelnet10, "aerial": aerial}


def pack(source: Path, target: Path, **notes: Any) -> None:
    """A network with its weights in float16, and with more notes.

    What preconditioned layers have besides their weights follows from these.
    """
    with safe_open(source, "pt") as file:
        description = json.loads(file.metadata()["pointvar"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    description["notes"] |= notes
    half = {
        name: value.half()
        for name, value in tensors.items()
        if name.rpartition(".")[2] not in ("coordinates", "preconditioner")
    }
    if not all(bool(torch.isfinite(value).all()) for value in half.values()):
        raise ValueError(f"{source} has weights that float16 does not have")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, safetensors.torch.save(half, {"pointvar": json.dumps(description)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path("runs/trained"), help="folder of the runs")
    parser.add_argument("--target", type=Path, default=TARGET, help="folder of the packed networks")
    given = parser.parse_args()
    config, data, about = NETWORKS[given.name](given.data, given.output / f"{given.name}-data")
    config.output = str(given.output / given.name)
    result = fit(config, data, resume=True)
    if result.interrupted or result.diverged:
        raise SystemExit(result.diverged or "stopped; the same command goes on")
    run, target = Path(config.output) / "model.safetensors", given.target / f"{given.name}.safetensors"
    settings = asdict(config)
    trained_with = {part: settings[part] for part in ("model", "init", "optimizer", "epochs", "seed")}
    notes = {"about": about, "settings": trained_with, "version": pointvar.__version__}
    notes["data"] = {**settings["data"], "path": None}
    pack(run, target, **notes)
    metrics = evaluate(load(target), data, config.data)
    print(metrics)
    pack(run, target, **notes, test=asdict(metrics))


if __name__ == "__main__":
    main()
