"""knn: the k nearest points of the cloud, of equally near ones those with the lower index."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import brute_knn, rows_of
from strategies import batches, dims, dtypes, random_cloud, spacings

from pointvar import PointCloud, knn


def assert_equals_brute_force(support: PointCloud, queries: PointCloud, k: int) -> None:
    hood = knn(support, queries, k)
    rows, reach = brute_knn(support.points, support.offsets, queries.points, queries.offsets, k)
    assert rows_of(hood.row_offsets, hood.indices) == rows
    assert hood.total_counts.tolist() == [len(row) for row in rows]
    # Only the root and the order of the sum may round differently.
    torch.testing.assert_close(hood.radius, torch.tensor(reach, dtype=support.dtype))


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes, k=st.integers(1, 30))
def test_equals_brute_force(data, k, dim, dtype, backend):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing))
    queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
    assert_equals_brute_force(support, queries, k)
    assert_equals_brute_force(support, support, k)


@pytest.mark.parametrize("k", [1, 16, 40])
def test_equals_brute_force_on_many_points(k, dim, dtype, backend):
    support, queries = random_cloud([700, 3, 200], dim, dtype, 1), random_cloud([150, 50, 0], dim, dtype, 2)
    assert_equals_brute_force(support, queries, k)


def test_ties_on_a_lattice_go_to_the_lower_index(dim, dtype, backend, generator):
    lattice = torch.cartesian_prod(*[torch.arange(4, dtype=dtype)] * dim).view(-1, dim)
    shuffled = lattice[torch.randperm(len(lattice), generator=generator)]
    cloud = PointCloud(shuffled)
    for k in (1, 2, 3, 5, 8):
        assert_equals_brute_force(cloud, cloud, k)
        assert_equals_brute_force(cloud, PointCloud(shuffled + 0.5), k)  # cell centres: 2^D equally near


def test_queries_far_outside(dim, dtype, backend):
    support = random_cloud([60], dim, dtype)
    for distance in (3.0, -3.0, 1e3, -1e3, 1e6, -1e6):
        assert_equals_brute_force(support, PointCloud(support.points[:10] + distance), 5)
