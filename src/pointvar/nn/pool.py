"""Features elsewhere: at kept points, at points between, or one row for each cloud."""

from __future__ import annotations

from torch import Tensor

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy, Neighborhood
from pointvar.ops.convolve import project


def at_kept(features: Tensor, levels: Hierarchy, level: int) -> Tensor:
    """Features of the level before, at the points that ``level`` has kept of it.

    Shapes (N points in ``level - 1``, the input before level 0; M in ``level``):
        - features: ``[N, C]``; result: ``[M, C]``
    """
    if not 0 <= level < len(levels):
        raise ValueError(f"there is no level {level} to keep points for: levels are 0 to {len(levels) - 1}")
    before = levels.clouds[level - 1] if level else levels.input
    check_rows(features, before)
    return features[levels.kept[level]]


def global_mean(features: Tensor, cloud: PointCloud) -> Tensor:
    """The mean of the features of each cloud, ``[N, C]`` to ``[B, C]``; zeros for an empty cloud."""
    check_rows(features, cloud)
    wide = features.to(cloud.dtype)  # sums are never in low precision
    return (cloud_sum(wide, cloud) / cloud.lengths.clamp(min=1)[:, None]).to(features.dtype)


def global_max(features: Tensor, cloud: PointCloud) -> Tensor:
    """The largest value of each channel in each cloud, ``[N, C]`` to ``[B, C]``; zeros for an empty cloud."""
    check_rows(features, cloud)
    rows = cloud.batch[:, None].expand_as(features)
    empty = features.new_zeros(cloud.num_clouds, features.shape[1])
    return empty.scatter_reduce(0, rows, features, "amax", include_self=False)


def interpolate(features: Tensor, hood: Neighborhood) -> Tensor:
    r"""Features at the queries, from their neighbours by inverse squared distance.

    .. math:: \frac{\sum_y F[y] / d(x, y)^2}{\sum_y 1 / d(x, y)^2}, \qquad y \in N(x)

    A neighbour at the query itself outweighs all others by far; a query without neighbours gets zeros.

    Shapes (N support points, M queries):
        - features: ``[N, C]``; result: ``[M, C]``
    """
    check_rows(features, hood.support)

    def make() -> Tensor:
        weights = hood.relative_positions().square().sum(1).clamp(min=1e-10).reciprocal()
        total = weights.new_zeros(hood.queries.num_points).index_add(0, hood.rows, weights)
        return (weights / total[hood.rows])[:, None]

    return project(features, hood.derived("interpolation", make), hood.row_offsets, hood.indices)


def cloud_sum(values: Tensor, cloud: PointCloud) -> Tensor:
    """Sums over the points of each cloud, ``[N, ...]`` to ``[B, ...]``."""
    return values.new_zeros(cloud.num_clouds, *values.shape[1:]).index_add(0, cloud.batch, values)


def check_rows(features: Tensor, cloud: PointCloud) -> None:
    """Features must be one row per point."""
    if features.dim() != 2 or features.shape[0] != cloud.num_points:
        raise ValueError(
            f"features must have shape [N, C], one row for each of the {cloud.num_points} points, "
            f"got {list(features.shape)}"
        )
