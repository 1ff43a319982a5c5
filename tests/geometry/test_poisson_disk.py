"""poisson_disk: kept points at least a radius apart, every other point closer than that to one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import poisson_disk_faults
from strategies import batches, radii, random_cloud, spacings

from pointvar import PointCloud, poisson_disk


def seeded(cloud: PointCloud, radius: object, seed: int = 0) -> torch.Tensor:
    return poisson_disk(cloud, radius, torch.Generator().manual_seed(seed))


@given(data=st.data(), seed=st.integers(0, 1 << 40))
def test_is_separated_and_maximal(data, seed, dim, dtype, backend):
    spacing = data.draw(spacings)
    cloud = data.draw(batches(dim, dtype, spacing))
    radius = data.draw(radii(spacing))
    keep = seeded(cloud, radius, seed)
    assert keep.dtype == torch.int64
    assert poisson_disk_faults(cloud.points, cloud.offsets, radius, keep) == []


@pytest.mark.parametrize("radius", [0.02, 0.1, [0.05, 0.2, 0.4], 3.0])
def test_is_separated_and_maximal_on_many_points(radius, dim, dtype, backend):
    cloud = random_cloud([600, 0, 400] if isinstance(radius, list) else [1000, 1], dim, dtype)
    keep = seeded(cloud, radius)
    assert 0 < len(keep) < 1000
    assert poisson_disk_faults(cloud.points, cloud.offsets, radius, keep) == []


def test_points_exactly_at_the_radius_are_all_kept(dim, dtype, backend):
    lattice = torch.cartesian_prod(*[torch.arange(5, dtype=dtype)] * dim).view(-1, dim) * 0.25
    assert seeded(PointCloud(lattice), 0.25).tolist() == list(range(5**dim))
    assert len(seeded(PointCloud(lattice), 0.2501)) < 5**dim


def test_one_of_identical_points_is_kept_per_cloud(backend):
    cloud = PointCloud(torch.full((60, 3), 0.7), [20, 0, 40])
    keep = seeded(cloud, 0.1)
    assert cloud.batch[keep].tolist() == [0, 2]


def test_clouds_do_not_cover_each_other(backend):
    """The same cloud twice: each copy has a full sampling of its own."""
    points = random_cloud([200]).points
    cloud = PointCloud(torch.cat([points, points]), [200, 200])
    keep = seeded(cloud, 0.2)
    for begin in (0, 200):
        own = keep[(keep >= begin) & (keep < begin + 200)] - begin
        assert poisson_disk_faults(points, torch.tensor([0, 200]), 0.2, own) == []


def test_generator_decides(backend, generator):
    cloud = random_cloud([500])
    assert torch.equal(seeded(cloud, 0.2, seed=5), seeded(cloud, 0.2, seed=5))
    assert not torch.equal(seeded(cloud, 0.2, seed=5), seeded(cloud, 0.2, seed=6))
    assert not torch.equal(poisson_disk(cloud, 0.2, generator), poisson_disk(cloud, 0.2, generator))


def test_without_generator_torchs_global_one_decides(backend):
    cloud = random_cloud([500])
    results = []
    with torch.random.fork_rng():
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(poisson_disk(cloud, 0.2))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_every_point_of_a_crowd_may_be_kept(backend):
    """One of 10 points within reach of each other is kept, each with probability 1/10: over 1,000
    clouds a count of 100 has a standard deviation of 9.5; 5 of these are allowed."""
    cloud = PointCloud(random_cloud([10_000]).points, [10] * 1000)
    keep = seeded(cloud, 10.0)
    assert len(keep) == 1000
    assert (torch.bincount(keep % 10, minlength=10) - 100).abs().max() < 48


def test_same_on_any_number_of_threads(threads, backend):
    cloud = random_cloud([20_000, 0, 3_000])
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(seeded(cloud, 0.05))
    assert torch.equal(*results)


def test_works_on_points_that_need_gradients(backend):
    points = random_cloud([50]).points
    with_gradients = PointCloud(points.clone().requires_grad_())
    assert torch.equal(seeded(with_gradients, 0.3), seeded(PointCloud(points), 0.3))
