"""ball_query: all pairs of a cloud that are closer than the radius, and no other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import Rows, brute_ball_query, rows_of
from strategies import batches, radii, random_cloud, spacings

from pointvar import PointCloud, ball_query


def found(support: PointCloud, queries: PointCloud, radius: object) -> Rows:
    hood = ball_query(support, queries, radius)
    assert torch.equal(hood.total_counts, hood.counts)
    return rows_of(hood.row_offsets, hood.indices)


def expected(support: PointCloud, queries: PointCloud, radius: object) -> Rows:
    return brute_ball_query(support.points, support.offsets, queries.points, queries.offsets, radius)


@given(data=st.data())
def test_equals_brute_force(data, dim, dtype, backend):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing))
    queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
    radius = data.draw(radii(spacing))
    assert found(support, queries, radius) == expected(support, queries, radius)
    assert found(support, support, radius) == expected(support, support, radius)


@given(data=st.data())
def test_equals_brute_force_with_a_radius_per_cloud(data, dim, dtype, backend):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing, 3))
    radius = data.draw(st.lists(radii(spacing), min_size=3, max_size=3))
    assert found(support, support, radius) == expected(support, support, radius)


@pytest.mark.parametrize("radius", [0.02, 0.1, 0.3, 5.0])
def test_equals_brute_force_on_many_points(radius, dim, dtype, backend):
    support, queries = random_cloud([600, 1, 300], dim, dtype, 1), random_cloud([200, 100, 0], dim, dtype, 2)
    assert found(support, queries, radius) == expected(support, queries, radius)


@pytest.mark.parametrize("spacing", [0.1, 0.25, 1.0, 3.0])
def test_a_distance_of_exactly_the_radius_is_outside(spacing, dim, dtype, backend):
    """On the axes, through the origin, distances are exactly the spacing in any dtype."""
    step = torch.eye(dim, dtype=dtype) * spacing
    cloud = PointCloud(torch.cat([torch.zeros(1, dim, dtype=dtype), step, -step]))
    assert found(cloud, cloud, spacing)[0] == [0]
    wider = float(torch.nextafter(step[0, 0], torch.tensor(9.0, dtype=dtype)))
    assert found(cloud, cloud, wider)[0] == list(range(2 * dim + 1))


def test_points_on_cell_borders_are_found_from_every_side(dim, dtype, backend):
    """Queries around lattice points, a hair to either side of where any grid may cut."""
    lattice = torch.cartesian_prod(*[torch.arange(-2, 3, dtype=dtype)] * dim).view(-1, dim)
    support, queries = PointCloud(lattice), PointCloud(torch.cat([lattice - 1e-6, lattice, lattice + 1e-6]))
    for radius in (1.0, 1 + 1e-5, 0.5, 2.0):
        assert found(support, queries, radius) == expected(support, queries, radius)


@pytest.mark.parametrize("distance", [1.5, 20.0, 1e6])
def test_queries_far_outside_find_only_what_is_near(distance, dim, dtype, backend):
    support = random_cloud([50], dim, dtype)
    shift = torch.cartesian_prod(*[torch.tensor([-distance, 0.0, distance], dtype=dtype)] * dim).view(-1, dim)
    queries = PointCloud((support.points[:5, None] + shift).view(-1, dim))
    assert found(support, queries, 0.4) == expected(support, queries, 0.4)


def test_clouds_do_not_see_each_other(dim, dtype, backend):
    points = random_cloud([30], dim, dtype).points
    cloud = PointCloud(torch.cat([points, points, points]), [30, 30, 30])
    rows = found(cloud, cloud, 0.5)
    alone = found(PointCloud(points), PointCloud(points), 0.5)
    assert rows == [[i + shift for i in row] for shift in (0, 30, 60) for row in alone]


def test_radius_larger_than_everything_joins_each_cloud(backend):
    cloud = random_cloud([4, 0, 3])
    assert found(cloud, cloud, 1e15) == [[0, 1, 2, 3]] * 4 + [[4, 5, 6]] * 3


@pytest.mark.parametrize("radius", [0.3, 1, torch.tensor(0.3), [0.3], torch.tensor([0.3, 0.3])])
def test_radius_may_be_any_number(radius):
    cloud = random_cloud([20, 20])
    value = radius if isinstance(radius, int) else 0.3
    assert found(cloud, cloud, radius) == expected(cloud, cloud, value)


def test_same_on_any_number_of_threads(threads, backend):
    cloud = random_cloud([20_000, 0, 3_000])
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        hood = ball_query(cloud, cloud, 0.05, 4, torch.Generator().manual_seed(0))
        results.append((hood.row_offsets, hood.indices, hood.total_counts))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
