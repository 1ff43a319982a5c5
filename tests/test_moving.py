"""What goes to a device goes whole, without waiting, and nothing is computed there again.

No GPU is needed: copies are counted on their way to the meta device, which holds no numbers.
"""

from typing import Any

import pytest
import torch
from strategies import random_cloud
from torch.utils._python_dispatch import TorchDispatchMode

import pointvar as pv
from pointvar.data import Batch
from pointvar.geometry import Needs
from pointvar.train.loader import Prepared


class Copies(TorchDispatchMode):
    """``with Copies() as seen: ...``; then whether each copy to another device would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.waits.append(not kwargs.get("non_blocking"))
        return func(*args, **(kwargs or {}))


def known_cloud() -> pv.PointCloud:
    """One that knows its batch, its order and its densities."""
    cloud = random_cloud([20, 0, 10])
    pv.kernel_density(cloud, 0.2)
    pv.ball_query(cloud, cloud, 0.3).orders()
    assert cloud.batch.shape == (30,)
    return cloud


def hierarchy() -> pv.Hierarchy:
    hoods = [(0, 0, None), (0, 1, None), (1, 0, None)]
    needs = Needs(0.2, weights=True, transposed=True)
    return pv.Hierarchy(known_cloud(), [0.1, 0.2], 2.0, 8, hoods=hoods, needs=needs)


MADE = {
    "cloud": known_cloud,
    "neighborhood": lambda: pv.ball_query(known_cloud(), random_cloud([5, 1, 2]), 0.3),
    "hierarchy": hierarchy,
    "batch": lambda: Batch(
        known_cloud(), torch.zeros(30, 3), torch.zeros(3, dtype=torch.int64), ["a", "b", "c"]
    ),
    "prepared": lambda: Prepared(torch.zeros(30, 3), hierarchy(), torch.zeros(3, dtype=torch.int64), 0),
}


@pytest.mark.parametrize("name", MADE)
def test_no_copy_waits(name: str) -> None:
    given = MADE[name]()
    with Copies() as seen:
        given.to("meta", non_blocking=True)
    assert seen.waits
    assert not any(seen.waits)


def test_a_cloud_takes_along_what_it_knows() -> None:
    cloud = known_cloud()
    moved = cloud.to("meta")
    assert moved.carried().keys() == cloud.carried().keys() != set()
    assert {value.device.type for value in moved.carried().values()} == {"meta"}
    assert not cloud.to(torch.float64).carried()  # densities would have other digits
    with Copies() as seen:
        assert moved.batch.shape == moved.points.shape[:1]
    assert not seen.waits


def test_a_hierarchy_travels_in_a_few_copies() -> None:
    """However many levels and neighbourhoods there are, and all that was made of it."""
    levels = hierarchy()
    with Copies() as seen:
        moved = levels.to("meta", non_blocking=True)
    assert len(seen.waits) <= 4
    hoods = [(levels.within(0), moved.within(0)), (levels.down(0), moved.down(0))]
    for here, there in hoods:
        assert there.carried().keys() == here.carried().keys()
        assert {"offsets", "transposed"} <= there.carried().keys()


class Operators(TorchDispatchMode):
    """Which operators of pointvar are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        library, name = func._schema.name.split("::")
        self.seen |= {name} if library == "pointvar" else set()
        return func(*args, **(kwargs or {}))


def test_nothing_is_computed_again_where_it_arrives() -> None:
    levels = hierarchy()
    moved = levels._moved(torch.clone)
    conv = pv.MCConv(3, 3)
    features = torch.rand(len(levels.clouds[0]), 3, requires_grad=True)
    with Operators() as operators:
        conv(conv(features, moved.within(0)), moved.down(0)).sum().backward()
    assert operators.seen == {"convolve", "convolve_backward"}
