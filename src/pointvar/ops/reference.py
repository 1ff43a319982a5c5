"""The geometric operators in plain torch: the definition of each result, on any device.

Neighbours are found with the cells of ``grid.py``. Pairs are made in chunks: memory stays bounded. The host
waits for numbers only where it must know how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointvar.ops.grid import Checks, Grid, boxes, cloud_of, cumulate, grid, widest

CHUNK = 1 << 22  # candidate pairs held at a time
CUT = 4.0  # the density's Gaussian ends at this many bandwidths


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
    """Names: the numbers by which random choices know the points; ``None``: their own."""
    checks = Checks()
    checks.pair(support, support_offsets, queries, query_offsets, radius)
    checks.names(support_names, support)
    checks.names(query_names, queries)
    checks.settle()
    total_counts = queries.new_zeros(queries.shape[0], dtype=torch.int64)
    indices = [total_counts[:0]]
    for rows, found, _ in _pairs(support, support_offsets, queries, query_offsets, radius):
        total_counts += _counts(rows, len(total_counts))
        if max_neighbors >= 0:
            pair = _named(query_names, rows), _named(support_names, found)
            found = found[(_rank_in_row(rows, _priority(seed, *pair)) < max_neighbors).nonzero().squeeze(1)]
        indices.append(found)
    counts = total_counts if max_neighbors < 0 else total_counts.clamp(max=max_neighbors)
    return cumulate(counts), torch.cat(indices), total_counts


def knn(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    checks = Checks()
    checks.pair(support, support_offsets, queries, query_offsets)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    checks.settle()
    cloud, clouds = cloud_of(query_offsets, len(queries)), len(query_offsets) - 1
    wanted = support_offsets.diff().clamp(max=k)[cloud]
    farthest = torch.full_like(cumulate(wanted), -1)  # one more, for what is none
    rows, indices = [wanted[:0]], [wanted[:0]]
    radius = first_radius(support, support_offsets, k)
    left = wanted.nonzero().squeeze(1)
    while left.numel():  # those without k neighbours in reach look twice as far
        offsets = cumulate(_counts(cloud[left], clouds))
        need = wanted[left]
        done = torch.zeros_like(left, dtype=torch.bool)
        for local, near, squared in _pairs(support, support_offsets, queries[left], offsets, radius):
            enough = _counts(local, len(left)) >= need
            rank = _rank_in_row(local, squared)
            last = enough[local] & (rank == need[local] - 1)
            farthest.scatter_(0, torch.where(last, left[local], len(queries)), near)
            chosen = (enough[local] & (rank < need[local])).nonzero().squeeze(1)
            rows.append(left[local[chosen]])
            indices.append(near[chosen])
            done |= enough
        left = left[(~done).nonzero().squeeze(1)]
        radius = radius * 2
    order = torch.cat(rows).argsort(stable=True)
    return cumulate(wanted), torch.cat(indices)[order], farthest[:-1]


def poisson_disk(
    points: Tensor, offsets: Tensor, radius: Tensor, seed: int, names: Tensor | None = None
) -> Tensor:
    """Greedy in the order of random priorities; rounds decide all local firsts at once.

    Names: the numbers of the points, in another order within each cloud, by which priorities know them.
    """
    rank = disk_ranks(points, offsets, radius, seed, names)
    if not len(points):
        return rank
    cells = grid(points, offsets, points, offsets, radius)
    reach = _Reach(points, points, cloud_of(offsets, len(points)), radius)
    waiting, never = rank, len(rank)  # the rank of points that are not decided
    kept = torch.zeros_like(rank, dtype=torch.bool)
    left = torch.arange(len(rank), device=rank.device)

    def near(chunk: _Chunk) -> tuple[Tensor, Tensor, Tensor]:
        query, found = _candidates(chunk)
        return query, found, reach(left[query], found)[1]

    while left.numel():
        first, *chunks = _chunks(Grid(cells.order, cells.begin[left], cells.sizes[left]))
        seen = near(first)  # both times
        least = torch.full_like(left, never)
        for query, found, close in chain([seen], map(near, chunks)):
            least.scatter_reduce_(0, query, torch.where(close, waiting[found], never), "amin")
        new = torch.zeros_like(kept)
        new[left] = least == rank[left]
        covered = torch.zeros_like(left)
        for query, found, close in chain([seen], map(near, chunks)):
            covered.scatter_reduce_(0, query, (close & new[found]).long(), "amax")
        kept |= new
        waiting = waiting.index_fill(0, left, never)
        left = left[(covered == 0).nonzero().squeeze(1)]
        waiting[left] = rank[left]
    return kept.nonzero().squeeze(1)


def spatial_order(points: Tensor, offsets: Tensor) -> Tensor:
    """Cloud by cloud along a Z-shaped curve: cells of a grid over the box of each cloud, 30 / D bits an axis,
    ordered by their numbers with the bits interleaved; points of one cell in their own order."""
    checks = Checks()
    checks.points(points, offsets)
    checks.settle()
    cloud, bits = cloud_of(offsets, len(points)), 30 // points.shape[1]
    wide = points.to(widest(points.device))
    low, high = (bound.nan_to_num(posinf=0.0, neginf=0.0) for bound in boxes(wide, cloud, len(offsets) - 1))
    scale = (1 << bits) / (high - low).clamp(min=1e-200)
    cells = ((wide - low[cloud]) * scale[cloud]).nan_to_num(0.0).clamp(0, (1 << bits) - 1).long()
    code = cloud << 30
    for axis, cell in enumerate(cells.unbind(1)):
        code = code + (_spread(cell, points.shape[1]) << axis)
    return code.argsort(stable=True)


def farthest_points(points: Tensor, offsets: Tensor, counts: Tensor, start: Tensor, total: int) -> Tensor:
    chosen = [offsets[:0]]
    for begin, end, count, first in check_farthest(points, offsets, counts, start, total):
        cloud = points[begin:end]
        distance = cloud.new_full((end - begin,), math.inf)
        pick = torch.full_like(offsets[:1], first)
        for _ in range(count):
            chosen.append(pick + begin)
            distance = torch.minimum(distance, _squared_distance(cloud, cloud[pick]))
            distance.index_fill_(0, pick, -1)  # never twice, also where points coincide
            pick = distance.argmax(0, keepdim=True)  # the first of equals
    return torch.cat(chosen)


def kernel_density(points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    checks = Checks()
    checks.points(points, offsets, bandwidth)
    checks.settle()
    density = torch.zeros_like(points[:, 0])
    h = bandwidth[cloud_of(offsets, len(points))]
    for rows, _, squared in _pairs(points, offsets, points, offsets, CUT * bandwidth):
        density.index_add_(0, rows, _gaussian(squared, h[rows], points.shape[1]))
    return density


def kernel_density_backward(grad: Tensor, points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    check_density_gradient(grad, points, offsets, bandwidth)
    result = torch.zeros_like(points)
    every = bandwidth[cloud_of(offsets, len(points))]
    for rows, found, squared in _pairs(points, offsets, points, offsets, CUT * bandwidth):
        h = every[rows]
        slope = (grad[rows] + grad[found]) * _gaussian(squared, h, points.shape[1]) / (h * h)
        result.index_add_(0, rows, slope[:, None] * (points[found] - points[rows]))
    return result


def transpose(row_offsets: Tensor, indices: Tensor, num_support: int) -> tuple[Tensor, Tensor, Tensor]:
    if not 0 <= num_support < 1 << 31:
        raise ValueError(f"at most 2^31 - 1 support points, and not fewer than 0, got {num_support}")
    checks = Checks()
    checks.offsets(row_offsets, len(indices))
    inside = (indices >= 0) & (indices < num_support)
    checks.demand(inside, f"index out of range: there are {num_support} support points")
    checks.settle()
    points, edges = indices.sort(stable=True)
    rows = cloud_of(row_offsets, len(indices))
    return cumulate(_counts(points, num_support)), rows[edges], edges


# Parts that other backends share


def disk_ranks(
    points: Tensor, offsets: Tensor, radius: Tensor, seed: int, names: Tensor | None = None
) -> Tensor:
    """``[N]``: the place of each point in the order in which Poisson disks are chosen; all is checked."""
    checks = Checks()
    checks.points(points, offsets, radius)
    checks.names(names, points)
    cloud = cloud_of(offsets, len(points))
    numbers = torch.arange(len(points), device=points.device)
    by_name = numbers
    if names is not None:
        by_name = names.argsort()
        inside = names.clamp(0, len(points) - 1)
        once = (names[by_name] == numbers) & (inside == names) & (cloud[inside] == cloud)
        checks.demand(once, "names must be the numbers of the points of each cloud, each once")
    checks.settle()
    priority = _priority(seed, torch.zeros_like(numbers), numbers) >> 31
    return torch.empty_like(numbers).scatter(0, by_name[priority.argsort(stable=True)], numbers)


def check_farthest(points: Tensor, offsets: Tensor, counts: Tensor, start: Tensor, total: int) -> list[Any]:
    """Begin, end, count and start of each cloud."""
    checks = Checks()
    checks.points(points, offsets)
    sizes = offsets.diff()
    if counts.shape != sizes.shape or start.shape != sizes.shape:
        raise ValueError("counts and start need one value per cloud, and total must be the sum of counts")
    checks.demand(
        counts.sum() == total,
        "counts and start need one value per cloud, and total must be the sum of counts",
    )
    named = (counts == 0) | ((start >= 0) & (start < sizes))
    checks.demand(
        (counts >= 0) & (counts <= sizes) & named,
        "counts must not exceed the points of a cloud, and start must name one of them",
    )
    told, clouds = checks.settle(offsets[:-1], offsets[1:], counts, start), len(sizes)
    return list(zip(*(told[i * clouds : (i + 1) * clouds] for i in range(4)), strict=True))


def check_density_gradient(grad: Tensor, points: Tensor, offsets: Tensor, bandwidth: Tensor) -> None:
    checks = Checks()
    checks.points(points, offsets, bandwidth)
    if grad.shape != points.shape[:1] or grad.dtype != points.dtype:
        raise ValueError(
            f"grad needs one {points.dtype} value per point, got {list(grad.shape)}, {grad.dtype}"
        )
    checks.settle()


def first_radius(support: Tensor, offsets: Tensor, k: int) -> Tensor:
    """A first guess per cloud: the radius that would hold k points if they filled their box."""
    wide, sizes = support.to(widest(support.device)), offsets.diff()
    low, high = boxes(wide, cloud_of(offsets, len(support)), len(sizes))
    extent = (high - low).clamp(min=0).amax(1)
    share = k / sizes.clamp(min=1).to(wide.dtype)
    radius = (extent * share ** (1 / support.shape[1]) / 2).to(support.dtype)
    return torch.where(radius > 0, radius, 1.0)


# Parts


def _pairs(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, radius: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All pairs of one cloud closer than its radius, as (query, support, squared distance).

    Ascending by query, then by support; a query's pairs are never split over two chunks.
    """
    if not len(support) or not len(queries):
        return
    reach = _Reach(support, queries, cloud_of(query_offsets, len(queries)), radius)
    for chunk in _chunks(grid(support, support_offsets, queries, query_offsets, radius)):
        query, found = _candidates(chunk)
        squared, near = reach(query, found)
        near = near.nonzero().squeeze(1)
        query, found, squared = (part.index_select(0, near) for part in (query, found, squared))
        sort = (query * len(support) + found).argsort()
        yield query[sort], found[sort], squared[sort]


class _Reach:
    """Which pairs of points are closer than their cloud's radius."""

    def __init__(self, support: Tensor, queries: Tensor, cloud: Tensor, radius: Tensor) -> None:
        self.support, self.queries = support, queries
        self.squared_radius, self.endless = (radius * radius)[cloud], radius.isinf()[cloud]

    def __call__(self, query: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        squared = _squared_distance(self.support.index_select(0, found), self.queries.index_select(0, query))
        reach = self.squared_radius.index_select(0, query)
        return squared, (squared < reach) | self.endless.index_select(0, query)


class _Chunk(NamedTuple):
    """Consecutive queries, and how many candidates they have in the cells around them."""

    first: int
    candidates: int
    cells: Grid


def _chunks(cells: Grid) -> Iterator[_Chunk]:
    """Consecutive queries whose candidates fit into a chunk together, the last of them perhaps beyond it."""
    work = cells.sizes.sum(1)
    ends = cumulate(work)
    total = int(ends[-1])
    if total <= CHUNK:
        yield _Chunk(0, total, cells)
        return
    places = torch.arange(-(-total // CHUNK) + 1, device=work.device)
    bounds = torch.searchsorted(ends[:-1] // CHUNK, places)
    told = torch.stack([bounds, ends[bounds]], 1).tolist()
    for (start, done), (stop, then) in pairwise(told):
        if stop > start:
            part = Grid(cells.order, cells.begin[start:stop], cells.sizes[start:stop])
            yield _Chunk(start, then - done, part)


def _candidates(chunk: _Chunk) -> tuple[Tensor, Tensor]:
    """Queries and support points of the cells around them."""
    first, total, (order, begin, sizes) = chunk
    sizes, number = sizes.flatten(), sizes.shape[1]
    cell = torch.repeat_interleave(sizes, output_size=total)
    shift = begin.flatten() - cumulate(sizes)[:-1]
    place = shift.index_select(0, cell) + torch.arange(total, device=cell.device)
    return first + cell // number, order.index_select(0, place)


def _squared_distance(a: Tensor, b: Tensor) -> Tensor:
    squared = torch.zeros_like(a[..., 0])
    for d in range(a.shape[-1]):  # left to right, one rounding per operation, as everywhere
        difference = a[..., d] - b[..., d]
        squared = squared + difference * difference
    return squared


def _gaussian(squared: Tensor, h: Tensor, dim: int) -> Tensor:
    return torch.exp(-squared / (2 * h * h)) / (math.sqrt(2 * math.pi) * h) ** dim


def _rank_in_row(rows: Tensor, value: Tensor) -> Tensor:
    """Place of each entry among those of its row by value, equals in their order; rows ascend."""
    by_value = value.argsort(stable=True)
    order = by_value[rows[by_value].argsort(stable=True)]
    rank = torch.empty_like(order).scatter(0, order, torch.arange(len(rows), device=rows.device))
    return rank - torch.searchsorted(rows, rows)


def _counts(rows: Tensor, total: int) -> Tensor:
    """How often each of ``total`` rows stands in an ascending list."""
    return torch.searchsorted(rows, torch.arange(total + 1, device=rows.device)).diff()


def _named(names: Tensor | None, points: Tensor) -> Tensor:
    return points if names is None else names[points]


_SPREAD = {
    1: (),
    2: ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)),
    3: ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)),
}


def _spread(numbers: Tensor, dim: int) -> Tensor:
    """D - 1 zeros after each bit of numbers of 30 / D bits."""
    for shift, mask in _SPREAD[dim]:
        numbers = (numbers | numbers << shift) & mask
    return numbers


def _priority(seed: int, a: Tensor, b: Tensor) -> Tensor:
    """A random number of 63 bits for each pair (a, b), from the seed alone."""
    return _shift(_mix(_mix(a * _signed(0x9E3779B97F4A7C15) + seed) + b * _signed(0xD1B54A32D192ED03)), 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
