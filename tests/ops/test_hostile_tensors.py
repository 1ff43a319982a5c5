"""Whatever tensors an operator is given, the process lives: a defined result, or a clear error."""

import math

import pytest
import torch

import pointvar as pv
from pointvar import ops
from pointvar.ops import native

pytestmark = pytest.mark.skipif(not native.available, reason="the native kernels are what can end a process")

BAD = (math.nan, math.inf, -math.inf)


def spoiled(points, value):
    """A cloud whose points went bad after it was made, as learned positions do when they diverge."""
    cloud = pv.PointCloud(points)
    points[3, 1] = value
    return cloud


SEARCHES = {
    "knn": lambda cloud: pv.knn(cloud, cloud, 5),
    "ball_query": lambda cloud: pv.ball_query(cloud, cloud, 0.3),
    "poisson_disk": lambda cloud: pv.poisson_disk(cloud, 0.3),
    "farthest_points": lambda cloud: pv.farthest_points(cloud, count=10),
    "kernel_density": lambda cloud: pv.kernel_density(cloud, 0.2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [20, 5000])
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_points_that_went_bad_after_construction(search, value, size, dtype):
    cloud = spoiled(torch.rand(size, 3, dtype=dtype), value)
    with pytest.raises(ValueError, match="finite"):
        search(cloud)


@pytest.mark.parametrize("value", BAD)
def test_queries_that_went_bad(value):
    support, queries = pv.PointCloud(torch.rand(100, 3)), spoiled(torch.rand(50, 3), value)
    for search in (lambda: pv.knn(support, queries, 5), lambda: pv.ball_query(support, queries, 0.3)):
        with pytest.raises(ValueError, match="finite"):
            search()


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-30, 1e30, 1e150, 1e307])
def test_extents_at_the_ends_of_double_precision(scale):
    cloud = pv.PointCloud(torch.rand(500, 3, dtype=torch.float64) * scale)
    assert pv.knn(cloud, cloud, 5).counts.tolist() == [5] * 500
    radius = torch.tensor([max(0.3 * scale, 5e-324)], dtype=torch.float64)
    offsets = torch.tensor([0, 500])
    rows, indices, _ = ops.ball_query(cloud.points, offsets, cloud.points, offsets, radius, -1, 0)
    assert len(rows) == 501
    assert bool(((indices >= 0) & (indices < 500)).all())


OFFSETS = torch.tensor([0, 20])


@pytest.mark.parametrize("radius", [math.nan, math.inf, 0.0, -1.0])
def test_raw_operators_refuse_radii_that_are_none(radius):
    points, radii = torch.rand(20, 3), torch.tensor([radius])
    for call in (
        lambda: ops.ball_query(points, OFFSETS, points, OFFSETS, radii, -1, 0),
        lambda: ops.poisson_disk(points, OFFSETS, radii, 0),
        lambda: ops.kernel_density(points, OFFSETS, radii),
    ):
        with pytest.raises(ValueError, match="positive and finite"):
            call()


@pytest.mark.parametrize("size", [2**61, 2**62, 2**31, -1])
def test_transpose_refuses_sizes_that_no_cloud_has(size):
    with pytest.raises(ValueError, match="support points"):
        ops.transpose(torch.tensor([0, 1]), torch.tensor([0]), size)


def plan(**changes):
    """A native plan of two edges with one thing changed; the parts that are not given are right."""
    given = {
        "row_offsets": torch.tensor([0, 1, 2]),
        "indices": torch.tensor([0, 1]),
        "order": None,
        "support": 2,
        "basis": "spherical",
        "size": 16,
        "edges": torch.rand(2, 3),
        "scale": torch.ones(2),
        "parameters": torch.empty(0),
        "constants": [1.0, 5.0, 3.0, 0.0],
    } | changes
    return native._module.PlanFloat(*given.values())


@pytest.mark.parametrize(
    ("constants", "dim"),
    [
        ([-1.0, -5.0, 3.0, 0.0], 3),
        ([1.0, 5.0, 4.0, 0.0], 3),
        ([math.nan, 5.0, 3.0, 0.0], 3),
        ([0.0, 5.0, 3.0, 0.0], 3),
        ([1e300, 1e300, 1e300, 0.0], 3),
        ([15.0, 1.0, 1.0, 0.0], 1),
    ],
)
def test_spherical_bins_must_fit_the_number_of_functions(constants, dim):
    plan()
    with pytest.raises(ValueError, match="bin"):
        plan(constants=constants, edges=torch.rand(2, dim))


@pytest.mark.parametrize("value", BAD)
def test_spherical_bins_of_offsets_that_are_no_numbers_stay_inside(value):
    edges = torch.tensor([[value, 0.1, 0.2], [0.1, value, value]])
    phi, response = torch.full((2, 16), 7.0), torch.full((2, 16), 7.0)
    plan(edges=edges).project(torch.ones(2, 1), 0, 2, phi, response)
    assert phi.sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("order", [[0, 0], [1, 1], [0, 2], [-1, 0], [2**62, 0]])
def test_an_order_names_every_row_once(order):
    plan(order=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="every row"):
        plan(order=torch.tensor(order))


@pytest.mark.parametrize("indices", [[0, 2], [0, -1], [0, 2**62], [0, -(2**63)]])
def test_indices_name_support_points(indices):
    with pytest.raises(ValueError, match="support points"):
        plan(indices=torch.tensor(indices))


def test_rows_of_a_chunk_lie_inside():
    phi = torch.empty(2, 16)
    for first, count in ((1, 2), (-1, 1), (0, -1), (2**62, 2**62), (1, 2**63 - 1)):
        with pytest.raises(ValueError, match="out of range"):
            plan().project(torch.ones(2, 1), first, count, phi, None)
