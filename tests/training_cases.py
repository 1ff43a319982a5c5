"""A run so small that it takes less than a second."""

from typing import Any

import torch

from pointvar.data import Sample
from pointvar.train import Config, Data, load_config

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
    return load_config(TINY, *changes, top)


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
