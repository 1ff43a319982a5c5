"""voxel_grid: averages over the cells floor(p / size), and the way back to the points."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import brute_voxels
from strategies import batches, dims, dtypes, radii, random_cloud, spacings

from pointvar import PointCloud, voxel_grid


def assert_equals_the_loop(cloud: PointCloud, size: object) -> None:
    grid = voxel_grid(cloud, size)
    cells = brute_voxels(cloud.points, cloud.offsets, size)
    assert grid.cloud.batch.tolist() == [cell[0] for cell in cells]
    assert grid.cloud.num_clouds == cloud.num_clouds
    assert grid.counts.tolist() == [len(members) for members in cells.values()]
    expected = torch.full((cloud.num_points,), -1)
    for number, members in enumerate(cells.values()):
        expected[members] = number
        mean = cloud.points[members].double().mean(0).to(cloud.dtype)
        torch.testing.assert_close(grid.cloud.points[number], mean)
    assert torch.equal(grid.inverse, expected)


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes)
def test_equals_the_loop(data, dim, dtype):
    """Lattices and halves of them lie on the borders of the cells, with coordinates of both signs."""
    spacing = data.draw(spacings)
    assert_equals_the_loop(data.draw(batches(dim, dtype, spacing)), data.draw(radii(spacing)))


def test_size_per_cloud(dim, dtype):
    assert_equals_the_loop(random_cloud([300, 0, 200], dim, dtype), [0.1, 1.0, 0.3])


def test_cells_of_negative_coordinates_are_not_merged_at_0():
    grid = voxel_grid(PointCloud(torch.tensor([[-0.1], [0.1], [-1.0], [-1.1]])), 1.0)
    assert grid.inverse.tolist() == [1, 2, 1, 0]
    assert grid.cloud.points.flatten().tolist() == pytest.approx([-1.1, -0.55, 0.1])


def test_clouds_at_the_same_place_have_cells_of_their_own():
    points = random_cloud([50]).points
    grid = voxel_grid(PointCloud(torch.cat([points, points]), [50, 50]), 0.5)
    assert grid.cloud.lengths.tolist() == [8, 8]
    assert torch.equal(grid.inverse[50:], grid.inverse[:50] + 8)


def test_huge_extents_do_not_mix_cells(dim, dtype):
    """As many cells along each axis as fit no key: the axes must not overflow into each other."""
    corners = torch.cartesian_prod(*[torch.tensor([-1e15, 0.25, 1e15], dtype=dtype)] * dim).view(-1, dim)
    grid = voxel_grid(PointCloud(corners), 0.5)
    assert grid.counts.tolist() == [1] * 3**dim
    assert torch.equal(grid.cloud.points[grid.inverse], corners)


@pytest.mark.parametrize("value", [1000.1, 1e6 + 0.25])
def test_average_of_many_identical_points_is_that_point(value, dtype):
    points = torch.full((50_000, 3), value, dtype=dtype)
    torch.testing.assert_close(voxel_grid(PointCloud(points), 1.0).cloud.points, points[:1])


def test_average_of_values_goes_back_through_inverse():
    cloud = random_cloud([40, 30])
    grid = voxel_grid(cloud, 0.5)
    values = torch.rand(70, 2, 3)
    means = torch.stack([values[grid.inverse == cell].mean(0) for cell in range(len(grid.counts))])
    torch.testing.assert_close(grid.average(values), means)
    torch.testing.assert_close(grid.average(means[grid.inverse]), means)
    assert grid.average(values[:, 0, 0]).shape == (len(grid.counts),)


def test_average_is_differentiable():
    cloud = random_cloud([12, 5], dtype=torch.float64)
    grid = voxel_grid(cloud, 0.5)
    values = torch.rand(17, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(grid.average, values)


def test_averaged_points_are_differentiable():
    points = random_cloud([9], 2, torch.float64).points.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: voxel_grid(PointCloud(p), 0.5).cloud.points, points)


def test_average_rejects_another_number_of_rows():
    with pytest.raises(ValueError, match="values must have 5 rows"):
        voxel_grid(random_cloud([5]), 0.5).average(torch.rand(4, 2))


def test_no_points():
    grid = voxel_grid(PointCloud(torch.zeros(0, 3), [0, 0]), 0.5)
    assert grid.cloud.lengths.tolist() == [0, 0]
    assert grid.counts.tolist() == grid.inverse.tolist() == []
