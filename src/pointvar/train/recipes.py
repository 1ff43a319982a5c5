"""Named recipes: the paper's, small ones on data made on the spot, and one that goes with any of them."""

from __future__ import annotations

from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "scanobjectnn": {
        "data": {"name": "scanobjectnn", "num_points": 1024, "up": "y", "batch_size": 16},
        "model": {
            "network": "classifier",
            "channels": [128, 256, 512],
            "head": 512,
            "radii": [0.1, 0.2, 0.4],
            "dropout": 0.2,
            "head_dropout": 0.5,
        },
        "init": {"batches": 50},
        "optimizer": {"rate": 0.005, "milestones": [500], "gamma": 0.1, "weight_decay": 1e-4},
        "epochs": 650,
        "evaluate_every": 10,
        "votes": 25,
    },
    "modelnet40": {
        "data": {
            "name": "modelnet",
            "variant": "40",
            "poisson": 0.05,
            "normals": True,
            "rotate": False,
            "batch_size": 16,
        },
        "model": {
            "network": "classifier",
            "channels": [256, 512, 1024],
            "head": 1024,
            "radii": [0.05, 0.1, 0.2],
            "dropout": 0.2,
            "head_dropout": 0.5,
        },
        "init": {"batches": 100},
        "optimizer": {"rate": 0.005, "milestones": [350, 450], "gamma": 0.1, "weight_decay": 1e-4},
        "epochs": 500,
        "evaluate_every": 10,
        "votes": 25,
    },
    "scannet": {
        "data": {
            "name": "scannet",
            "radius": 2.0,
            "context": 4.0,
            "crops": 3000,
            "batch_size": 1,
            "mirror": True,
        },
        "model": {
            "network": "unet",
            "channels": [64, 128, 256, 512],
            "radii": [0.03, 0.06, 0.12, 0.24],
            "first_reach": 1.5,
            "dropout": 0.2,
        },
        "init": {"batches": 30},
        "optimizer": {
            "rate": 0.005,
            "milestones": [300, 400],
            "gamma": 0.25,
            "weight_decay": 1e-4,
            "class_weights": True,
        },
        "epochs": 500,
        "evaluate_every": 10,
        "votes": 10,
    },
    "shapes": {
        "data": {
            "name": "shapes",
            "train_size": 500,
            "test_size": 250,
            "num_points": 512,
            "batch_size": 4,
        },
        "model": {"network": "classifier", "channels": [32, 64, 128], "head": 128, "radii": [0.1, 0.2, 0.4]},
        "optimizer": {"rate": 0.005, "milestones": [15]},
        "epochs": 20,
        "votes": 5,
    },
    "rooms": {
        "data": {
            "name": "rooms",
            "train_size": 16,
            "test_size": 4,
            "radius": 1.0,
            "context": 1.5,
            "crops": 64,
            "batch_size": 1,
        },
        "model": {"network": "unet", "channels": [16, 32, 64], "radii": [0.1, 0.2, 0.4], "first_reach": 1.5},
        "optimizer": {"rate": 0.005, "milestones": [15], "class_weights": True},
        "epochs": 20,
        "votes": 1,
    },
    # No normalisation of features at all; goes with any of the others.
    "norm-free": {
        "model": {"norm": "none", "unit_response": True},
        "init": {"method": "direct"},
        "optimizer": {"rate": 0.01, "agc": 0.05},
    },
}
