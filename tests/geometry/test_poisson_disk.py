"""poisson_disk: kept points at least a radius apart, every other point closer than that to one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import poisson_disk_faults
from strategies import batches, dims, dtypes, one_or_each, random_cloud, spacings

from pointvar import PointCloud, poisson_disk


def seeded(cloud: PointCloud, radius: object, seed: int = 0) -> torch.Tensor:
    return poisson_disk(cloud, radius, torch.Generator().manual_seed(seed))


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes, seed=st.integers(0, 1 << 40))
def test_is_separated_and_maximal(data, seed, dim, dtype, backend):
    spacing = data.draw(spacings)
    cloud = data.draw(batches(dim, dtype, spacing))
    radius = data.draw(one_or_each(spacing, cloud.num_clouds))
    keep = seeded(cloud, radius, seed)
    assert keep.dtype == torch.int64
    assert poisson_disk_faults(cloud.points, cloud.offsets, radius, keep) == []


@pytest.mark.parametrize("radius", [0.02, [0.05, 0.2, 0.4], 3.0])
def test_is_separated_and_maximal_on_many_points(radius, dim, dtype, backend):
    cloud = random_cloud([600, 0, 400] if isinstance(radius, list) else [1000, 1], dim, dtype)
    keep = seeded(cloud, radius)
    assert 0 < len(keep) < 1000
    assert poisson_disk_faults(cloud.points, cloud.offsets, radius, keep) == []


def test_points_exactly_at_the_radius_are_all_kept(dim, dtype, backend):
    lattice = torch.cartesian_prod(*[torch.arange(5, dtype=dtype)] * dim).view(-1, dim) * 0.25
    assert seeded(PointCloud(lattice), 0.25).tolist() == list(range(5**dim))
    assert len(seeded(PointCloud(lattice), 0.2501)) < 5**dim


def test_every_point_of_a_crowd_may_be_kept(backend):
    """One of 10 points within reach of each other is kept, each with probability 1/10: over 1,000
    clouds a count of 100 has a standard deviation of 9.5; 5 of these are allowed."""
    cloud = PointCloud(random_cloud([10_000]).points, [10] * 1000)
    keep = seeded(cloud, 10.0)
    assert len(keep) == 1000
    assert (torch.bincount(keep % 10, minlength=10) - 100).abs().max() < 48


def test_works_on_points_that_need_gradients(backend):
    points = random_cloud([50]).points
    with_gradients = PointCloud(points.clone().requires_grad_())
    assert torch.equal(seeded(with_gradients, 0.3), seeded(PointCloud(points), 0.3))
