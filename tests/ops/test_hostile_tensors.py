"""Whatever tensors an operator is given, the process lives: a defined result, or a clear error."""

import math

import pytest
import torch

import pointvar as pv
from pointvar import ops
from pointvar.ops import native, native_convolve

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
        "features": torch.ones(2, 1),
        "basis": "spherical",
        "size": 16,
        "edges": torch.rand(2, 3),
        "scale": torch.ones(2),
        "parameters": torch.empty(0),
        "constants": [1.0, 5.0, 3.0, 0.0],
        "mixing": None,
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
    phi, norm = torch.full((2, 16), 7.0), torch.full((2,), 7.0)
    plan(edges=edges).project(0, 2, phi, norm)
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
            plan().project(first, count, phi, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": torch.rand(15, 3)},
        {"weight": torch.rand(17, 3)},
        {"weight": torch.rand(16, 4)},
        {"bias": torch.rand(2)},
        {"out": torch.rand(1, 3)},
        {"out": torch.rand(3, 3)},
        {"norm": torch.rand(1)},
        {"grad_features": torch.rand(1, 1)},
        {"grad_weight": torch.rand(16, 2)},
        {"grad_operand": torch.rand(2, 2)},
        {"grad_scale": torch.rand(1)},
        {"grad_parameters": torch.rand(1)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_whole_convolution_looks_at_every_size(changes):
    """Two queries, two support points, 16 functions, one channel, three outputs."""
    given = {
        "weight": torch.rand(16, 3),
        "bias": torch.rand(3),
        "out": torch.rand(2, 3),
        "norm": torch.rand(2),
        "grad_features": torch.zeros(2, 1),
        "grad_weight": torch.rand(16, 3),
        "grad_operand": torch.rand(2, 3),
        "grad_scale": torch.rand(2),
        "grad_parameters": torch.zeros(0),
    }

    def run(weight, bias, out, norm, *grads):
        plan().convolve(weight, bias, out, norm)
        plan().convolve_backward(weight, out, norm, *grads)

    run(*given.values())
    with pytest.raises(ValueError, match=r"must be|number of parameters"):
        run(*(given | changes).values())


def convolution(**changes):
    """The arguments of the flat convolution, 2 queries, 3 support points, with some changed."""
    given = {
        "features": torch.rand(3, 4),
        "weight": torch.rand(5, 4, 6),
        "bias": torch.rand(6),
        "row_offsets": torch.tensor([0, 2, 3]),
        "indices": torch.tensor([0, 2, 1]),
        "operand": torch.rand(3, 2),
        "scale": torch.ones(3),
        "parameters": torch.rand(15),
        "column_offsets": torch.tensor([0, 1, 2, 3]),
        "column_rows": torch.tensor([0, 1, 0]),
        "column_edges": torch.tensor([0, 2, 1]),
        "row_order": torch.tensor([1, 0]),
        "column_order": torch.tensor([2, 0, 1]),
        "mixing": torch.eye(5),
        "basis": "mlp",
        "size": 5,
        "constants": [0.1],
        "unit_response": True,
    } | changes
    return list(given.values())


def backward(grad_out=None, norm=None, wanted=(True,) * 5, **changes):
    """The same of its backward, with gradients that fit unless others are given."""
    features, weight, _, *rest = convolution(**changes)
    grad_out = torch.rand(2, weight.shape[-1]) if grad_out is None else grad_out
    return grad_out, torch.ones(2) if norm is None else norm, features, weight, *rest, list(wanted)


HOSTILE = {
    "weights of other channels": {"weight": torch.rand(5, 3, 6)},
    "weights of other functions": {"weight": torch.rand(4, 4, 6)},
    "a mixing of other functions": {"mixing": torch.eye(4)},
    "a mixing of another dtype": {"mixing": torch.eye(5).double()},
    "a bias of other outputs": {"bias": torch.rand(5)},
    "integer features": {"features": torch.ones(3, 4, dtype=torch.int64)},
    "features of another device": {"features": torch.rand(3, 4, device="meta")},
    "no offsets at all": {"row_offsets": torch.empty(0, dtype=torch.int64)},
    "offsets that descend": {"row_offsets": torch.tensor([0, 4, 3])},
    "indices of no point": {"indices": torch.tensor([0, 3, 1])},
    "indices of 32 bits": {"indices": torch.tensor([0, 2, 1], dtype=torch.int32)},
    "operand too short": {"operand": torch.rand(2, 2)},
    "operand of another dtype": {"operand": torch.rand(3, 2, dtype=torch.float64)},
    "scale too long": {"scale": torch.ones(4)},
    "parameters too short": {"parameters": torch.rand(14)},
    "no function": {"size": 0, "weight": torch.rand(0, 4, 6)},
    "a repeated row order": {"row_order": torch.tensor([1, 1])},
    "a short row order": {"row_order": torch.tensor([0])},
    "half of the orders": {"column_order": None},
    "half of the columns": {"column_edges": None},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_the_flat_convolution_refuses(changes):
    torch.ops.pointvar.convolve(*convolution())
    torch.ops.pointvar.convolve_backward(*backward())
    with pytest.raises(ValueError, match=r"\w"):
        torch.ops.pointvar.convolve(*convolution(**changes))
    if "bias" not in changes:
        with pytest.raises(ValueError, match=r"\w"):
            torch.ops.pointvar.convolve_backward(*backward(**changes))


@pytest.mark.parametrize(
    "columns",
    [
        ([0, 1, 2, 3], [0, 1, 0], [0, 1, 2]),  # edges of other columns
        ([0, 1, 2, 3], [1, 1, 0], [0, 2, 1]),  # an edge of another row
        ([0, 2, 2, 3], [0, 0, 1], [0, 0, 2]),  # an edge twice
        ([0, 1, 2, 3], [0, 1, 0], [0, 2, 2**62]),
        ([0, 1, 2, 4], [0, 1, 0], [0, 2, 1]),
    ],
)
def test_columns_are_those_of_the_edges(columns, monkeypatch):
    names = ("column_offsets", "column_rows", "column_edges")
    changes = dict(zip(names, map(torch.tensor, columns), strict=True))
    # Few outputs, many channels: the way back along the columns.
    wide = {"features": torch.rand(3, 64), "weight": torch.rand(5, 64, 1)}
    wide["wanted"] = [True, True, False, False, False]
    monkeypatch.setattr(native_convolve, "COPY", 0)
    torch.ops.pointvar.convolve_backward(*backward(**wide))
    with pytest.raises(ValueError, match=r"offsets|transposed"):
        torch.ops.pointvar.convolve_backward(*backward(**wide, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"grad_out": torch.rand(1, 6)},
        {"grad_out": torch.rand(3, 6)},
        {"norm": torch.rand(3)},
        {"norm": torch.rand(2, dtype=torch.float64)},
        {"norm": torch.rand(2), "unit_response": False},
        {"wanted": [True] * 4},
    ],
)
def test_gradients_have_the_shape_of_the_results(changes):
    with pytest.raises(ValueError, match="must"):
        torch.ops.pointvar.convolve_backward(*backward(**changes))


def test_no_gradient_of_what_is_not_given():
    values = {"operand": torch.rand(3, 5), "scale": None, "parameters": None, "basis": None, "constants": []}
    with pytest.raises(ValueError, match="not given"):
        torch.ops.pointvar.convolve_backward(*backward(**values))


def test_a_tensor_on_the_meta_device_gives_no_result_on_another():
    """torch then asks the fake kernel, whose memory nobody has written."""
    with pytest.raises(ValueError, match="one device"):
        ops.transpose(torch.empty(3, dtype=torch.int64, device="meta"), torch.tensor([0, 1]), 2)


@pytest.mark.parametrize("kind", ["values", "known"])
def test_no_channels_give_zeros(kind):
    hood = pv.knn(cloud := pv.PointCloud(torch.rand(20, 3)), cloud, 4)
    features, weight = torch.rand(20, 0), torch.rand(5, 0, 6, requires_grad=True)
    functions = ops.Values(torch.rand(hood.num_edges, 5))
    if kind == "known":
        offsets, scale = hood.relative_positions(), torch.ones(hood.num_edges)
        functions = ops.Known(ops.Native("mlp", offsets, torch.rand(20), (0.1,)), 5, scale)
    out = ops.convolve(features, weight, ops.Edges(hood.row_offsets, hood.indices, functions, True))
    assert torch.equal(out, torch.zeros(20, 6))
    out.sum().backward()
    assert weight.grad.shape == (5, 0, 6)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("search", ["ball_query", "knn", "poisson_disk", "farthest_points", "kernel_density"])
def test_the_reference_refuses_bad_points_too(search, value, time_limit):
    """A search that doubles its radius until it has k neighbours must not depend on NaN to end."""
    time_limit(60)
    points, radii = torch.rand(20, 3), torch.tensor([0.3])
    points[3, 1] = value
    counts = torch.tensor([4])
    rest = {
        "ball_query": (points, OFFSETS, radii, -1, 0),
        "knn": (points, OFFSETS, 5),
        "poisson_disk": (radii, 0),
        "farthest_points": (counts, torch.tensor([0]), 4),
        "kernel_density": (radii,),
    }[search]
    with pytest.raises(ValueError, match="finite"):
        getattr(ops.reference, search)(points, OFFSETS, *rest)
