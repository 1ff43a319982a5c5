"""What all geometry that runs on a device shares: its checks, and points sorted into cells.

The cells of a grid are as large as the search radius, so that the neighbours of a point lie in the 3^D cells
around it; cells that differ only in the first coordinate follow each other, so these are 3^(D-1) ranges of
the sorted points. The host does not look at the numbers here: it would have to wait for them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)
LARGEST_KEY = float(1 << 62)


class Checks:
    """What must hold of the numbers that an operator is given; all of it is looked at together, once."""

    def __init__(self) -> None:
        self._right: list[Tensor] = []
        self._messages: list[str] = []

    def demand(self, right: Tensor, message: str) -> None:
        self._right.append(right.all().long())
        self._messages.append(message)

    def settle(self, *numbers: Tensor) -> list[int]:
        """Raises for the first demand that is not met; else tells the host these vectors of integers, too."""
        told = torch.cat([torch.stack(self._right), *numbers]).tolist()  # the one time that the host waits
        for right, message in zip(told, self._messages, strict=False):
            if not right:
                raise ValueError(message)
        return told[len(self._right) :]

    # What the native kernels demand as well

    def points(self, points: Tensor, offsets: Tensor, per_cloud: Tensor | None = None) -> None:
        if points.dim() != 2 or points.shape[1] not in (1, 2, 3) or points.dtype not in FLOATS:
            raise ValueError(
                "points must have 1, 2 or 3 coordinates, float32 or float64, "
                f"got {list(points.shape)}, {points.dtype}"
            )
        self.offsets(offsets, len(points))
        self.demand(torch.isfinite(points), "points must be finite, got NaN or infinity")
        if per_cloud is None:
            return
        if per_cloud.shape != (len(offsets) - 1,) or per_cloud.dtype != points.dtype:
            raise ValueError(f"one {points.dtype} value per cloud is needed, got {list(per_cloud.shape)}")
        usable = torch.isfinite(per_cloud) & (per_cloud > 0)
        self.demand(usable, "a radius or bandwidth must be positive and finite")

    def pair(
        self,
        support: Tensor,
        support_offsets: Tensor,
        queries: Tensor,
        query_offsets: Tensor,
        radius: Tensor | None = None,
    ) -> None:
        self.points(support, support_offsets, radius)
        self.points(queries, query_offsets)
        kinds = (support.shape[1], support.dtype, len(support_offsets))
        if kinds != (queries.shape[1], queries.dtype, len(query_offsets)):
            raise ValueError("support and queries must agree in dimension, dtype and number of clouds")

    def names(self, names: Tensor | None, points: Tensor) -> None:
        if names is not None and (names.shape != points.shape[:1] or names.dtype != torch.int64):
            raise ValueError(
                f"names must hold one int64 number per point, got {list(names.shape)}, {names.dtype}"
            )

    def offsets(self, offsets: Tensor, total: int) -> None:
        if offsets.dim() != 1 or offsets.dtype != torch.int64 or not len(offsets):
            raise ValueError(f"offsets must be [B + 1], int64, got {list(offsets.shape)}, {offsets.dtype}")
        message = "offsets must run from 0 to the number of rows and must not descend"
        self.demand((offsets[:1] == 0) & (offsets[-1:] == total), message)
        self.demand(offsets[1:] >= offsets[:-1], message)


class Grid(NamedTuple):
    """Support points by cell, and where in this order the cells around each query stand."""

    order: Tensor  # [N]
    begin: Tensor  # [M, R]
    sizes: Tensor  # [M, R]


def grid(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, radius: Tensor
) -> Grid:
    keys, query_keys, strides = _cell_keys(
        *(support, cloud_of(support_offsets, len(support))),
        *(queries, cloud_of(query_offsets, len(queries)), radius),
    )
    keys, order = keys.sort()
    steps = torch.zeros(1, dtype=torch.int64, device=keys.device)
    for stride in strides:  # the rows of cells around a cell
        steps = (steps[:, None] + stride * torch.arange(-1, 2, device=keys.device)).flatten()
    begin = torch.searchsorted(keys, query_keys[:, None] + (steps - 1))
    end = torch.searchsorted(keys, query_keys[:, None] + (steps + 1), right=True)
    return Grid(order, begin, end - begin)


def _cell_keys(
    support: Tensor, cloud_s: Tensor, queries: Tensor, cloud_q: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """One integer per cell, neighbours along the first axis adjacent, with a margin all around."""
    wide = widest(support.device)
    points, others, clouds = support.to(wide), queries.to(wide), len(radius)
    low, high = boxes(points, cloud_s, clouds)
    extent = (high - low).clamp(min=0).nan_to_num(posinf=0.0)  # an empty cloud has none
    largest = extent.amax(1)
    # Rounding must not move two neighbours more than one cell apart.
    relative, absolute = (1e-6, 1e-15) if wide == torch.float64 else (1e-5, 1e-6)
    cell = radius.to(wide) * (1 + relative) + largest * absolute
    # All cells must have a number: twice as large until they have.
    cell = torch.maximum(cell, largest * 2.0**-61)
    factors = torch.arange(64, device=cell.device).to(wide).exp2()
    sizes = (extent / (cell[:, None] * factors[:, None, None])).floor().amax(1) + 5  # [64, D]
    fits = sizes.prod(1) * clouds <= LARGEST_KEY
    fit = fits.long().argmax(0, keepdim=True)
    cell, sizes = cell * factors[fit], sizes[fit].squeeze(0)
    strides = sizes.long().cumprod(0)

    def key(p: Tensor, cloud: Tensor) -> Tensor:
        at = ((p - low[cloud]) / cell[cloud][:, None]).floor()
        at = torch.minimum(at.clamp(min=-2), sizes - 3).long() + 2
        result = cloud * strides[-1] + at[:, 0]
        for d in range(1, p.shape[1]):
            result = result + at[:, d] * strides[d - 1]
        return result

    return key(points, cloud_s), key(others, cloud_q), list(strides[:-1].unbind())


def widest(device: torch.device) -> torch.dtype:
    """The dtype for what needs digits: float64, but for Apple's devices, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def boxes(points: Tensor, cloud: Tensor, clouds: int) -> tuple[Tensor, Tensor]:
    """The lowest and the highest coordinates of each cloud, infinite where it is empty."""
    index = cloud[:, None].expand_as(points)
    empty = points.new_full((clouds, points.shape[1]), torch.inf)
    return empty.scatter_reduce(0, index, points, "amin"), (-empty).scatter_reduce(0, index, points, "amax")


def cloud_of(offsets: Tensor, total: int) -> Tensor:
    """``[N]``: the cloud, or the row, of each of ``total`` entries."""
    places = torch.arange(total, device=offsets.device)
    return torch.searchsorted(offsets[1:].contiguous(), places, right=True)


def cumulate(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
