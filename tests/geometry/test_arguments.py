"""Bad arguments give clear errors, before any operator sees them."""

import pytest
import torch
from strategies import random_cloud

from pointvar import PointCloud, ball_query, farthest_points, kernel_density, knn, poisson_disk, voxel_grid

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


@pytest.mark.parametrize("value", [None, True, "0.1", {0.1}])
@pytest.mark.parametrize("name", LENGTH_TAKERS)
def test_lengths_must_be_numbers(name, value):
    with pytest.raises(TypeError):
        LENGTH_TAKERS[name](random_cloud([3, 2]), value)


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
    ("value", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_numbers_of_neighbours_must_be_positive_integers(value, error):
    cloud = random_cloud([3])
    with pytest.raises(error, match="k must be"):
        knn(cloud, cloud, value)
    with pytest.raises(error, match="max_neighbors must be"):
        ball_query(cloud, cloud, 0.1, max_neighbors=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_points_that_are_not_finite_never_become_a_cloud(value):
    with pytest.raises(ValueError, match="finite"):
        ball_query(PointCloud(torch.tensor([[0.0], [value]])), PointCloud(torch.zeros(1, 1)), 0.1)
