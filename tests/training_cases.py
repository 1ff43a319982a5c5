"""A run so small that it takes less than a second."""

from typing import Any

from pointvar.train import Config, load_config

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
