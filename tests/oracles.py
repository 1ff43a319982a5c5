"""The definitions as loops and full tables over all pairs, in numpy; nothing of pointvar is imported.

Arrays keep their dtype: squared distances are summed over the axes from left to right with one
rounding per operation, as the definition says.
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.generic]
Rows = list[list[int]]


def array(values: Tensor) -> Array:
    return values.detach().numpy()


def ranges(offsets: Tensor) -> list[range]:
    return [range(begin, end) for begin, end in pairwise(offsets.tolist())]


def rows_of(row_offsets: Tensor, indices: Tensor) -> Rows:
    return [indices[r.start : r.stop].tolist() for r in ranges(row_offsets)]


def squared_distances(a: Array, b: Array) -> Array:
    """``[len(a), len(b)]``"""
    total = np.zeros((len(a), len(b)), a.dtype)
    for d in range(a.shape[1]):
        difference = a[:, None, d] - b[None, :, d]
        with np.errstate(over="ignore"):  # infinitely far is far
            total = total + difference * difference
    return total


def per_cloud(value: object, count: int, dtype: np.dtype) -> Array:
    return np.broadcast_to(np.asarray(value, np.float64), (count,)).astype(dtype)


def brute_ball_query(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, radius: object
) -> Rows:
    points, centers = array(support), array(queries)
    radii = per_cloud(radius, len(support_offsets) - 1, points.dtype)
    result = []
    for r, own, asking in zip(radii, ranges(support_offsets), ranges(query_offsets), strict=True):
        near = squared_distances(centers[asking], points[own]) < r * r
        result += [(row.nonzero()[0] + own.start).tolist() for row in near]
    return result


def brute_knn(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, k: int
) -> tuple[Rows, list[float]]:
    """The neighbours in ascending order, and the distance of the farthest one (0 for none)."""
    points, centers = array(support), array(queries)
    result, reach = [], []
    for own, asking in zip(ranges(support_offsets), ranges(query_offsets), strict=True):
        for row in squared_distances(centers[asking], points[own]):
            nearest = row.argsort(kind="stable")[:k]  # stable: of equals the lower index first
            result.append(sorted((nearest + own.start).tolist()))
            reach.append(math.sqrt(row[nearest[-1]]) if len(nearest) else 0.0)
    return result, reach


def poisson_disk_faults(points: Tensor, offsets: Tensor, radius: object, keep: Tensor) -> list[str]:
    """All that is wrong with a sampling; a right one has no faults."""
    coordinates, kept = array(points), keep.tolist()
    faults = [] if kept == sorted(set(kept)) else ["the indices do not ascend"]
    for r, own in zip(per_cloud(radius, len(offsets) - 1, coordinates.dtype), ranges(offsets), strict=True):
        chosen = [i for i in kept if i in own]
        near = squared_distances(coordinates[own], coordinates[chosen]) < r * r
        for i, covers in zip(own, near.sum(1).tolist(), strict=True):
            if i in chosen and covers != 1:  # itself
                faults.append(f"kept point {i} has kept points closer than the radius")
            if i not in chosen and covers == 0:
                faults.append(f"point {i} is neither kept nor covered")
    return faults


def brute_farthest_points(points: Tensor, offsets: Tensor, counts: list[int], starts: list[int]) -> list[int]:
    coordinates = array(points)
    result = []
    for own, count, start in zip(ranges(offsets), counts, starts, strict=True):
        table = squared_distances(coordinates[own], coordinates[own])
        chosen = [start][:count]
        while len(chosen) < count:
            distance = table[:, chosen].min(1)
            distance[chosen] = -1
            chosen.append(int(distance.argmax()))  # the first of equals: the lowest index
        result += [i + own.start for i in chosen]
    return result


def brute_density(points: Tensor, offsets: Tensor, bandwidth: object) -> list[float]:
    coordinates = array(points)
    dim = coordinates.shape[1]
    result = []
    bandwidths = per_cloud(bandwidth, len(offsets) - 1, coordinates.dtype)
    for h, own in zip(bandwidths, ranges(offsets), strict=True):
        squared = squared_distances(coordinates[own], coordinates[own])
        cut = coordinates.dtype.type(4) * h
        norm = (2 * math.pi * float(h) ** 2) ** (-dim / 2)
        kernel = norm * np.exp(-squared.astype(np.float64) / (2 * float(h) ** 2))
        result += np.where(squared < cut * cut, kernel, 0.0).sum(1).tolist()
    return result


def brute_voxels(points: Tensor, offsets: Tensor, size: object) -> dict[tuple[int, ...], list[int]]:
    """The points of each occupied cell, by (cloud, cell), in ascending order of those."""
    coordinates = array(points)
    cells: dict[tuple[int, ...], list[int]] = {}
    sizes = per_cloud(size, len(offsets) - 1, coordinates.dtype)
    for cloud, (s, own) in enumerate(zip(sizes, ranges(offsets), strict=True)):
        for i in own:
            cell = tuple(math.floor(float(x) / float(s)) for x in coordinates[i])
            cells.setdefault((cloud, *cell), []).append(i)
    return dict(sorted(cells.items()))


def brute_transpose(rows: Rows, num_support: int) -> tuple[Rows, Rows]:
    """For each support point the queries that see it, and the numbers of these edges."""
    queries: Rows = [[] for _ in range(num_support)]
    edges: Rows = [[] for _ in range(num_support)]
    edge = 0
    for query, row in enumerate(rows):
        for point in row:
            queries[point].append(query)
            edges[point].append(edge)
            edge += 1
    return queries, edges
