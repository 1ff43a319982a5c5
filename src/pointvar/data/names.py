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
        "shapes": "pointvar.data.synthetic:from_settings",
        "rooms": "pointvar.data.rooms:from_settings",
        "modelnet": "pointvar.data.modelnet:from_settings",
        "scanobjectnn": "pointvar.data.scanobjectnn:from_settings",
        "scannet": "pointvar.data.scannet:from_settings",
        "folder": "pointvar.data.folder:from_settings",
        "npz": "pointvar.data.modelnet:from_settings",
    },
)

GROUND = 40.0
"""Side of the window of the height above ground, unless another is given: wider than a house, in metres."""
