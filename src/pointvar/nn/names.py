"""The normalisations by name. A new one is a line here, and a file of its own.

An entry makes a module ``(features, cloud) -> features`` for so many channels: ``entry(channels)``. One with
a parameter ``bias`` or ``momentum`` gets those of `make_norm`.
"""

from collections.abc import Callable
from typing import Any

from pointvar.registry import Registry

NORMS: Registry[Callable[..., Any]] = Registry(
    "norm",
    {
        "none": "pointvar.nn.norm:no_norm",
        "batch": "pointvar.nn.norm:BatchNorm",
        "group": "pointvar.nn.norm:CloudGroupNorm",
        "layer": "pointvar.nn.norm:LayerNorm",
    },
)
