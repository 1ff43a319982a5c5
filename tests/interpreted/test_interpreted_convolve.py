"""Every basis, dtype and shape: the kernels give what plain torch gives, forward and each gradient.

A program takes the interpreter some 30 ms: few rows, but each of a kind of its own, and plain geometry.
"""

import pytest
import torch
from host_waits import HostWaits
from torch import distributed

import pointvar as pv
from pointvar import ops
from pointvar.ops import Edges, Values, backends, projection, reference, reference_convolve, triton_convolve


@pytest.fixture(autouse=True)
def _plain_geometry(monkeypatch):
    monkeypatch.setitem(backends.BACKENDS, "cpu", backends.TRITON._replace(geometry=reference))


BASES = {
    "gaussian": lambda k, dim: pv.basis.Gaussian(k, dim),
    "linear": lambda k, dim: pv.basis.LinearCorrelation(k, dim, width=0.9),
    "nearest": lambda k, dim: pv.basis.NearestPoint(k, dim),
    "mlp": lambda k, dim: pv.basis.MLP(k, dim),
    "mlp, unscaled": lambda k, dim: pv.basis.MLP(k, dim, slope=0.0, scaled=False, radius=0.4),
    "dot": lambda k, dim: pv.basis.Dot(dim),
    "spherical": lambda k, dim: pv.basis.SphericalBins(2, 3, 2, dim),
}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}


def close(got, expected, tolerance):
    assert (got is None) == (expected is None)
    if expected is not None:
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
        torch.testing.assert_close(
            got.double(), expected.double(), rtol=0, atol=tolerance * max(largest, 1e-2)
        )


def both(monkeypatch, run):
    """What Triton gives, and what plain torch gives."""
    assert backends.of("cpu").convolution is triton_convolve
    fast = run()
    with monkeypatch.context() as patch:
        patch.setattr(backends, "BACKENDS", {})
        return fast, run()


def rows(counts, support):
    row_offsets = torch.tensor([0, *counts]).cumsum(0)
    return row_offsets, torch.randint(support, (sum(counts),))


def gradients(out, inputs):
    weights = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view_as(out).to(out.dtype)
    return torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("basis", BASES)
def test_bases(basis, dim, unit, monkeypatch):
    """A layer with positions that move: gradients of features, weight, positions, q and the basis."""
    conv = pv.PointConvolution(
        5, 4, BASES[basis](7, dim), pv.estimator.LearnedDensity(), unit_response=unit
    ).double()
    support = torch.rand(13, dim).double().requires_grad_()
    queries = torch.rand(4, dim).double().requires_grad_()
    features = torch.randn(13, 5).double().requires_grad_()
    inputs = [features, support, queries, *conv.parameters()]

    def run():
        hood = pv.ball_query(pv.PointCloud(support), pv.PointCloud(queries), 0.4)
        out = conv(features, hood)
        return [out, *gradients(out, inputs), conv.second_moment(features.detach(), hood)]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("basis", BASES)
def test_precision(basis, dtype, monkeypatch):
    """float32, and products in bfloat16; the interpreter cuts digits where a device rounds."""
    conv = pv.PointConvolution(3, 2, BASES[basis](16, 3), pv.estimator.Sum(), bias=False)
    points, features = torch.rand(9, 3), torch.randn(9, 3).requires_grad_()
    hood = pv.ball_query(pv.PointCloud(points), pv.PointCloud(points[:3]), 0.6)

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = conv(features, hood)
        assert out.dtype == dtype
        return [out, *gradients(out, [features, *conv.parameters()])]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, TOLERANCE[dtype])


SHAPES = {
    "empty rows": ((0, 3, 0, 0, 2, 0), 4, 5, 3, 2),
    "nothing": ((0, 0), 3, 2, 3, 2),
    "no query": ((), 3, 2, 3, 2),
    "a long row": ((1, 70, 2), 20, 4, 3, 2),
    "a whole block": ((16, 32), 9, 16, 16, 16),
    "one function, one channel": ((5, 1), 6, 1, 1, 1),
    "seventeen functions": ((5, 18), 6, 17, 2, 3),
    "twenty functions": ((4, 2), 3, 20, 33, 1),
    "many channels": ((3, 1), 3, 3, 130, 2),
    "no channel": ((3, 1), 3, 3, 0, 2),
    "many outputs": ((2, 2), 3, 2, 3, 70),
    "more queries than points": ((1, 2, 1, 2, 1), 2, 3, 4, 5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize(("counts", "support", "k", "c", "o"), SHAPES.values(), ids=SHAPES)
def test_shapes(counts, support, k, c, o, unit, dtype, monkeypatch):
    row_offsets, indices = rows(counts, support)

    def made(*shape):
        return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()

    inputs = made(support, c), made(k, c, o), made(sum(counts), k), made(o)
    features, weight, values, bias = inputs

    def run():
        out = ops.convolve(features, weight, Edges(row_offsets, indices, Values(values), unit), bias)
        return [out, *gradients(out, inputs)]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, TOLERANCE[dtype])


KNOWN = {
    "gaussian": ((0.4,), 0),
    "linear": ((1.1,), 0),
    "nearest": ((), 0),
    "mlp": ((0.2,), 1),
    "dot": ((), None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", KNOWN)
def test_bases_of_all_shapes(name, shape, dtype, monkeypatch):
    """Bases that kernels evaluate, with a weight of each dtype: values and the gradient of each operand."""
    counts, support, k, c, o = SHAPES[shape]
    constants, bias = KNOWN[name]
    k = k if bias is not None else 4
    row_offsets, indices = rows(counts, support)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def made(*shape, dtype=wide):
        return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()

    features, weight = made(support, c), made(k, c, o, dtype=dtype)
    offsets, scale = made(sum(counts), 3), made(sum(counts))
    parameters = None if bias is None else made(k * (3 + bias))
    inputs = [features, weight, scale]
    if name != "nearest":  # constant where it has a derivative
        inputs += [t for t in (offsets, parameters) if t is not None]

    def values():
        if name == "dot":
            return torch.cat([offsets, torch.ones_like(offsets[:, :1])], 1)
        maps = parameters[: 3 * k].view(k, 3)
        if name == "mlp":
            return torch.nn.functional.leaky_relu(offsets @ maps.T + parameters[3 * k :], *constants)
        squared = (offsets[:, None] - maps).square().sum(2)
        if name == "nearest":
            return torch.nn.functional.one_hot(squared.argmin(1), k).to(wide)
        if name == "gaussian":
            return torch.exp(-squared / (2 * constants[0] ** 2))
        return (1 - squared.sqrt() / constants[0]).clamp(min=0)

    def run():
        basis = ops.Native(name, offsets, parameters, constants)
        known = ops.Known(basis, k, scale, lambda: values() * scale[:, None])
        out = ops.convolve(features, weight, Edges(row_offsets, indices, known))
        return [out, *gradients(out, inputs)]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)])
@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
def test_wanted_gradients_in_chunks(wanted, unit, monkeypatch):
    """Of each set that can be wanted, with mixed functions and chunks of one row."""
    monkeypatch.setattr(triton_convolve, "BYTES", 1)
    row_offsets, indices = rows((3, 0, 5, 1), 6)
    inputs = [torch.randn(6, 3), torch.randn(4, 3, 2), torch.randn(9, 4)]
    inputs = [t.double().requires_grad_(bool(w)) for t, w in zip(inputs, wanted, strict=True)]
    mixing = torch.randn(4, 4).double()
    mixing = mixing + mixing.T

    def run():
        edges = Edges(row_offsets, indices, Values(inputs[2]), unit, mixing)
        out = ops.convolve(*inputs[:2], edges)
        return [out, *gradients(out, [t for t in inputs if t.requires_grad])]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, 1e-12)


def test_projection_and_second_moment(monkeypatch):
    row_offsets, indices = rows((3, 0, 20), 6)
    features, values = torch.randn(6, 40), torch.randn(23, 5)
    edges = Edges(row_offsets, indices, Values(values))

    def run():
        unit = edges._replace(unit_response=True)
        mixed = edges._replace(mixing=torch.diag(torch.arange(5.0)))
        kinds = (edges, unit, mixed)
        moments = [ops.second_moment(features, kind) for kind in kinds]
        return [*(ops.project(features, kind) for kind in kinds), *moments]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, 1e-6)
    assert ops.second_moment(features, edges).dtype == torch.float64


def test_bfloat16_under_autocast(monkeypatch):
    """Sums in float32, the product in bfloat16; the interpreter cuts digits where a device rounds."""
    row_offsets, indices = rows((7, 20), 6)
    features = torch.randn(6, 16).bfloat16().requires_grad_()
    inputs = [features, torch.randn(4, 16, 8).requires_grad_(), torch.randn(27, 4).requires_grad_()]

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            out = ops.convolve(*inputs[:2], Edges(row_offsets, indices, Values(inputs[2])))
        return [out, *gradients(out, inputs)]

    for got, expected in zip(*both(monkeypatch, run), strict=True):
        close(got, expected, TOLERANCE[torch.bfloat16])


def problem():
    row_offsets, indices = rows((3, 0, 5), 6)
    features, weight = torch.randn(6, 3).requires_grad_(), torch.randn(4, 3, 2).requires_grad_()
    values = torch.randn(8, 4).requires_grad_()
    return features, weight, values, lambda v, unit=True: Edges(row_offsets, indices, Values(v), unit)


def test_the_same_bits_every_time():
    features, weight, values, on = problem()

    def run():
        out = ops.convolve(features, weight, on(values))
        return out, *torch.autograd.grad(out.sum(), (features, weight, values))

    assert all(map(torch.equal, run(), run()))


def test_the_host_never_waits():
    """Neither forward nor backward, with the transposed edges at hand."""
    features, weight, values, on = (t.detach() if isinstance(t, torch.Tensor) else t for t in problem())
    edges = on(values)
    columns = reference.transpose(edges.row_offsets, edges.indices, len(features))
    edges = edges._replace(transposed=lambda: columns)
    with HostWaits() as seen:
        out, norm = triton_convolve.convolve(features, weight, None, edges)
        triton_convolve.convolve_backward(out, norm, features, weight, edges, [True] * 3 + [False] * 2)
        triton_convolve.second_moment(features, edges)
    assert seen.calls
    assert not seen.total, seen.waits


@pytest.mark.parametrize("basis", BASES)
def test_nothing_of_a_layer_is_left_to_plain_torch(basis, monkeypatch):
    """For which the host would wait: also values from torch are divided by their response in the kernel."""
    conv = pv.PointConvolution(2, 3, BASES[basis](4, 3), pv.estimator.LearnedDensity(), unit_response=True)
    cloud, features = pv.PointCloud(torch.rand(8, 3)), torch.rand(8, 2, requires_grad=True)
    hood = pv.ball_query(cloud, cloud, 0.5)
    monkeypatch.setattr(reference_convolve, "_batches", None)
    conv(features, hood).square().sum().backward()
    conv.second_moment(features, hood)


def test_the_norm_does_not_need_channels():
    features, weight, values, on = (t.detach() if isinstance(t, torch.Tensor) else t for t in problem())
    _, none = triton_convolve.convolve(features[:, :0], weight[:, :0], None, on(values))
    _, norm = triton_convolve.convolve(features, weight, None, on(values))
    assert torch.equal(none, norm)


def test_backward_leaves_what_was_kept_as_it_is():
    """The norm of forward is read: torch is told that the operator changes nothing."""
    features, weight, values, on = (t.detach() if isinstance(t, torch.Tensor) else t for t in problem())
    out, norm = triton_convolve.convolve(features, weight, None, on(values))
    other = 2 * norm
    triton_convolve.convolve_backward(out, other, features, weight, on(values), [True] * 3 + [False] * 2)
    assert torch.equal(other, 2 * norm)


def test_opcheck():
    features, weight, values, on = problem()
    torch.library.opcheck(projection._convolve, (features, weight, None, *projection._flat(on(values))))
    flat = projection._flat(on(values.detach()))
    torch.library.opcheck(projection._second_moment, (features.detach(), *flat))


def test_compiles_as_one_graph():
    conv = pv.KPConvN(3, 2, 5, unit_response=True)
    points, features = torch.rand(8, 3), torch.randn(8, 3)
    hood = pv.ball_query(pv.PointCloud(points), pv.PointCloud(points[:3]), 0.6)
    hood.density = torch.ones(8)
    expected = conv(features, hood)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features, hood), expected)
    compiled(features, hood).sum().backward()
    assert bool(conv.weight.grad.abs().sum() > 0)


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this build of torch has no gloo")
def test_gradients_in_distributed_training(tmp_path):
    """Through the hooks and buckets of torch, which one process has as well as many."""
    conv, features = pv.KPConvN(3, 2, 5, unit_response=True), torch.randn(8, 3)
    cloud = pv.PointCloud(torch.rand(8, 3))
    hood = pv.ball_query(cloud, cloud, 0.6)
    expected = torch.autograd.grad(conv(features, hood).square().sum(), list(conv.parameters()))
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(conv)
        parallel(features, hood).square().sum().backward()
    finally:
        distributed.destroy_process_group()
    assert all(torch.equal(p.grad, e) for p, e in zip(conv.parameters(), expected, strict=True))


def test_what_is_not_finite_stays_where_it_is_seen():
    features, weight, values, on = (t.detach() if isinstance(t, torch.Tensor) else t for t in problem())
    edges = on(values, False)
    features[edges.indices[0]] = torch.nan
    seen = torch.stack([(row == edges.indices[0]).any() for row in edges.indices.split([3, 0, 5])])
    assert torch.equal(ops.convolve(features, weight, edges).isnan().any(1), seen)


def test_numbers_out_of_range_are_left_out():
    """The host does not wait to look at them; they must not lead anywhere else."""
    features, weight, values, on = (t.detach() if isinstance(t, torch.Tensor) else t for t in problem())
    edges = on(values, False)
    spoiled = edges.indices.clone()
    spoiled[0], spoiled[3] = 6, -1
    kept = torch.ones(8, 1)
    kept[0] = kept[3] = 0
    expected = ops.convolve(features, weight, edges._replace(functions=Values(values * kept)))
    torch.testing.assert_close(ops.convolve(features, weight, edges._replace(indices=spoiled)), expected)
    beyond = edges._replace(row_offsets=torch.tensor([-5, 3, 3, 1 << 40]))
    torch.testing.assert_close(ops.convolve(features, weight, beyond), ops.convolve(features, weight, edges))


def test_a_basis_needs_its_parameters():
    features, weight, _, on = problem()
    offsets, scale = torch.rand(8, 2), torch.ones(8)
    known = ops.Known(ops.Native("linear", offsets, torch.rand(7), (0.5,)), 4, scale)
    with pytest.raises(ValueError, match="needs 8 parameters and 1 constants, got 7 and 1"):
        ops.convolve(features, weight, on(None)._replace(functions=known))
    known = known._replace(basis=known.basis._replace(parameters=torch.rand(9)))
    with pytest.raises(ValueError, match="got 9 and 1"):  # whose gradients would have no place
        ops.convolve(features, weight, on(None)._replace(functions=known))
