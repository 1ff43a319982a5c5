"""The paper's networks for its data sets, by name, as the recipes have them."""

from __future__ import annotations

from typing import Any

from pointvar.models.classifier import Classifier
from pointvar.models.names import NETWORKS
from pointvar.models.unet import SegmentationUNet
from pointvar.recipes import RECIPES
from pointvar.registry import Registry


def _network(recipe: str, **others: Any) -> tuple[Any, dict[str, Any]]:
    options = {**RECIPES["published"]["model"], **RECIPES[recipe]["model"], **others}
    return NETWORKS[options.pop("network")], options


PRESETS: dict[str, tuple[type[Classifier | SegmentationUNet], dict[str, Any]]] = {
    # Input: the feature 1.
    "scanobjectnn": _network("scanobjectnn", in_channels=1, num_classes=15),
    # Input: normals.
    "modelnet40": _network("modelnet40", in_channels=3, num_classes=40),
    # Input: colours. Class 0 is "unlabelled". The first reach is the paper's, 3; the recipe has
    # that of the authors' code, 1.5.
    "scannet": _network("scannet", in_channels=3, num_classes=21, first_reach=None),
}
"""Name -> the network and its arguments."""


def preset(name: str, **overrides: Any) -> Classifier | SegmentationUNet:
    """The paper's network for a data set: ``"scanobjectnn"``, ``"modelnet40"`` or ``"scannet"``.

    Args:
        name: of the data set.
        overrides: any argument of ``Classifier`` (``SegmentationUNet`` for ScanNet): ``method``, ``norm``,
            ``num_classes``, ``generator``...
    """
    network, options = Registry("preset", PRESETS).resolve(name)
    return network(**{**options, **overrides})
