"""The operators on edges: one chunk or many, the same sums; nothing large is stored; torch's own checks."""

import pytest
import torch
from torch.nn import functional
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

    def edges(values, unit_response=False, *rest):
        return Edges(row_offsets, indices, Values(values), unit_response, None, *rest)

    return randn(support, c), randn(k, c, o), randn(sum(counts), k), edges


def dense(features, edges):
    """phi [M, K, C] as one large sum."""
    rows = torch.repeat_interleave(edges.row_offsets.diff())
    each = edges.functions.values[:, :, None] * features[edges.indices][:, None, :]
    return each.new_zeros(edges.num_queries, *each.shape[1:]).index_add(0, rows, each)


def unit(phi, features, edges):
    """Each row divided by its response to the feature 1."""
    norm = dense(phi.new_ones(len(features), 1), edges).flatten(1).norm(dim=1)
    return phi / torch.where(norm > 0, norm, torch.inf)[:, None, None]


def dense_convolve(features, weight, edges, bias=None):
    phi = dense(features, edges)
    if edges.unit_response:
        phi = unit(phi, features, edges)
    if edges.mixing is not None:
        phi = torch.einsum("mic,ij->mjc", phi, edges.mixing)
    out = phi.flatten(1) @ weight.flatten(0, 1)
    return out if bias is None else out + bias


@pytest.fixture(
    params=[(512, 1 << 26, 1 << 20), (512, 1 << 26, -1), (2, 1 << 11, -1), (1, 1, -1)],
    ids=["whole", "one", "rows", "single"],
)
def chunks(request, monkeypatch):
    """One native call, or chunks large and small; of plain torch, batches that are bounded by memory."""
    rows, size, weight = request.param
    monkeypatch.setattr(reference, "BYTES", size)
    monkeypatch.setattr(native_convolve, "ROWS", rows)
    monkeypatch.setattr(native_convolve, "NUMBERS", 1)
    monkeypatch.setattr(native_convolve, "WEIGHT", weight)


@pytest.mark.parametrize("unit_response", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 8, 27])
@pytest.mark.parametrize("counts", [(3, 0, 5, 1, 2), (0, 0), (), (7,), (1, 1, 1, 40, 1)])
def test_sums(counts, channels, unit_response, kernels, chunks):
    features, weight, values, on = problem(counts, c=channels, k=5)
    edges, bias = on(values, unit_response), torch.tensor([0.5, -2.0], dtype=torch.float64)
    phi = dense(features, edges)
    if unit_response:
        phi = unit(phi, features, edges)
    for added in (None, bias):
        expected = dense_convolve(features, weight, edges, added)
        torch.testing.assert_close(ops.convolve(features, weight, edges, added), expected)
    torch.testing.assert_close(ops.project(features, edges), phi.flatten(1))
    moment = ops.second_moment(features.detach(), on(values.detach(), unit_response))
    torch.testing.assert_close(moment, phi.detach().square().sum() / max(len(counts), 1))


MIXING = torch.tensor(
    [[2.0, 0.5, 0.0, -1.0], [0.5, 1.0, 0.3, 0.0], [0.0, 0.3, -0.7, 0.2], [-1.0, 0.0, 0.2, 1.5]],
    dtype=torch.float64,
)


@pytest.mark.parametrize("mixing", [None, MIXING], ids=["plain", "mixed"])
@pytest.mark.parametrize("unit_response", [False, True])
def test_gradients(unit_response, mixing, kernels, chunks):
    *inputs, on = problem()
    bias = torch.rand(2, dtype=torch.float64).requires_grad_()

    def edges(values):
        return on(values, unit_response)._replace(mixing=mixing)

    by_operator = ops.convolve(*inputs[:2], edges(inputs[2]), bias)
    torch.testing.assert_close(by_operator, dense_convolve(*inputs[:2], edges(inputs[2]), bias))
    assert torch.autograd.gradcheck(lambda f, w, v, b: ops.convolve(f, w, edges(v), b), (*inputs, bias))
    assert torch.autograd.gradcheck(lambda f, v: ops.project(f, edges(v)), inputs[::2])


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)])
@pytest.mark.parametrize(("c", "o"), [(1, 9), (9, 2), (8, 8)])  # either way back has fewer operations
@pytest.mark.parametrize("help", ["none", "columns", "orders"])
@pytest.mark.parametrize("unit_response", [False, True])
@pytest.mark.parametrize("mixing", [None, MIXING], ids=["plain", "mixed"])
def test_only_wanted_gradients(wanted, c, o, help, unit_response, mixing, kernels, chunks, monkeypatch):
    """Against torch's own derivative of the large sum, whatever the backend is told of the edges."""
    monkeypatch.setattr(native_convolve, "CACHE", -1)  # so that it asks for the orders
    monkeypatch.setattr(native_convolve, "COPY", 0)  # so that operations alone decide on the way back
    *inputs, on = problem(c=c, o=o)
    for t, w in zip(inputs, wanted, strict=True):
        t.requires_grad_(bool(w))
    features, weight, values = inputs
    edges = on(values, unit_response)._replace(mixing=mixing)
    asked = []

    def transposed():
        asked.append("columns")
        return ops.transpose(edges.row_offsets, edges.indices, 6)

    def orders():
        asked.append("orders")
        return torch.tensor([3, 1, 4, 0, 2]), torch.tensor([5, 0, 2, 4, 1, 3])

    told = {"none": (), "columns": (transposed,), "orders": (transposed, orders)}[help]
    by_operator = ops.convolve(features, weight, on(values, unit_response, *told)._replace(mixing=mixing))
    by_hand = dense_convolve(features, weight, edges)
    torch.testing.assert_close(by_operator, by_hand)
    leaves = [t for t in inputs if t.requires_grad]
    gradients = (torch.autograd.grad(out.sin().sum(), leaves) for out in (by_operator, by_hand))
    torch.testing.assert_close(*gradients)
    if kernels is native_convolve and help == "orders":  # the columns only where the way back is taken
        assert {"orders"} <= set(asked) <= ({"orders"} if wanted[2] else {"columns", "orders"})
    assert kernels is native_convolve or asked == (["columns"] if help != "none" and wanted[0] else [])


def test_gradients_are_asked_for_in_training_only():
    features, weight, values, on = problem()

    def unexpected():
        raise AssertionError("nobody needs the transposed edges here")

    with torch.no_grad():
        ops.convolve(features, weight, on(values.detach(), False, unexpected))
    ops.convolve(features.detach(), weight.detach(), on(values.detach(), False, unexpected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(dtype):
    """Of the flat operators, which are private to ``ops``."""
    features, weight, values, on = problem(dtype=dtype)
    divides = backends.of("cpu").convolution.DIVIDES
    flat, pair = projection._flat(on(values, divides)), (on(values).row_offsets, on(values).indices)
    bias = torch.rand(2, dtype=dtype, requires_grad=True)
    out = torch.randn_like(ops.convolve(features, weight, on(values)))
    phi = torch.randn_like(ops.project(features, on(values)))
    f, w, v = (t.detach() for t in (features, weight, values))
    torch.library.opcheck(projection._convolve, (features, weight, bias, *flat))
    torch.library.opcheck(projection._project, (features, values, *pair))
    torch.library.opcheck(projection._second_moment, (f, *projection._flat(on(v, divides))))
    for wanted in ([True, True, True, False, False], [False, False, True, False, False]):
        for edges in (on(v), on(v, divides)):
            norm = projection._convolve(f, w, None, *projection._flat(edges))[1]
            arguments = (out, norm, f, w, *projection._flat(edges), wanted)
            torch.library.opcheck(projection._convolve_backward, arguments)
        torch.library.opcheck(projection._project_backward, (phi, f, v, *pair, wanted[1:3]))


def known(name, otherwise=None):
    """Offsets in the plane, four hats."""
    offsets, points = torch.rand(11, 2).double().requires_grad_(), torch.rand(4, 2).double()
    basis = Native(name, offsets, points.flatten(), () if name == "nearest" else (0.9,))
    return Known(basis, 4, torch.rand(11).double().requires_grad_(), otherwise)


@needs_native
def test_opcheck_of_a_known_basis():
    features, weight, _, on = problem()
    flat = projection._flat(on(torch.zeros(0))._replace(functions=known("linear")))
    torch.library.opcheck(projection._convolve, (features, weight, None, *flat))


@pytest.mark.parametrize("unit_response", [False, True])
@pytest.mark.parametrize("mixing", [None, MIXING], ids=["plain", "mixed"])
@pytest.mark.parametrize("name", ["linear", "nearest", "a basis of tomorrow"])
def test_a_basis_is_evaluated_by_kernels_that_know_it_or_by_its_owner(name, mixing, unit_response, kernels):
    """The same sums either way, and no evaluation beside the kernels that can do it."""
    features, weight, _, on = problem()
    evaluations = []

    def hats():
        evaluations.append(1)
        (_, offsets, points, *_), _, scale, _ = functions
        distance = torch.cdist(offsets, points.view(4, 2))
        if name == "nearest":
            return functional.one_hot(distance.argmin(1), 4) * scale[:, None] + 0 * distance
        return (1 - distance / 0.9).relu() * scale[:, None]

    functions = known(name, hats)
    edges = on(torch.zeros(0), unit_response)._replace(functions=functions, mixing=mixing)
    given = on(hats(), unit_response)._replace(mixing=mixing)
    by_hand = dense_convolve(features, weight, given)
    leaves = (features, weight, functions.basis.offsets, functions.scale)
    native_runs = kernels is native_convolve and name in native_convolve.BASES
    evaluations.clear()
    by_operator = ops.convolve(features, weight, edges)
    assert len(evaluations) == (0 if native_runs else 1)
    torch.testing.assert_close(by_operator, by_hand)
    gradients = (torch.autograd.grad(out.sin().sum(), leaves) for out in (by_operator, by_hand))
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        evaluations.clear()
        moment = ops.second_moment(features, edges)
        assert len(evaluations) == (0 if native_runs else 1)
        torch.testing.assert_close(moment, ops.project(features, given).square().sum(1).mean())


def test_a_basis_that_nobody_knows_is_named(kernels):
    features, weight, _, on = problem()
    edges = on(torch.zeros(0))._replace(functions=known("a basis of tomorrow"))
    for run in (lambda: ops.convolve(features, weight, edges), lambda: ops.project(features, edges)):
        with pytest.raises(ValueError, match="no kernel here knows the basis 'a basis of tomorrow'"):
            run()
    with pytest.raises(ValueError, match="take a basis as its values, got 'a basis of tomorrow'"):
        reference.convolve(features, weight, None, edges)


def test_plain_torch_takes_values_that_are_divided_already():
    features, weight, values, on = problem()
    with pytest.raises(ValueError, match="divided by their response, and mixed, already"):
        reference.convolve(features, weight, None, on(values, True))


def test_precision_follows_edges_and_weight(kernels):
    """Features in bfloat16, autocast: the sums are those of float32, the product is that of bfloat16."""
    features, weight, values, on = problem(dtype=torch.float32)
    low = features.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.convolve(low, weight, on(values), torch.zeros(2))
        phi = ops.project(low, on(values))
    torch.testing.assert_close(phi, dense(low.float(), on(values)).flatten(1))
    torch.testing.assert_close(out, phi.bfloat16() @ weight.bfloat16().flatten(0, 1))
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
    out = ops.convolve(features, weight, edges)
    assert torch.equal(out.isnan().any(1), seen)


def test_the_same_bits_every_time(kernels):
    *inputs, on = problem([9] * 300, support=50, dtype=torch.float32)

    def run():
        out = ops.convolve(*inputs[:2], on(inputs[2], True))
        return out, *torch.autograd.grad(out.sum(), inputs)

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def every_gradient(inputs, on, *rest):
    out = ops.convolve(*inputs[:2], on(inputs[2], True, *rest), inputs[1][0, 0])
    return out, *torch.autograd.grad(out.sin().sum(), inputs)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("c", "o"), [(1, 32), (5, 1), (27, 19), (32, 64), (64, 48)])
def test_small_weights_are_multiplied_by_native_kernels(c, o, ordered, dtype, monkeypatch):
    """Several blocks of rows and tiles of columns, whole or not; other weights go to torch."""
    monkeypatch.setattr(native_convolve, "CACHE", -1 if ordered else 1 << 24)
    rows = 700
    *inputs, on = problem([9, 0, 4] * rows, support=50, k=13, c=c, o=o, dtype=dtype)
    order = torch.randperm(3 * rows)
    help = (lambda: ops.transpose(on(0).row_offsets, on(0).indices, 50), lambda: (order, torch.arange(50)))
    called, chunks = [], native_convolve._chunks
    monkeypatch.setattr(native_convolve, "_chunks", lambda *a: called.append(a) or chunks(*a))
    by_kernels = every_gradient(inputs, on, *help)
    assert len(called) == 0
    monkeypatch.setattr(native_convolve, "WEIGHT", -1)
    by_torch = every_gradient(inputs, on, *help)
    assert len(called) == 2
    tolerance = {torch.float32: 3e-5, torch.float64: 1e-13}[dtype]
    for a, b in zip(by_kernels, by_torch, strict=True):
        assert bool((a - b).abs().max() <= tolerance * b.abs().max())


@needs_native
@pytest.mark.parametrize(("c", "o"), [(1, 32), (27, 19), (64, 64)])
def test_the_same_bits_on_any_number_of_threads(c, o):
    *inputs, on = problem([9] * 2000, support=500, k=16, c=c, o=o, dtype=torch.float32)
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(every_gradient(inputs, on))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_nothing_large_is_stored(kernels, monkeypatch):
    """2,000 queries: [E, K, C] has 5,120,000 elements, [M, K, C] 512,000, a chunk 131,072."""
    monkeypatch.setattr(reference, "BYTES", 512 * 16 * 16 * 8)
    f, w, v, on = problem([10] * 2000, support=2000, k=16, c=16, o=8)
    f, w, edges = f.detach(), w.detach(), on(v.detach())
    out, norm = kernels.convolve(f, w, None, edges)
    for kernel, args in (  # the operator itself would hide what it does inside
        (kernels.convolve, (f, w, None, edges)),
        (kernels.convolve_backward, (out, norm, f, w, edges, [True, True, True, False, False])),
        (kernels.second_moment, (f, edges)),
    ):
        with Largest() as largest:
            kernel(*args)
        assert 0 < largest.elements <= max(v.numel() + 16, 512 * 16 * 16)


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
