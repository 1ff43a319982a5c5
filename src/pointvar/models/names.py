"""The networks by name, as a configuration has them. A new one is a line here, and a file of its own.

An entry is a class with a ``task`` ("classification" or "segmentation"), made with ``in_channels``,
``num_classes`` and whatever settings of the model it names; `Network` says what else it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pointvar.registry import Registry

if TYPE_CHECKING:
    from pointvar.models.network import Network

NETWORKS: Registry[type[Network]] = Registry(
    "network",
    {
        "classifier": "pointvar.models.classifier:Classifier",
        "unet": "pointvar.models.unet:SegmentationUNet",
        "pointconv": "pointvar.models.pointconv:PointConvNet",
        "pointconv-classifier": "pointvar.models.pointconv:PointConvClassifier",
    },
)
