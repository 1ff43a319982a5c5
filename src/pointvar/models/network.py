"""What all networks share: they remember how they were made, and check the levels that they are given."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from pointvar.geometry import Hierarchy


class Network(nn.Module):
    """A network that remembers its arguments, so that ``save`` can write them.

    One that is listed in ``NETWORKS`` has a ``task``, ``hierarchy(cloud, generator=None)`` that makes its
    levels, and ``forward(features, levels)``. To be saved, its arguments must be numbers, strings, lists of
    such, or a named method; a generator is not remembered.
    """

    task: str
    arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Network:
        network = super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind_partial(network, *args, **kwargs)
        given = {*bound.arguments}
        bound.apply_defaults()  # a file must not depend on defaults, which may change
        network.__dict__["arguments"] = {
            name: value
            for name, value in bound.arguments.items()
            if name not in ("self", "generator")
            and (name in given or isinstance(value, (bool, int, float, str, tuple)))
        }
        return network


def check_levels(levels: object, count: int) -> None:
    """A network takes a hierarchy with as many levels as it has itself."""
    if not isinstance(levels, Hierarchy):
        raise TypeError(f"a network takes features and a Hierarchy, got {type(levels).__name__}")
    if len(levels) != count:
        raise ValueError(f"the network has {count} levels, the hierarchy {len(levels)}")
