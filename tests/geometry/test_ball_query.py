"""ball_query: all pairs of a cloud that are closer than the radius, and no other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Rows, brute_ball_query, rows_of
from strategies import batches, dims, dtypes, one_or_each, random_cloud, spacings

from pointvar import PointCloud, ball_query


def found(support: PointCloud, queries: PointCloud, radius: object) -> Rows:
    hood = ball_query(support, queries, radius)
    assert torch.equal(hood.total_counts, hood.counts)
    return rows_of(hood.row_offsets, hood.indices)


def expected(support: PointCloud, queries: PointCloud, radius: object) -> Rows:
    return brute_ball_query(support.points, support.offsets, queries.points, queries.offsets, radius)


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes)
def test_equals_brute_force(data, dim, dtype, backend):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing))
    queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
    radius = data.draw(one_or_each(spacing, support.num_clouds))
    assert found(support, queries, radius) == expected(support, queries, radius)
    assert found(support, support, radius) == expected(support, support, radius)


@pytest.mark.parametrize("radius", [0.02, [0.1, 0.3, 0.2], 1e15])
def test_equals_brute_force_on_many_points(radius, dim, dtype, backend):
    support, queries = random_cloud([600, 1, 300], dim, dtype, 1), random_cloud([200, 100, 0], dim, dtype, 2)
    assert found(support, queries, radius) == expected(support, queries, radius)


def test_a_distance_of_exactly_the_radius_is_outside(dim, dtype, backend):
    """On the axes, through the origin, distances are exactly the spacing in any dtype."""
    for spacing in (0.1, 0.25, 1.0, 3.0):
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


def test_queries_far_outside_find_only_what_is_near(dim, dtype, backend):
    support = random_cloud([50], dim, dtype)
    for far in (1.5, 20.0, 1e6):
        shift = torch.cartesian_prod(*[torch.tensor([-far, 0.0, far], dtype=dtype)] * dim).view(-1, dim)
        queries = PointCloud((support.points[:5, None] + shift).view(-1, dim))
        assert found(support, queries, 0.4) == expected(support, queries, 0.4)


@pytest.mark.parametrize("radius", [0.3, 1, torch.tensor(0.3), [0.3], torch.tensor([0.3, 0.3])])
def test_radius_may_be_any_number(radius):
    cloud = random_cloud([20, 20])
    value = radius if isinstance(radius, int) else 0.3
    assert found(cloud, cloud, radius) == expected(cloud, cloud, value)
