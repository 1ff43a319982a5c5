"""The paper's networks for its data sets, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pointvar.models.classifier import Classifier
from pointvar.models.unet import SegmentationUNet

PRESETS: dict[str, tuple[Callable[..., Classifier | SegmentationUNet], dict[str, Any]]] = {
    # Input: the feature 1.
    "scanobjectnn": (
        Classifier,
        {
            "in_channels": 1,
            "num_classes": 15,
            "channels": (128, 256, 512),
            "head": 512,
            "radii": (0.1, 0.2, 0.4),
        },
    ),
    # Input: normals. Twice the features, half the radii.
    "modelnet40": (
        Classifier,
        {
            "in_channels": 3,
            "num_classes": 40,
            "channels": (256, 512, 1024),
            "head": 1024,
            "radii": (0.05, 0.1, 0.2),
        },
    ),
    # Input: colours. Class 0 is "unlabelled".
    "scannet": (
        SegmentationUNet,
        {
            "in_channels": 3,
            "num_classes": 21,
            "channels": (64, 128, 256, 512),
            "radii": (0.03, 0.06, 0.12, 0.24),
        },
    ),
}


def preset(name: str, **overrides: Any) -> Classifier | SegmentationUNet:
    """The paper's network for a data set: ``"scanobjectnn"``, ``"modelnet40"`` or ``"scannet"``.

    Args:
        name: of the data set.
        overrides: any argument of ``Classifier`` (``SegmentationUNet`` for ScanNet): ``method``, ``norm``,
            ``num_classes``, ``generator``...
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; known presets: {', '.join(PRESETS)}")
    network, options = PRESETS[name]
    return network(**{**options, **overrides})
