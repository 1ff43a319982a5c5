"""The geometric operators in plain torch: the definition of each result, on any device.

Points are sorted into cells as large as the search radius, so that the neighbours of a point lie in
the 3^D cells around it; cells that differ only in the first coordinate follow each other, so these
are 3^(D-1) ranges of the sorted points. Pairs are made in chunks: memory stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 1 << 22  # candidate pairs held at a time
CUT = 4.0  # the density's Gaussian ends at this many bandwidths
FLOATS = (torch.float32, torch.float64)
_LARGEST_KEY = float(1 << 62)


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
    _check(support, support_offsets, radius)
    _check_pair(support, support_offsets, queries, query_offsets)
    _check_names(support_names, support)
    _check_names(query_names, queries)
    counts = queries.new_zeros(queries.shape[0], dtype=torch.int64)
    total_counts = torch.zeros_like(counts)
    indices = [counts.new_zeros(0)]
    for rows, found, _ in _pairs(support, support_offsets, queries, query_offsets, radius):
        total_counts += torch.bincount(rows, minlength=counts.shape[0])
        if max_neighbors >= 0:
            pair = _named(query_names, rows), _named(support_names, found)
            first = _rank_in_row(rows, _priority(seed, *pair)) < max_neighbors
            rows, found = rows[first], found[first]
        counts += torch.bincount(rows, minlength=counts.shape[0])
        indices.append(found)
    return _cumulate(counts), torch.cat(indices), total_counts


def knn(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    _check(support, support_offsets)
    _check_pair(support, support_offsets, queries, query_offsets)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    cloud = _cloud_of(query_offsets)
    wanted = support_offsets.diff().clamp(max=k)[cloud]
    farthest = torch.full_like(wanted, -1)
    rows, indices = [wanted.new_zeros(0)], [wanted.new_zeros(0)]
    radius = _knn_radius(support, support_offsets, k)
    left = wanted.nonzero().squeeze(1)
    while left.numel():  # those without k neighbours in reach look twice as far
        offsets = _cumulate(torch.bincount(cloud[left], minlength=radius.shape[0]))
        need = wanted[left]
        done = torch.zeros_like(left, dtype=torch.bool)
        for local, near, squared in _pairs(support, support_offsets, queries[left], offsets, radius):
            enough = torch.bincount(local, minlength=left.shape[0]) >= need
            rank = _rank_in_row(local, squared)
            chosen = enough[local] & (rank < need[local])
            last = chosen & (rank == need[local] - 1)
            rows.append(left[local[chosen]])
            indices.append(near[chosen])
            farthest[left[local[last]]] = near[last]
            done |= enough
        left = left[~done]
        radius = radius * 2
    order = torch.cat(rows).argsort(stable=True)
    return _cumulate(wanted), torch.cat(indices)[order], farthest


def poisson_disk(
    points: Tensor, offsets: Tensor, radius: Tensor, seed: int, names: Tensor | None = None
) -> Tensor:
    """Greedy in the order of random priorities; rounds decide all local firsts at once.

    Names: the numbers of the points, in another order within each cloud, by which priorities know them.
    """
    _check(points, offsets, radius)
    _check_names(names, points)
    cloud = _cloud_of(offsets)
    numbers = torch.arange(len(cloud), device=points.device)
    by_name = numbers if names is None else names.argsort()
    if names is not None and not (torch.equal(names[by_name], numbers) and torch.equal(cloud[names], cloud)):
        raise ValueError("names must be the numbers of the points of each cloud, each once")
    priority = _priority(seed, torch.zeros_like(cloud), numbers) >> 31
    rank = torch.empty_like(priority)
    rank[by_name[priority.argsort(stable=True)]] = numbers
    kept = torch.zeros_like(cloud, dtype=torch.bool)
    left = numbers
    while left.numel():
        here = _cumulate(torch.bincount(cloud[left], minlength=radius.shape[0]))
        least = rank[left]
        for rows, found, _ in _pairs(points[left], here, points[left], here, radius):
            least.scatter_reduce_(0, rows, rank[left][found], "amin")
        new = left[least == rank[left]]
        kept[new] = True
        there = _cumulate(torch.bincount(cloud[new], minlength=radius.shape[0]))
        uncovered = torch.ones_like(left, dtype=torch.bool)
        for rows, _, _ in _pairs(points[new], there, points[left], here, radius):
            uncovered[rows] = False
        left = left[uncovered]
    return kept.nonzero().squeeze(1)


def spatial_order(points: Tensor, offsets: Tensor) -> Tensor:
    """Cloud by cloud along a Z-shaped curve: cells of a grid over the box of each cloud, 30 / D bits an axis,
    ordered by their numbers with the bits interleaved; points of one cell in their own order."""
    _check(points, offsets)
    cloud, bits = _cloud_of(offsets), 30 // points.shape[1]
    wide, shape = points.double(), (len(offsets) - 1, points.shape[1])
    index = cloud[:, None].expand_as(wide)
    low = wide.new_zeros(shape).scatter_reduce(0, index, wide, "amin", include_self=False)
    high = wide.new_zeros(shape).scatter_reduce(0, index, wide, "amax", include_self=False)
    scale = (1 << bits) / (high - low).clamp(min=1e-200)
    cells = ((wide - low[cloud]) * scale[cloud]).nan_to_num(0.0).clamp(0, (1 << bits) - 1).long()
    code = cloud << 30
    for axis, cell in enumerate(cells.unbind(1)):
        code = code + (_spread(cell, points.shape[1]) << axis)
    return code.argsort(stable=True)


def farthest_points(points: Tensor, offsets: Tensor, counts: Tensor, start: Tensor, total: int) -> Tensor:
    _check(points, offsets)
    sizes = offsets.diff()
    if counts.shape != sizes.shape or start.shape != sizes.shape or int(counts.sum()) != total:
        raise ValueError("counts and start need one value per cloud, and total must be the sum of counts")
    named = (counts == 0) | ((start >= 0) & (start < sizes))
    if not bool(((counts >= 0) & (counts <= sizes) & named).all()):
        raise ValueError("counts must not exceed the points of a cloud, and start must name one of them")
    chosen = [offsets.new_zeros(0)]
    bounds = offsets.tolist()
    for b, (count, first) in enumerate(zip(counts.tolist(), start.tolist(), strict=True)):
        cloud = points[bounds[b] : bounds[b + 1]]
        distance = cloud.new_full((cloud.shape[0],), math.inf)
        picks = []
        pick = torch.as_tensor(first, device=points.device)
        for _ in range(count):
            picks.append(pick)
            distance = torch.minimum(distance, _squared_distance(cloud, cloud[pick]))
            distance[pick] = -1  # never twice, also where points coincide
            pick = (distance == distance.max()).nonzero()[0, 0]  # the first of equals
        if picks:
            chosen.append(torch.stack(picks) + bounds[b])
    return torch.cat(chosen)


def kernel_density(points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    _check(points, offsets, bandwidth)
    density = torch.zeros_like(points[:, 0])
    for rows, _, squared in _pairs(points, offsets, points, offsets, CUT * bandwidth):
        density.index_add_(0, rows, _gaussian(squared, bandwidth[_cloud_of(offsets)[rows]], points.shape[1]))
    return density


def kernel_density_backward(grad: Tensor, points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    _check(points, offsets, bandwidth)
    if grad.shape != points.shape[:1] or grad.dtype != points.dtype:
        raise ValueError(
            f"grad needs one {points.dtype} value per point, got {list(grad.shape)}, {grad.dtype}"
        )
    result = torch.zeros_like(points)
    for rows, found, squared in _pairs(points, offsets, points, offsets, CUT * bandwidth):
        h = bandwidth[_cloud_of(offsets)[rows]]
        slope = (grad[rows] + grad[found]) * _gaussian(squared, h, points.shape[1]) / (h * h)
        result.index_add_(0, rows, slope[:, None] * (points[found] - points[rows]))
    return result


def transpose(row_offsets: Tensor, indices: Tensor, num_support: int) -> tuple[Tensor, Tensor, Tensor]:
    if not 0 <= num_support < 1 << 31:
        raise ValueError(f"at most 2^31 - 1 support points, and not fewer than 0, got {num_support}")
    _check_offsets(row_offsets, len(indices))
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < num_support:
        raise ValueError(f"index out of range: there are {num_support} support points")
    edges = indices.argsort(stable=True)
    rows = torch.repeat_interleave(row_offsets.diff())
    return _cumulate(torch.bincount(indices, minlength=num_support)), rows[edges], edges


# Checks, as those of the native kernels


def _check(points: Tensor, offsets: Tensor, per_cloud: Tensor | None = None) -> None:
    if points.dim() != 2 or points.shape[1] not in (1, 2, 3) or points.dtype not in FLOATS:
        raise ValueError(
            "points must have 1, 2 or 3 coordinates, float32 or float64, "
            f"got {list(points.shape)}, {points.dtype}"
        )
    _check_offsets(offsets, len(points))
    if not bool(torch.isfinite(points).all()):
        raise ValueError("points must be finite, got NaN or infinity")
    if per_cloud is None:
        return
    if per_cloud.shape != (len(offsets) - 1,) or per_cloud.dtype != points.dtype:
        raise ValueError(f"one {points.dtype} value per cloud is needed, got {list(per_cloud.shape)}")
    if not bool((torch.isfinite(per_cloud) & (per_cloud > 0)).all()):
        raise ValueError("a radius or bandwidth must be positive and finite")


def _check_pair(support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor) -> None:
    _check(queries, query_offsets)
    kinds = (support.shape[1], support.dtype, len(support_offsets))
    if kinds != (queries.shape[1], queries.dtype, len(query_offsets)):
        raise ValueError("support and queries must agree in dimension, dtype and number of clouds")


def _check_names(names: Tensor | None, points: Tensor) -> None:
    if names is not None and (names.shape != points.shape[:1] or names.dtype != torch.int64):
        raise ValueError(
            f"names must hold one int64 number per point, got {list(names.shape)}, {names.dtype}"
        )


def _check_offsets(offsets: Tensor, total: int) -> None:
    if offsets.dim() != 1 or offsets.dtype != torch.int64 or not len(offsets):
        raise ValueError(f"offsets must be [B + 1], int64, got {list(offsets.shape)}, {offsets.dtype}")
    if int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((offsets.diff() < 0).any()):
        raise ValueError("offsets must run from 0 to the number of rows and must not descend")


# Parts


def _pairs(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, radius: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All pairs of one cloud closer than its radius, as (query, support, squared distance).

    Ascending by query, then by support; a query's pairs are never split over two chunks.
    """
    if not len(support) or not len(queries):
        return
    cloud_s, cloud_q = _cloud_of(support_offsets), _cloud_of(query_offsets)
    keys, query_keys, strides = _cell_keys(support, cloud_s, queries, cloud_q, radius)
    keys, order = keys.sort()
    steps = torch.tensor([0], device=keys.device)
    for stride in strides:  # the rows of cells around a cell
        steps = (steps[:, None] + stride * torch.arange(-1, 2, device=keys.device)).flatten()
    begin = torch.searchsorted(keys, query_keys[:, None] + (steps - 1))
    count = torch.searchsorted(keys, query_keys[:, None] + (steps + 1), right=True) - begin
    squared_radius, endless = (radius * radius)[cloud_q], radius.isinf()[cloud_q]
    for rows in _chunks(count.sum(1)):
        cells = torch.repeat_interleave(count[rows].flatten())
        step = torch.arange(len(cells), device=keys.device) - _cumulate(count[rows].flatten())[cells]
        found = order[begin[rows].flatten()[cells] + step]
        query = rows.start + cells // len(steps)
        squared = _squared_distance(support[found], queries[query])
        near = (squared < squared_radius[query]) | endless[query]
        query, found, squared = query[near], found[near], squared[near]
        sort = (query * len(support) + found).argsort()
        yield query[sort], found[sort], squared[sort]


def _cell_keys(
    support: Tensor, cloud_s: Tensor, queries: Tensor, cloud_q: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, list[int]]:
    """One integer per cell, neighbours along the first axis adjacent, with a margin all around."""
    points, others = support.double(), queries.double()
    shape = (len(radius), support.shape[1])
    index = cloud_s[:, None].expand_as(points)
    low = points.new_full(shape, math.inf).scatter_reduce(0, index, points, "amin")
    high = points.new_full(shape, -math.inf).scatter_reduce(0, index, points, "amax")
    extent = (high - low).clamp(min=0).nan_to_num(posinf=0.0)  # an empty cloud has none
    # Rounding must not move two neighbours more than one cell apart.
    cell = radius.double() * (1 + 1e-6) + extent.amax(1) * 1e-15
    while (
        math.prod(sizes := ((extent / cell[:, None]).floor().amax(0) + 5).tolist()) * len(radius)
        > _LARGEST_KEY
    ):
        cell = cell * 2
    sizes = [int(size) for size in sizes]
    strides = [math.prod(sizes[: d + 1]) for d in range(len(sizes))]

    def key(p: Tensor, cloud: Tensor) -> Tensor:
        at = ((p - low[cloud]) / cell[cloud][:, None]).floor()
        result = cloud * strides[-1]
        for d, size in enumerate(sizes):
            result = result + (at[:, d].clamp(-2, size - 3).long() + 2) * (1, *strides)[d]
        return result

    return key(points, cloud_s), key(others, cloud_q), strides[:-1]


def _chunks(work: Tensor) -> Iterator[slice]:
    """Consecutive queries whose candidates fit into a chunk together (or one query alone)."""
    ends = work.cumsum(0)
    start, done = 0, 0
    while start < len(work):
        stop = int(torch.searchsorted(ends, done + CHUNK, right=True))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start, done = stop, int(ends[stop - 1])


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
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(rows), device=rows.device)
    return rank - torch.searchsorted(rows, rows)


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


def _knn_radius(support: Tensor, offsets: Tensor, k: int) -> Tensor:
    """A first guess per cloud: the radius that would hold k points if they filled their box."""
    guess = []
    for cloud in support.double().split(offsets.diff().tolist()):
        extent = cloud.amax(0) - cloud.amin(0) if len(cloud) else cloud.new_zeros(1)
        guess.append(extent.max() * (k / max(len(cloud), 1)) ** (1 / support.shape[1]) / 2)
    radius = torch.stack(guess).to(support.dtype) if guess else support.new_zeros(0)
    return torch.where(radius > 0, radius, 1.0)


def _cloud_of(offsets: Tensor) -> Tensor:
    return torch.repeat_interleave(offsets.diff())


def _cumulate(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
