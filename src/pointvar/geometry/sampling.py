"""Fewer points: Poisson disks, farthest points, voxel averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pointvar import ops
from pointvar.cloud import PointCloud, check_cloud, per_cloud
from pointvar.geometry.search import draw_seed
from pointvar.ops.grid import widest


def poisson_disk(
    cloud: PointCloud, radius: float | Sequence[float] | Tensor, generator: torch.Generator | None = None
) -> Tensor:
    r"""Indices of a maximal subset whose points are at least ``radius`` apart, ascending.

    Points are visited in a random order that the generator fixes; one is kept if no kept point is
    closer than the radius. So :math:`\|y_i - y_j\| \ge r` for kept pairs, and every point of the
    cloud is kept or closer than r to a kept one. The result is the same on any number of threads.

    Args:
        cloud: a batch of clouds; each is thinned by itself.
        radius: a number, or one per cloud.
        generator: fixes the order; default: torch's global generator.
    """
    check_cloud(cloud)
    radii = per_cloud(radius, cloud, "radius")
    return ops.poisson_disk(cloud.points.detach(), cloud.offsets, radii, draw_seed(generator), cloud.names)


def farthest_points(
    cloud: PointCloud,
    ratio: float | None = None,
    count: int | Sequence[int] | Tensor | None = None,
    start: int | Sequence[int] | Tensor | None = None,
) -> Tensor:
    r"""Indices of points chosen one by one, each the farthest from those chosen before.

    Exact; of points equally far the one with the lower index is taken. Within a cloud the indices
    stand in the order of choice, so that a prefix is a sampling, too.

    Args:
        cloud: a batch of clouds; each is thinned by itself.
        ratio: share of each cloud's points to choose, in (0, 1], rounded up. Either this or count.
        count: points to choose, a number or one per cloud (all points of a cloud that has fewer).
        start: number of the first point within its cloud, one or one per cloud; default 0.
    """
    check_cloud(cloud)
    if (ratio is None) == (count is None):
        raise ValueError("farthest_points needs either ratio or count")
    lengths = cloud.lengths.cpu()
    if ratio is not None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio must lie in (0, 1], got {ratio}")
        counts = (lengths.double() * ratio - 1e-9).ceil().long()  # 7/13 of 13 are 7, whatever the rounding
        counts = torch.minimum(counts.clamp(min=1), lengths)
    else:
        counts = _integers(count, cloud, "count")
        if bool((counts < lengths.clamp(max=1)).any()):  # an empty cloud may be asked for nothing
            raise ValueError(f"count must be at least 1, got {count}")
        counts = torch.minimum(counts, lengths)
    first = torch.zeros_like(lengths) if start is None else _integers(start, cloud, "start")
    if bool(((first < 0) | (first >= lengths.clamp(min=1))).any()):
        raise ValueError(f"start must name a point of each cloud, got {start} for lengths {lengths.tolist()}")
    counts, first, total = counts.to(cloud.device), first.to(cloud.device), int(counts.sum())
    return ops.farthest_points(cloud.points.detach(), cloud.offsets, counts, first, total)


@dataclass(frozen=True)
class VoxelGrid:
    """Points averaged over the cells of a regular grid."""

    cloud: PointCloud
    """The averages, one point per occupied cell; the same number of clouds."""
    inverse: Tensor
    """``[N]``: the cell of each point, so that ``values[inverse]`` brings values back to the points."""
    counts: Tensor
    """Points in each cell."""

    def average(self, values: Tensor) -> Tensor:
        """Means of per-point values ``[N, ...]`` over the cells; differentiable."""
        if values.shape[:1] != self.inverse.shape:
            raise ValueError(f"values must have {len(self.inverse)} rows, got shape {list(values.shape)}")
        wide = values.to(widest(values.device))  # the average of equal numbers is that number
        sums = wide.new_zeros(len(self.counts), *values.shape[1:]).index_add(0, self.inverse, wide)
        return (sums / self.counts.view(-1, *[1] * (values.dim() - 1))).to(values.dtype)


def voxel_grid(cloud: PointCloud, size: float | Sequence[float] | Tensor) -> VoxelGrid:
    r"""Averages of the points in each cell :math:`\lfloor p / \mathrm{size} \rfloor` of a regular grid.

    Args:
        cloud: a batch of clouds; each has cells of its own.
        size: edge length of the cells, a number or one per cloud.
    """
    check_cloud(cloud)
    sizes = per_cloud(size, cloud, "size")[cloud.batch, None]
    wide = widest(cloud.device)
    cells = (cloud.points.detach().to(wide) / sizes.to(wide)).floor()
    group = cloud.batch
    for axis in cells.unbind(1):
        group = _ranks(group, axis)
    numbers = torch.arange(cloud.num_points, device=cloud.device)
    ends = torch.searchsorted(group.sort().values, numbers, right=True)
    occupied = int(group.max()) + 1 if cloud.num_points else 0
    counts = ends[:occupied].diff(prepend=ends.new_zeros(1))
    grid = VoxelGrid(cloud, group, counts)
    clouds = torch.zeros_like(counts).scatter(0, group, cloud.batch)
    bounds = torch.searchsorted(clouds, torch.arange(cloud.num_clouds + 1, device=cloud.device))
    return VoxelGrid(PointCloud._trusted(grid.average(cloud.points), bounds), group, counts)


def _ranks(first: Tensor, second: Tensor) -> Tensor:
    """Each pair's place among the different pairs, ascending."""
    order = second.argsort(stable=True)
    order = order[first[order].argsort(stable=True)]
    a, b = first[order], second[order]
    new = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    places = torch.cat([torch.zeros_like(order[:1]), new.cumsum(0)])
    return torch.empty_like(order).scatter(0, order, places)


def _integers(value: object, cloud: PointCloud, name: str) -> Tensor:
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.full((cloud.num_clouds,), value)
    if not isinstance(value, (Sequence, Tensor)):
        raise TypeError(f"{name} must be an integer or one per cloud, got {type(value).__name__}")
    values = torch.as_tensor(value).cpu()
    if values.dtype != torch.int64 or values.shape != (cloud.num_clouds,):
        raise ValueError(f"{name} must be one integer for each of the {cloud.num_clouds} clouds, got {value}")
    return values
