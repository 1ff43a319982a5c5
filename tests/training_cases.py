"""A run so small that it takes less than a second."""

from typing import Any

import torch

import pointvar as pv
from pointvar.data import Sample
from pointvar.train import Config, Data, Prepared, load_config
from pointvar.train.build import transform_of
from pointvar.train.loader import TRAIN, BatchIndex, Preparation

TINY: dict[str, Any] = {
    "data": {
        "name": "shapes",
        "train_size": 12,
        "test_size": 6,
        "num_points": 64,
        "batch_size": 2,
    },
    "model": {"channels": [4, 8], "head": 8, "radii": [0.3, 0.6]},
    "init": {"batches": 2},
    "epochs": 3,
    "threads": 1,
    "accelerator": "cpu",
}


def tiny(*changes: dict[str, Any], **top: Any) -> Config:
    """The small run with changes."""
    return load_config("published", TINY, *changes, top)


def room_data() -> Data:
    """Corners of a floor and a wall, with a third of the points unlabelled, and a class that never occurs."""
    random = torch.Generator().manual_seed(0)
    rooms = []
    for number in range(4):
        flat = torch.rand(300, 2, generator=random) * 2
        wall = torch.rand(150, 2, generator=random) * 2
        points = torch.cat([torch.nn.functional.pad(flat, (0, 1)), torch.nn.functional.pad(wall, (1, 0))])
        label = torch.cat([torch.zeros(300, dtype=torch.int64), torch.ones(150, dtype=torch.int64)])
        label[torch.randperm(450, generator=random)[:150]] = -1
        rooms.append(Sample(points, torch.ones(450, 1), label, f"room {number}"))
    return Data(rooms[:2], rooms[2:], ["floor", "wall", "nothing"], 1, "segmentation")


def one_cloud(label: int, seed: int) -> Sample:
    """64 points in a cube of side 2."""
    random = torch.Generator().manual_seed(seed)
    return Sample(torch.rand(64, 3, generator=random) * 2 - 1, torch.ones(64, 1), label)


def small_classifier(classes: int = 3, **more: Any) -> pv.models.Classifier:
    random = torch.Generator().manual_seed(0)
    options = {"channels": [4, 4], "head": 4, "radii": [0.3, 0.6], "generator": random, **more}
    return pv.models.Classifier(1, classes, **options)


def prepared(samples: list[Sample], network: Any, number: int = 0) -> Prepared:
    """All samples as one batch."""
    config = tiny().data
    task = "segmentation" if isinstance(samples[0].label, torch.Tensor) else "classification"
    preparation = Preparation(samples, network, transform_of(config, task, False), 0, TRAIN)
    return preparation[BatchIndex(0, number, tuple(range(len(samples))))]
