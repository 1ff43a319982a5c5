"""What real data brings: outliers, heaps of equal points, huge coordinates, nothing at all."""

import pytest
import torch
from oracles import (
    brute_ball_query,
    brute_density,
    brute_farthest_points,
    brute_knn,
    poisson_disk_faults,
    rows_of,
)
from strategies import random_cloud

from pointvar import PointCloud, ball_query, farthest_points, kernel_density, knn, poisson_disk, voxel_grid


def assert_all_geometry_is_right(cloud: PointCloud, radius: float, k: int = 5) -> None:
    both = (cloud.points, cloud.offsets, cloud.points, cloud.offsets)
    hood, nearest = ball_query(cloud, cloud, radius), knn(cloud, cloud, k)
    assert rows_of(hood.row_offsets, hood.indices) == brute_ball_query(*both, radius)
    assert rows_of(nearest.row_offsets, nearest.indices) == brute_knn(*both, k)[0]
    keep = poisson_disk(cloud, radius, torch.Generator().manual_seed(0))
    assert poisson_disk_faults(cloud.points, cloud.offsets, radius, keep) == []
    counts = cloud.lengths.clamp(max=k).tolist()
    expected = brute_farthest_points(cloud.points, cloud.offsets, counts, [0] * cloud.num_clouds)
    assert farthest_points(cloud, count=k).tolist() == expected
    density = torch.tensor(brute_density(cloud.points, cloud.offsets, radius), dtype=cloud.dtype)
    torch.testing.assert_close(kernel_density(cloud, radius), density, rtol=2e-5, atol=0)
    grid = voxel_grid(cloud, radius)
    assert int(grid.counts.sum()) == cloud.num_points
    assert torch.equal(grid.cloud.batch[grid.inverse], cloud.batch)


def crowd(count, dim, dtype):
    return random_cloud([count], dim, dtype).points


def with_outliers(values, dim, dtype):
    points = crowd(200, dim, dtype)
    points[: len(values)] = torch.tensor(values, dtype=dtype)[:, None]
    return points


def in_all_directions(dim, dtype):
    points = crowd(200, dim, dtype)
    points[: 2 * dim] = torch.cat([torch.eye(dim, dtype=dtype), -torch.eye(dim, dtype=dtype)]) * 1e7
    return points


def at_both_ends(dim):
    return crowd(200, dim, torch.float64) * 0.05 + torch.tensor([1e6, -1e6]).repeat(100)[:, None]


HARD = {
    "a far outlier": (lambda dim, dtype: with_outliers([1e7], dim, dtype), [200], 0.1),
    "a far outlier below": (lambda dim, dtype: with_outliers([-1e7], dim, dtype), [200], 0.1),
    "outliers in one of two clouds": (in_all_directions, [100, 100], 0.2),
    "identical points": (lambda dim, dtype: torch.full((100, dim), 1 / 3, dtype=dtype), [60, 0, 40], 0.1),
    # Differences are still exact to 1e-10 in float64.
    "at a million": (lambda dim, _: crowd(200, dim, torch.float64) * 0.1 + 1e6, [200], 0.01),
    "at minus a million": (lambda dim, _: crowd(200, dim, torch.float64) * 0.1 - 1e6, [200], 0.01),
    # The grid would have 1e8 cells along an axis, 1e24 in 3D.
    "at both ends of a million": (lambda dim, _: at_both_ends(dim), [200], 0.01),
    # Points are a sixteenth apart there: many coincide, many lie exactly at the radius.
    "at a million in float32": (lambda dim, _: crowd(200, dim, torch.float32) + 1e6, [200], 0.125),
    "on a line": (lambda dim, dtype: crowd(200, 1, dtype) * torch.eye(dim, dtype=dtype)[-1], [200], 0.05),
}


@pytest.mark.parametrize(("make", "lengths", "radius"), HARD.values(), ids=HARD)
def test_hard_points(make, lengths, radius, dim, dtype, backend):
    points = make(dim, dtype)
    if points.dtype == dtype:
        assert_all_geometry_is_right(PointCloud(points, lengths), radius)


def test_queries_around_and_between_far_points(dim, dtype, backend):
    """Where cells are too many to be numbered: queries in occupied, neighbouring and empty ones."""
    support = random_cloud([150, 50], dim, dtype, 1)
    support.points[:3] = torch.tensor([[1e7], [-1e7], [3e6]], dtype=dtype)
    steps = torch.arange(-8, 9, dtype=dtype)[:, None] * 0.08
    near = torch.cat([support.points[:6, None] + steps, support.points[:6, None] / 2 + steps])
    queries = PointCloud(torch.cat([near.view(-1, dim), support.points[160:]]), [len(near) * 17, 40])
    pair = (support.points, support.offsets, queries.points, queries.offsets)
    hood, nearest = ball_query(support, queries, 0.2), knn(support, queries, 6)
    assert rows_of(hood.row_offsets, hood.indices) == brute_ball_query(*pair, 0.2)
    assert rows_of(nearest.row_offsets, nearest.indices) == brute_knn(*pair, 6)[0]


def test_extents_of_very_different_size(dim, dtype, backend):
    """Clouds of a batch in metres and in micrometres, with radii of their own."""
    big, small = (
        random_cloud([100], dim, dtype, 1).points * 1e4,
        random_cloud([100], dim, dtype, 2).points * 1e-4,
    )
    cloud = PointCloud(torch.cat([big, small]), [100, 100])
    both = (cloud.points, cloud.offsets, cloud.points, cloud.offsets)
    hood = ball_query(cloud, cloud, [2e3, 2e-5])
    assert rows_of(hood.row_offsets, hood.indices) == brute_ball_query(*both, [2e3, 2e-5])
    assert rows_of(knn(cloud, cloud, 4).row_offsets, knn(cloud, cloud, 4).indices) == brute_knn(*both, 4)[0]


def test_a_heap_of_identical_points(backend, generator):
    count = 2000 if backend == "native" else 500  # all pairs are neighbours
    cloud = PointCloud(torch.full((count, 3), 1 / 3))
    assert torch.equal(ball_query(cloud, cloud, 0.1).indices, torch.arange(count).repeat(count))
    assert torch.equal(knn(cloud, cloud, 3).indices, torch.arange(3).repeat(count))
    assert len(poisson_disk(cloud, 0.1)) == 1
    assert farthest_points(cloud, count=5).tolist() == [0, 1, 2, 3, 4]
    assert voxel_grid(cloud, 0.1).counts.tolist() == [count]
    alone = kernel_density(cloud[:1], 0.1)
    torch.testing.assert_close(kernel_density(cloud, 0.1), alone.expand(count) * count, rtol=1e-4, atol=0)
    capped = ball_query(cloud, cloud, 0.1, 16, generator)
    assert capped.total_counts.eq(count).all()
    rows = capped.indices.view(count, 16)
    assert (rows.diff(dim=1) > 0).all()
    assert len(rows.unique()) == count  # none is left out but with probability count x e^-16


@pytest.mark.parametrize("lengths", [[], [0, 0], [1], [0, 40, 0, 0, 30, 0], [3, 90, 0, 1, 17] * 5], ids=str)
def test_clouds_of_any_size(lengths, dim, dtype, backend):
    cloud = random_cloud(lengths, dim, dtype)
    assert_all_geometry_is_right(cloud, 0.2)
    assert cloud.batch.tolist() == [b for b, length in enumerate(lengths) for _ in range(length)]
    assert [len(part) for part in cloud.split()] == lengths


def test_empty_support_or_queries(dim, dtype, backend):
    full, empty = random_cloud([5, 3], dim, dtype), PointCloud(torch.zeros(0, dim, dtype=dtype), [0, 0])
    for hood in (ball_query(empty, full, 0.5), knn(empty, full, 3)):
        assert hood.row_offsets.tolist() == [0] * 9
        assert hood.relative_positions().shape == (0, dim)
    for hood in (ball_query(full, empty, 0.5, 2), knn(full, empty, 3)):
        assert hood.row_offsets.tolist() == [0]
        assert hood.transposed().row_offsets.tolist() == [0] * 9


def test_squares_that_overflow(backend, time_limit):
    """float32 holds 1e20 but not its square: infinitely far, and of these the lower index is nearer."""
    time_limit(60)
    cloud = PointCloud(torch.tensor([[0.0], [1e20], [3e20], [1.0]]))
    near = ball_query(cloud, cloud, 2.0)
    assert rows_of(near.row_offsets, near.indices) == [[0, 3], [1], [2], [0, 3]]
    hood = knn(cloud, cloud, 3)
    assert rows_of(hood.row_offsets, hood.indices) == [[0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 3]]


def test_farthest_points_whose_squares_overflow(backend):
    """Enough points for several leaves of a tree, none of which is at a finite distance of the first."""
    crowds = random_cloud([300], 1).points + torch.tensor([0.0, 1e20, -1e20]).repeat_interleave(100)[:, None]
    expected = brute_farthest_points(crowds, torch.tensor([0, 300]), [20], [0])
    assert farthest_points(PointCloud(crowds), count=20).tolist() == expected


@pytest.mark.parametrize("value", [1e-30, 1e-20])
@pytest.mark.parametrize("function", [poisson_disk, kernel_density, voxel_grid])
def test_lengths_whose_square_vanishes(function, value, backend, time_limit):
    """These are float32 numbers, but their squares are 0 there or have lost their digits, and squares
    are what is compared: an error rather than nonsense or an endless search."""
    time_limit(60)
    with pytest.raises(ValueError, match="must be positive"):
        function(random_cloud([5]), value)
