"""kernel_density: the sum of Gaussians over the cloud, cut at four bandwidths."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import brute_density
from strategies import batches, dims, dtypes, one_or_each, random_cloud, spacings

from pointvar import PointCloud, kernel_density

# float32: each of up to some hundred terms is an exponential of a rounded argument of at most 8.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def assert_equals_the_loop(cloud: PointCloud, bandwidth: object) -> None:
    expected = torch.tensor(brute_density(cloud.points, cloud.offsets, bandwidth), dtype=cloud.dtype)
    density = kernel_density(cloud, bandwidth)
    assert density.dtype == cloud.dtype
    torch.testing.assert_close(density, expected, rtol=TOLERANCE[cloud.dtype], atol=0)


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes, factor=st.sampled_from([0.25, 0.5, 1.0]))
def test_equals_the_loop(data, factor, dim, dtype, backend):
    """A quarter of the spacing cuts exactly at lattice neighbours."""
    spacing = data.draw(spacings)
    cloud = data.draw(batches(dim, dtype, spacing))
    assert_equals_the_loop(cloud, data.draw(one_or_each(factor * spacing, cloud.num_clouds)))


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 2.0])
def test_equals_the_loop_on_many_points(bandwidth, dim, dtype, backend):
    assert_equals_the_loop(random_cloud([250, 0, 1, 100], dim, dtype), bandwidth)


def test_is_cut_at_four_bandwidths(dtype, backend):
    """At 4 h exactly a point counts no more, a hair before it does."""
    alone = 1 / math.sqrt(2 * math.pi)
    for distance, factor in [(4.0, 1.0), (3.999, 1 + math.exp(-(3.999**2) / 2)), (1e9, 1.0)]:
        cloud = PointCloud(torch.tensor([[0.0], [distance]], dtype=dtype))
        assert kernel_density(cloud, 1.0).tolist() == pytest.approx([factor * alone] * 2, rel=1e-6)


def test_integrates_to_the_number_of_points(backend):
    """In the middle of a dense lattice the density is the number of points per area; the cut at 4 h
    loses e^-8 of a Gaussian in 2D."""
    lattice = torch.cartesian_prod(*[torch.arange(15, dtype=torch.float64)] * 2) * 0.1
    density = kernel_density(PointCloud(lattice), 0.15)
    assert float(density[len(lattice) // 2]) == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize("bandwidth", [0.15, [0.1, 0.3, 0.5]])
def test_gradient(bandwidth, dim, backend):
    points = random_cloud([4, 0, 2], dim, torch.float64).points.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: kernel_density(PointCloud(p, [4, 0, 2]), bandwidth), points)


def test_gradient_of_coinciding_points_is_finite(backend):
    points = torch.zeros(5, 3, requires_grad=True)
    kernel_density(PointCloud(points), 0.1).sum().backward()
    assert points.grad is not None
    assert points.grad.eq(0).all()


class TestKeptWithTheCloud:
    def test_once_per_bandwidth(self):
        cloud = random_cloud([20, 10])
        assert kernel_density(cloud, 0.1) is kernel_density(cloud, 0.1)
        assert kernel_density(cloud, 0.1) is kernel_density(cloud, [0.1, 0.1])
        assert kernel_density(cloud, 0.1) is not kernel_density(cloud, 0.2)

    def test_bandwidths_in_another_order_are_others(self):
        cloud = random_cloud([10, 10, 10])
        for bandwidth in ([0.1, 0.1, 0.5], [0.1, 0.5, 0.5], [0.5, 0.1, 0.1], [0.1, 0.5, 0.1]):
            assert_equals_the_loop(cloud, bandwidth)

    def test_anew_after_a_change_in_place(self):
        cloud = random_cloud([20])
        before = kernel_density(cloud, 0.1)
        cloud.points.mul_(2)
        assert not torch.equal(kernel_density(cloud, 0.1), before)
        assert_equals_the_loop(cloud, 0.1)
