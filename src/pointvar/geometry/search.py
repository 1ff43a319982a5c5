"""Neighbour searches: all points in a ball, and the k nearest."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from pointvar import ops
from pointvar.cloud import PointCloud, kind_of, per_cloud
from pointvar.geometry.neighborhood import Neighborhood, check_pair


def ball_query(
    support: PointCloud,
    queries: PointCloud,
    radius: float | Sequence[float] | Tensor,
    max_neighbors: int | None = None,
    generator: torch.Generator | None = None,
) -> Neighborhood:
    r"""All support points closer than the radius, :math:`N(x) = \{y : \|y - x\| < r\}`.

    Exact: equal to comparing all pairs of a cloud, with squared distances in the dtype of the points
    and one rounding per operation, against the squared radius.

    Args:
        support: the points that are seen.
        queries: the points that see; the same number of clouds. May be ``support`` itself.
        radius: a number, or one per cloud.
        max_neighbors: keep at most so many neighbours of each query, a uniformly random subset;
            ``Neighborhood.total_counts`` tells how many there were. ``None`` keeps all.
        generator: where the random subset comes from; default: torch's global generator.
            The same generator state gives the same subset on any number of threads.
    """
    check_pair(support, queries)
    radii = per_cloud(radius, support, "radius")
    cap, seed = -1, 0
    if max_neighbors is not None:
        cap, seed = positive_int(max_neighbors, "max_neighbors"), draw_seed(generator)
    packed = *_packed(support), *_packed(queries)
    names = support.names, queries.names
    row_offsets, indices, total = ops.ball_query(*packed, radii, cap, seed, *names)
    reach = float(radius) if isinstance(radius, (int, float)) else radii[queries.batch]
    return Neighborhood(support, queries, row_offsets, indices, total, radius=reach)


def knn(support: PointCloud, queries: PointCloud, k: int) -> Neighborhood:
    r"""The k nearest support points of each query (all of them in a cloud that has fewer).

    Exact; of points at the same distance those with the lower index are taken. Within a row the
    neighbours ascend by index, as in every ``Neighborhood``. The radius of a query is the distance
    to its farthest neighbour.
    """
    check_pair(support, queries)
    row_offsets, indices, farthest = ops.knn(*_packed(support), *_packed(queries), positive_int(k, "k"))
    return Neighborhood(support, queries, row_offsets, indices, row_offsets.diff(), farthest=farthest)


def _packed(cloud: PointCloud) -> tuple[Tensor, Tensor]:
    return cloud.points.detach(), cloud.offsets


def draw_seed(generator: torch.Generator | None) -> int:
    """The integer that a custom op takes in place of a generator."""
    check_generator(generator)
    device = "cpu" if generator is None else generator.device
    seed = torch.empty(1, dtype=torch.int64, device=device)
    return int(seed.random_(0, 1 << 62, generator=generator).item())


def check_generator(generator: torch.Generator | None) -> None:
    """A seed in place of a generator is a mistake."""
    if not isinstance(generator, (torch.Generator, type(None))):
        hint = f"torch.Generator().manual_seed({generator})" if isinstance(generator, int) else "None"
        raise TypeError(f"generator must be a torch.Generator, such as {hint}, got {kind_of(generator)}")


def positive_int(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):  # numpy's are some, too
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if not 1 <= value < 1 << 63:
        raise ValueError(f"{name} must be at least 1 and less than 2^63, got {value}")
    return int(value)
