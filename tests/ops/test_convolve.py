"""The operators on edges: one chunk or many, the same sums; nothing large is stored; torch's own checks."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pointvar import ops
from pointvar.ops import Edges, Known, Native, Values, backends, native, native_convolve, projection
from pointvar.ops import reference_convolve as reference

needs_native = pytest.mark.skipif(not native.available, reason="the native module is not in use")


@pytest.fixture(params=["reference", pytest.param("native", marks=needs_native)])
def kernels(request, monkeypatch):
    """The operators run with either backend."""
    if request.param == "native":
        return native_convolve
    monkeypatch.setattr(backends, "BACKENDS", {})
    return reference


def problem(counts=(3, 0, 5, 1, 2), support=6, k=4, c=3, o=2, dtype=torch.float64):
    """Features, weight, values, and the edges with such values."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    row_offsets = torch.tensor([0, *counts]).cumsum(0)
    indices = torch.randint(support, (sum(counts),), generator=generator)

    def edges(values, *rest):
        return Edges(row_offsets, indices, Values(values), *rest)

    return randn(support, c), randn(k, c, o), randn(sum(counts), k), edges


def dense(features, edges):
    """phi [M, K, C] as one large sum."""
    rows = torch.repeat_interleave(edges.row_offsets.diff())
    each = edges.values[:, :, None] * features[edges.indices][:, None, :]
    return each.new_zeros(edges.num_queries, *each.shape[1:]).index_add(0, rows, each)


def dense_convolve(features, weight, edges):
    response = dense(torch.ones_like(features[:, :1]), edges)[..., 0]
    return dense(features, edges).flatten(1) @ weight.flatten(0, 1), response


@pytest.fixture(params=[(512, 1 << 15), (2, 1 << 15), (3, 6), (1, 1)], ids=["one", "rows", "slots", "single"])
def chunks(request, monkeypatch):
    """Chunks large and small; the last two halve them for the sake of long rows."""
    monkeypatch.setattr(reference, "ROWS", request.param[0])
    monkeypatch.setattr(reference, "SLOTS", request.param[1])
    monkeypatch.setattr(native_convolve, "ROWS", request.param[0])
    monkeypatch.setattr(native_convolve, "NUMBERS", 1)


@pytest.mark.parametrize("channels", [1, 3, 8, 27])
@pytest.mark.parametrize("counts", [(3, 0, 5, 1, 2), (0, 0), (), (7,), (1, 1, 1, 40, 1)])
def test_sums(counts, channels, kernels, chunks):
    features, weight, values, on = problem(counts, c=channels, k=5)
    edges = on(values)
    phi, (out, response) = dense(features, edges), dense_convolve(features, weight, edges)
    torch.testing.assert_close(ops.convolve(features, weight, edges), (out, response))
    torch.testing.assert_close(ops.project(features, edges), phi.flatten(1))
    for unit in (False, True):
        squares = phi.square().sum((1, 2))
        if unit:
            squares = (squares / response.square().sum(1)).nan_to_num(0)
        moment = ops.second_moment(features.detach(), on(values.detach()), unit)
        torch.testing.assert_close(moment, squares.detach().sum() / max(len(counts), 1))


def test_gradients(kernels, chunks):
    *inputs, on = problem()
    assert torch.autograd.gradcheck(lambda f, w, v: ops.convolve(f, w, on(v)), inputs)
    assert torch.autograd.gradcheck(lambda f, v: ops.project(f, on(v)), inputs[::2])


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)])
@pytest.mark.parametrize(("c", "o"), [(1, 9), (9, 2), (8, 8)])  # either way back has fewer operations
@pytest.mark.parametrize("help", ["none", "columns", "orders"])
def test_only_wanted_gradients(wanted, c, o, help, kernels, chunks, monkeypatch):
    """Against torch's own derivative of the large sum, whatever the backend is told of the edges."""
    monkeypatch.setattr(native_convolve, "CACHE", -1)  # so that it asks for the orders
    *inputs, on = problem(c=c, o=o)
    for t, w in zip(inputs, wanted, strict=True):
        t.requires_grad_(bool(w))
    features, weight, values = inputs
    edges = on(values)
    asked = []

    def transposed():
        asked.append("columns")
        return ops.transpose(edges.row_offsets, edges.indices, 6)

    def orders():
        asked.append("orders")
        return torch.randperm(5), torch.randperm(6)

    told = {"none": (), "columns": (transposed,), "orders": (transposed, orders)}[help]
    by_operator = ops.convolve(features, weight, on(values, *told))
    by_hand = dense_convolve(features, weight, edges)
    torch.testing.assert_close(by_operator, by_hand)
    leaves = [t for t in inputs if t.requires_grad]

    def gradients(out, response):
        loss = out.sin().sum() + (response.cos().sum() if wanted[2] else 0)
        return torch.autograd.grad(loss, leaves)

    torch.testing.assert_close(gradients(*by_operator), gradients(*by_hand))
    if kernels is native_convolve and help == "orders":
        assert asked == (["orders"] if wanted[2] else ["columns", "orders"])
    assert kernels is native_convolve or not asked


def test_gradients_are_asked_for_in_training_only():
    features, weight, values, on = problem()

    def unexpected():
        raise AssertionError("nobody needs the transposed edges here")

    with torch.no_grad():
        ops.convolve(features, weight, on(values.detach(), unexpected))
    ops.convolve(features.detach(), weight.detach(), on(values.detach(), unexpected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(dtype):
    """Of the flat operators, which are private to ``ops``."""
    features, weight, values, on = problem(dtype=dtype)
    flat, pair = projection._flat(on(values)), (on(values).row_offsets, on(values).indices)
    out, response = (torch.randn_like(t) for t in ops.convolve(features, weight, on(values)))
    phi = torch.randn_like(ops.project(features, on(values)))
    f, w, v = (t.detach() for t in (features, weight, values))
    torch.library.opcheck(projection._convolve, (features, weight, *flat))
    torch.library.opcheck(projection._project, (features, values, *pair))
    torch.library.opcheck(projection._second_moment, (f, *projection._flat(on(v)), True))
    for wanted in ([True, True, True, False, False], [False, False, True, False, False]):
        arguments = (out, response, f, w, *projection._flat(on(v)), wanted)
        torch.library.opcheck(projection._convolve_backward, arguments)
        torch.library.opcheck(projection._project_backward, (phi, f, v, *pair, wanted[1:3]))


def known(name, otherwise=None, mixing=None):
    """Offsets in the plane, four hats."""
    offsets, points = torch.rand(11, 2).double().requires_grad_(), torch.rand(4, 2).double()
    basis = Native(name, offsets, points.flatten(), (0.9,), mixing)
    return Known(basis, 4, torch.rand(11).double().requires_grad_(), otherwise)


@needs_native
def test_opcheck_of_a_known_basis():
    features, weight, _, on = problem()
    flat = projection._flat(on(torch.zeros(0))._replace(functions=known("linear")))
    torch.library.opcheck(projection._convolve, (features, weight, *flat))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", ["linear", "a basis of tomorrow"])
def test_a_basis_is_evaluated_by_kernels_that_know_it_or_by_its_owner(name, mixed, kernels):
    """The same sums either way, and no evaluation beside the kernels that can do it."""
    features, weight, _, on = problem()
    mixing = torch.eye(4).double() + 0.1 if mixed else None
    evaluations = []

    def hats():
        evaluations.append(1)
        (_, offsets, points, (width,), _), _, scale, _ = functions
        values = (1 - torch.cdist(offsets, points.view(4, 2)) / width).relu() * scale[:, None]
        return values if mixing is None else values @ mixing

    functions = known(name, hats, mixing)
    edges, native_runs = on(torch.zeros(0))._replace(functions=functions), kernels is native_convolve
    by_hand = dense_convolve(features, weight, edges.evaluated())
    leaves = (features, weight, functions.basis.offsets, functions.scale)
    evaluations.clear()
    by_operator = ops.convolve(features, weight, edges)
    assert len(evaluations) == (0 if native_runs and name == "linear" else 1)
    torch.testing.assert_close(by_operator, by_hand)
    gradients = (
        torch.autograd.grad(sum(t.sin().sum() for t in pair), leaves) for pair in (by_operator, by_hand)
    )
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        evaluations.clear()
        moment = ops.second_moment(features, edges)
        assert len(evaluations) == (0 if native_runs and name == "linear" and not mixed else 1)
        torch.testing.assert_close(moment, dense(features, edges.evaluated()).square().sum((1, 2)).mean())


def test_a_basis_that_nobody_knows_is_named(kernels):
    features, weight, _, on = problem()
    edges = on(torch.zeros(0))._replace(functions=known("a basis of tomorrow"))
    for run in (lambda: ops.convolve(features, weight, edges), lambda: ops.project(features, edges)):
        with pytest.raises(ValueError, match="no kernel here knows the basis 'a basis of tomorrow'"):
            run()
    with pytest.raises(ValueError, match="take a basis as its values, got 'a basis of tomorrow'"):
        reference.convolve(features, weight, edges)


def test_precision_follows_edges_and_weight(kernels):
    """Features in bfloat16, autocast: the sums are those of float32, the product is that of bfloat16."""
    features, weight, values, on = problem(dtype=torch.float32)
    low = features.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out, response = ops.convolve(low, weight, on(values))
        phi = ops.project(low, on(values))
    torch.testing.assert_close(phi, dense(low.float(), on(values)).flatten(1))
    torch.testing.assert_close(out, phi.bfloat16() @ weight.bfloat16().flatten(0, 1))
    assert response.dtype == torch.float32
    out.sum().backward()
    assert [t.grad.dtype for t in (low, weight, values)] == [torch.bfloat16, torch.float32, torch.float32]


def test_the_second_moment_is_summed_in_float64(kernels):
    """A million equal terms, which float32 would sum to something else."""
    n = 1 << 20
    one, edges = (
        torch.full((1, 1), 0.1),
        Edges(torch.arange(n + 1), torch.zeros(n, dtype=torch.int64), Values(torch.ones(n, 1))),
    )
    assert float(ops.second_moment(one, edges)) == pytest.approx(float(one.double()) ** 2, rel=1e-14)


def test_what_is_not_finite_stays_where_it_is_seen(kernels):
    """The padding of short rows must not spread it."""
    features, weight, values, on = (t.detach() if isinstance(t, torch.Tensor) else t for t in problem())
    edges = on(values)
    features[edges.indices[0]] = torch.nan
    rows = edges.indices.split(edges.row_offsets.diff().tolist())
    seen = torch.tensor([bool((row == edges.indices[0]).any()) for row in rows])
    assert 0 < seen.sum() < len(seen)
    out, _ = ops.convolve(features, weight, edges)
    assert torch.equal(out.isnan().any(1), seen)


def test_the_same_bits_every_time(kernels):
    *inputs, on = problem([9] * 300, support=50, dtype=torch.float32)

    def run():
        out, response = ops.convolve(*inputs[:2], on(inputs[2]))
        return out, response, *torch.autograd.grad((out.sum(), response.sum()), inputs)

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_nothing_large_is_stored(kernels):
    """2,000 queries: [E, K, C] has 5,120,000 elements, [M, K, C] 512,000, a chunk 131,072."""
    f, w, v, on = problem([10] * 2000, support=2000, k=16, c=16, o=8)
    f, w, edges = f.detach(), w.detach(), on(v.detach())
    out, response = ops.convolve(f, w, edges)
    for kernel, args in (  # the operator itself would hide what it does inside
        (kernels.convolve, (f, w, edges)),
        (kernels.convolve_backward, (out, response, f, w, edges, [True, True, True, False, False])),
        (kernels.second_moment, (f, edges, False)),
    ):
        with Largest() as largest:
            kernel(*args)
        assert 0 < largest.elements <= max(v.numel(), reference.ROWS * 16 * 16)


@needs_native
@pytest.mark.parametrize(
    "change",
    [
        {"indices": torch.tensor([0, 1, 6])},  # there are 6 support points
        {"indices": torch.tensor([0, -1, 2])},
        {"row_offsets": torch.tensor([0, 2, 4])},
        {"row_offsets": torch.tensor([0, 3, 2, 3])},
        {"functions": Known(Native("linear", torch.zeros(3, 2).double()), 4, torch.zeros(3).double())},
    ],
    ids=["too large", "negative", "too few edges", "not ascending", "neither kernel points nor a width"],
)
def test_native_kernels_check_their_arguments(change):
    """Whoever passes what does not fit gets an error, not another one's memory."""
    features, weight, values, _ = problem((3,))
    edges = Edges(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), Values(values))
    with pytest.raises(ValueError, match=r"must|need|offsets|number"):
        ops.convolve(features, weight, edges._replace(**change))
