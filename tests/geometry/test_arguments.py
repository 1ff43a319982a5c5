"""Bad arguments give clear errors, before any operator sees them."""

import numpy as np
import pytest
import torch
from strategies import random_cloud

from pointvar import (
    Hierarchy,
    PointCloud,
    ball_query,
    farthest_points,
    kernel_density,
    knn,
    poisson_disk,
    voxel_grid,
)

LENGTH_TAKERS = {
    "ball_query": lambda cloud, value: ball_query(cloud, cloud, value),
    "poisson_disk": poisson_disk,
    "voxel_grid": voxel_grid,
    "kernel_density": kernel_density,
}
PAIR_TAKERS = {
    "ball_query": lambda support, queries: ball_query(support, queries, 0.1),
    "knn": lambda support, queries: knn(support, queries, 2),
}


@pytest.mark.parametrize(
    "value", [0, 0.0, -0.1, float("nan"), float("inf"), [0.1, -0.1], [0.1, float("nan")]]
)
@pytest.mark.parametrize("name", LENGTH_TAKERS)
def test_lengths_must_be_positive_and_finite(name, value):
    with pytest.raises(ValueError, match="must be positive and finite"):
        LENGTH_TAKERS[name](random_cloud([3, 2]), value)


@pytest.mark.parametrize("value", [[0.1, 0.1, 0.1], torch.ones(2, 1), []])
@pytest.mark.parametrize("name", LENGTH_TAKERS)
def test_lengths_are_one_or_one_per_cloud(name, value):
    with pytest.raises(ValueError, match="one number for each of the 2 clouds"):
        LENGTH_TAKERS[name](random_cloud([3, 2]), value)


@pytest.mark.parametrize("value", [None, True, "0.1", {0.1}, ["0.1", "0.2"], [0.1, None], 1j])
@pytest.mark.parametrize("name", LENGTH_TAKERS)
def test_lengths_must_be_numbers(name, value):
    with pytest.raises(TypeError, match="must be a number or one number per cloud, got"):
        LENGTH_TAKERS[name](random_cloud([3, 2]), value)


@pytest.mark.parametrize("value", [np.float32(0.25), np.float64(0.25), np.array([0.25, 0.25])])
@pytest.mark.parametrize("name", LENGTH_TAKERS)
def test_numbers_of_numpy_are_numbers(name, value):
    def result(length):
        torch.manual_seed(0)
        made = LENGTH_TAKERS[name](random_cloud([30, 20]), length)
        return getattr(made, {"ball_query": "indices", "voxel_grid": "inverse"}.get(name, "data"))

    assert torch.equal(result(value), result(0.25))


@pytest.mark.parametrize(
    ("queries", "name"),
    [
        (random_cloud([3, 2], dtype=torch.float64), "dtype"),
        (random_cloud([3, 2], dim=2), "dim"),
        (random_cloud([5]), "num_clouds"),
        (random_cloud([3, 1, 1]), "num_clouds"),
        (random_cloud([3, 2]).to("meta"), "device"),
    ],
)
@pytest.mark.parametrize("function", PAIR_TAKERS)
def test_support_and_queries_must_agree(function, queries, name):
    with pytest.raises(ValueError, match=f"must agree in {name}"):
        PAIR_TAKERS[function](random_cloud([3, 2]), queries)
    with pytest.raises(ValueError, match=f"must agree in {name}"):
        PAIR_TAKERS[function](queries, random_cloud([3, 2]))


@pytest.mark.parametrize("function", PAIR_TAKERS)
def test_support_and_queries_must_be_clouds(function):
    for pair in [(torch.rand(3, 3), random_cloud([3])), (random_cloud([3]), torch.rand(3, 3))]:
        with pytest.raises(TypeError, match="must be PointClouds"):
            PAIR_TAKERS[function](*pair)


@pytest.mark.parametrize(
    "function",
    [
        lambda points: poisson_disk(points, 0.1),
        lambda points: farthest_points(points, count=1),
        lambda points: voxel_grid(points, 0.1),
        lambda points: kernel_density(points, 0.1),
    ],
)
def test_cloud_must_be_a_cloud(function):
    with pytest.raises(TypeError, match="cloud must be a PointCloud"):
        function(torch.rand(3, 3))


@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-3, ValueError), (2**63, ValueError), (2.0, TypeError), (True, TypeError)],
)
def test_numbers_of_neighbours_must_be_positive_integers(value, error):
    cloud = random_cloud([3])
    with pytest.raises(error, match="k must be"):
        knn(cloud, cloud, value)
    with pytest.raises(error, match="max_neighbors must be"):
        ball_query(cloud, cloud, 0.1, max_neighbors=value)


def test_an_integer_of_numpy_is_an_integer():
    cloud = random_cloud([9])
    assert torch.equal(knn(cloud, cloud, np.int64(2)).indices, knn(cloud, cloud, 2).indices)
    assert int(ball_query(cloud, cloud, 9.0, max_neighbors=np.int32(4)).counts.max()) == 4
    with pytest.raises(TypeError, match="count must be an integer"):
        farthest_points(cloud, count=True)


@pytest.mark.parametrize("seed", [7, "7"])
def test_a_seed_is_no_generator(seed):
    cloud = random_cloud([3])
    for function in (
        lambda: ball_query(cloud, cloud, 0.1, 2, seed),
        lambda: poisson_disk(cloud, 0.1, seed),
        lambda: Hierarchy(cloud, [0.1], generator=seed),
    ):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator.*, got (int|str)"):
            function()


@pytest.mark.parametrize(
    ("value", "error"),
    [([1.0] * 3, TypeError), (torch.ones(2), ValueError), (torch.ones(3, dtype=torch.float64), ValueError)],
)
def test_a_density_is_one_number_per_support_point(value, error):
    hood = knn(random_cloud([3]), random_cloud([5]), 2)
    with pytest.raises(error, match="one number per support point"):
        hood.density = value
    hood.density = torch.ones(3)
    hood.density = None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_points_that_are_not_finite_never_become_a_cloud(value):
    with pytest.raises(ValueError, match="finite"):
        ball_query(PointCloud(torch.tensor([[0.0], [value]])), PointCloud(torch.zeros(1, 1)), 0.1)
