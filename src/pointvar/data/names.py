"""The data sets by name, as a configuration has them. A new one is a line here, and a file of its own.

An entry is called with the settings of the data and "train" or "test", and gives a `PointData`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pointvar.registry import Registry

if TYPE_CHECKING:
    from pointvar.data.base import PointData

DATASETS: Registry[Callable[[Any, str], PointData]] = Registry(
    "data set",
    {
        "shapes": "pointvar.train.sources:_shapes",
        "rooms": "pointvar.train.sources:_rooms",
        "modelnet": "pointvar.train.sources:_modelnet",
        "scanobjectnn": "pointvar.train.sources:_scanobjectnn",
        "scannet": "pointvar.train.sources:_scannet",
        "folder": "pointvar.train.sources:_folder",
        "npz": "pointvar.train.sources:_modelnet",
    },
)
