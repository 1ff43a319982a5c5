"""The geometric operators on a GPU, with the signatures of ``reference.py``, which has all others.

Cells are made by torch (``grid.py``), what is in them is looked at by Triton kernels. Choices at random are
those of the reference, number by number. The host waits a few times a call: to see whether the points are
right, how many neighbours there are, and whether all rounds are done.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pointvar.ops import reference
from pointvar.ops.grid import Checks, Grid, cloud_of, cumulate, grid
from pointvar.ops.reference import CUT, _named, _priority, _rank_in_row
from pointvar.ops.triton_convolve import COMPILED, _on

BLOCK = 32  # candidates of a query that are looked at together
CLOUD_BLOCK = 1024  # points of a cloud
ROUNDS = 8  # of Poisson disks, before the host looks whether all are decided
SEARCHES = 2  # of nearest points, each twice as far


def ball_query(
    support: Tensor,
    support_offsets: Tensor,
    queries: Tensor,
    query_offsets: Tensor,
    radius: Tensor,
    max_neighbors: int,
    seed: int,
    support_names: Tensor | None = None,
    query_names: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    checks = Checks()
    checks.pair(support, support_offsets, queries, query_offsets, radius)
    checks.names(support_names, support)
    checks.names(query_names, queries)
    checks.settle()
    search = _Search(support, support_offsets, queries, query_offsets, radius)
    total_counts = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    search("neighbours", total_counts, None, None)
    counts = total_counts if max_neighbors < 0 else total_counts.clamp(max=max_neighbors)
    every, row_offsets = cumulate(total_counts), cumulate(counts)
    number, kept = torch.stack([every[-1], row_offsets[-1]]).tolist()
    keys = torch.empty(number, dtype=torch.int64, device=queries.device)
    search("neighbours", total_counts, keys, every)
    rows = cloud_of(every, number)
    found = keys.sort().values - rows * len(support)
    if kept < number:
        pair = _named(query_names, rows), _named(support_names, found)
        first = _rank_in_row(rows, _priority(seed, *pair)) < max_neighbors
        place = torch.where(first, first.cumsum(0) - 1, kept)  # behind all for those that are left out
        found = torch.empty_like(keys[: kept + 1]).scatter(0, place, found)[:kept]
    return row_offsets, found, total_counts


def knn(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    checks = Checks()
    checks.pair(support, support_offsets, queries, query_offsets)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    sizes = support_offsets.diff().clamp(0, k)
    # Where offsets are wrong there is no such cloud, and the error comes before the numbers are used.
    cloud = cloud_of(query_offsets, len(queries)).clamp(max=max(len(sizes) - 1, 0))
    wanted = sizes[cloud] if len(sizes) else cloud
    row_offsets = cumulate(wanted)
    (number,) = checks.settle(row_offsets[-1:])
    keys = torch.empty(number, dtype=torch.int64, device=queries.device)
    farthest, done = torch.full_like(wanted, -1), (wanted == 0).int()
    radius = reference.first_radius(support, support_offsets, k)
    left = number > 0
    while left:  # those without k neighbours in reach look twice as far
        for _ in range(SEARCHES):
            search = _Search(support, support_offsets, queries, query_offsets, radius)
            search("nearest", keys, farthest, done, row_offsets)
            radius = radius * 2
        left = not bool(done.all())
    return row_offsets, keys.sort().values - cloud_of(row_offsets, number) * len(support), farthest


def poisson_disk(
    points: Tensor, offsets: Tensor, radius: Tensor, seed: int, names: Tensor | None = None
) -> Tensor:
    rank = reference.disk_ranks(points, offsets, radius, seed, names)
    search = _Search(points, offsets, points, offsets, radius)
    state = torch.zeros_like(rank, dtype=torch.int32)
    left = len(points) > 0
    while left:
        for _ in range(ROUNDS):
            search("disks", state, rank)
        left = not bool((state > 0).all())
    return (state == 1).nonzero().squeeze(1)


def farthest_points(points: Tensor, offsets: Tensor, counts: Tensor, start: Tensor, total: int) -> Tensor:
    from pointvar.ops import triton_geometry_kernels as kernels

    reference.check_farthest(points, offsets, counts, start, total)
    chosen = torch.empty(total, dtype=torch.int64, device=points.device)
    distance = points.new_full((len(points),), math.inf)
    parts = points.contiguous(), offsets.contiguous(), counts.contiguous(), start.contiguous()
    if total:
        with _on(points):
            kernels.farthest[len(counts),](
                *(chosen, distance, *parts, cumulate(counts)),
                **{"D": points.shape[1], "BLOCK": CLOUD_BLOCK, "num_warps": 8, **COMPILED},
            )
    return chosen


def kernel_density(points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    checks = Checks()
    checks.points(points, offsets, bandwidth)
    checks.settle()
    search, h = _Search(points, offsets, points, offsets, CUT * bandwidth), _each(bandwidth, offsets, points)
    result = torch.zeros_like(h)
    search("density", result, None, None, bandwidth=h)
    return result / (math.sqrt(2 * math.pi) * h) ** points.shape[1]


def kernel_density_backward(grad: Tensor, points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    reference.check_density_gradient(grad, points, offsets, bandwidth)
    search, h = _Search(points, offsets, points, offsets, CUT * bandwidth), _each(bandwidth, offsets, points)
    slopes = torch.zeros(points.shape, dtype=points.dtype, device=points.device)
    search("density", None, slopes, grad.contiguous(), bandwidth=h)
    return slopes / ((math.sqrt(2 * math.pi) * h) ** points.shape[1] * h * h)[:, None]


class _Search:
    """Points in cells, ready for kernels that look at the cells around each query."""

    def __init__(
        self,
        support: Tensor,
        support_offsets: Tensor,
        queries: Tensor,
        query_offsets: Tensor,
        radius: Tensor,
    ) -> None:
        self.number, self.queries = len(support), queries.contiguous()
        if not self._empty:
            cells: Grid = grid(support, support_offsets, queries, query_offsets, radius)
            self._sorted = support[cells.order], cells.order
            self._cells = cells.begin.contiguous(), cells.sizes.contiguous()
            reach = torch.where(radius.isinf(), math.nan, radius * radius)  # endless: nothing is beyond it
            self._reaches = _each(reach, query_offsets, queries)

    @property
    def _empty(self) -> bool:
        return not self.number or not len(self.queries)

    def __call__(self, name: str, *own: Tensor | None, bandwidth: Tensor | None = None) -> None:
        """Starts the kernel of this name with its own arguments first."""
        from pointvar.ops import triton_geometry_kernels as kernels

        if self._empty:
            return
        widths = () if bandwidth is None else (bandwidth,)
        numbers: tuple[Any, ...] = (self.number,) if name in ("neighbours", "nearest") else ()
        with _on(self.queries):
            getattr(kernels, name)[len(self.queries),](
                *(*own, *self._sorted, self.queries, *widths, self._reaches, *self._cells, *numbers),
                **{"D": self.queries.shape[1], "R": self._cells[0].shape[1], "BLOCK": BLOCK},
                **{"num_warps": 1, **COMPILED},
            )


def _each(per_cloud: Tensor, offsets: Tensor, points: Tensor) -> Tensor:
    """A value per cloud for each of its points."""
    return per_cloud[cloud_of(offsets, len(points))].contiguous()
