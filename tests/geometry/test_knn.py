"""knn: the k nearest points of the cloud, of equally near ones those with the lower index."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import brute_knn, rows_of
from strategies import batches, random_cloud, spacings

from pointvar import PointCloud, knn


def assert_equals_brute_force(support: PointCloud, queries: PointCloud, k: int) -> None:
    hood = knn(support, queries, k)
    rows, reach = brute_knn(support.points, support.offsets, queries.points, queries.offsets, k)
    assert rows_of(hood.row_offsets, hood.indices) == rows
    assert hood.total_counts.tolist() == [len(row) for row in rows]
    # Only the root and the order of the sum may round differently.
    torch.testing.assert_close(hood.radius, torch.tensor(reach, dtype=support.dtype))


@given(data=st.data(), k=st.integers(1, 30))
def test_equals_brute_force(data, k, dim, dtype, backend):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing))
    queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
    assert_equals_brute_force(support, queries, k)
    assert_equals_brute_force(support, support, k)


@pytest.mark.parametrize("k", [1, 7, 16, 40])
def test_equals_brute_force_on_many_points(k, dim, dtype, backend):
    support, queries = random_cloud([700, 3, 200], dim, dtype, 1), random_cloud([150, 50, 0], dim, dtype, 2)
    assert_equals_brute_force(support, queries, k)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_ties_on_a_lattice_go_to_the_lower_index(k, dim, dtype, backend, generator):
    lattice = torch.cartesian_prod(*[torch.arange(4, dtype=dtype)] * dim).view(-1, dim)
    shuffled = lattice[torch.randperm(len(lattice), generator=generator)]
    cloud = PointCloud(shuffled)
    assert_equals_brute_force(cloud, cloud, k)
    assert_equals_brute_force(cloud, PointCloud(shuffled + 0.5), k)  # cell centres: 2^D equally near points


def test_all_identical_points_give_the_first_k(dim, dtype, backend):
    cloud = PointCloud(torch.full((50, dim), 0.3, dtype=dtype), [20, 30])
    rows = rows_of(knn(cloud, cloud, 4).row_offsets, knn(cloud, cloud, 4).indices)
    assert rows == [[0, 1, 2, 3]] * 20 + [[20, 21, 22, 23]] * 30


def test_fewer_where_a_cloud_has_fewer(backend):
    support, queries = random_cloud([2, 0, 5]), random_cloud([1, 2, 1])
    hood = knn(support, queries, 4)
    assert hood.counts.tolist() == [2, 0, 0, 4]
    assert hood.radius[1:3].tolist() == [0, 0]
    assert rows_of(hood.row_offsets, hood.indices)[0] == [0, 1]


@pytest.mark.parametrize("distance", [3.0, 1e3, 1e6])
def test_queries_far_outside(distance, dim, dtype, backend):
    support = random_cloud([60], dim, dtype)
    assert_equals_brute_force(support, PointCloud(support.points[:10] + distance), 5)
    assert_equals_brute_force(support, PointCloud(support.points[:10] - distance), 5)


def test_same_on_any_number_of_threads(threads, backend):
    cloud = random_cloud([10_000, 2_000])
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(knn(cloud, cloud, 8).indices)
    assert torch.equal(*results)
