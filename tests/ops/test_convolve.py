"""The operators: one chunk or many, the same sums; nothing large is stored; torch's own checks."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pointvar.ops import convolve as ops
from pointvar.ops import native
from pointvar.ops import reference_convolve as reference

if native.available:
    from pointvar.ops import native_convolve

needs_native = pytest.mark.skipif(not native.available, reason="the native module is not in use")
BACKENDS = ["reference", pytest.param("native", marks=needs_native)]
REST = (None,) * 7 + ("values", None)  # of a backward call whose basis is given as values


def kernels(name):
    return reference if name == "reference" else native_convolve


def problem(counts=(3, 0, 5, 1, 2), support=6, k=4, c=3, o=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    row_offsets = torch.tensor([0, *counts]).cumsum(0)
    indices = torch.randint(support, (sum(counts),), generator=generator)
    return randn(support, c), randn(sum(counts), k), randn(k, c, o), row_offsets, indices


def dense(features, values, row_offsets, indices):
    """phi [M, K, C] as one large sum."""
    rows = torch.repeat_interleave(row_offsets.diff())
    each = values[:, :, None] * features[indices][:, None, :]
    return each.new_zeros(len(row_offsets) - 1, *each.shape[1:]).index_add(0, rows, each)


@pytest.fixture(params=[(512, 1 << 15), (2, 1 << 15), (3, 6), (1, 1)], ids=["one", "rows", "slots", "single"])
def chunks(request, monkeypatch):
    """Chunks large and small; the last two halve them for the sake of long rows."""
    monkeypatch.setattr(reference, "ROWS", request.param[0])
    monkeypatch.setattr(reference, "SLOTS", request.param[1])
    if native.available:
        monkeypatch.setattr(native_convolve, "ROWS", request.param[0])
        monkeypatch.setattr(native_convolve, "NUMBERS", 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 3, 8, 27])
@pytest.mark.parametrize("counts", [(3, 0, 5, 1, 2), (0, 0), (), (7,), (1, 1, 1, 40, 1)])
def test_sums(counts, channels, backend, chunks):
    features, values, weight, row_offsets, indices = (t.detach() for t in problem(counts, c=channels, k=5))
    run = kernels(backend)
    phi = dense(features, values, row_offsets, indices)
    out, response = run.convolve(features, values, weight, row_offsets, indices)
    torch.testing.assert_close(out, phi.flatten(1) @ weight.flatten(0, 1))
    ones = dense(torch.ones_like(features[:, :1]), values, row_offsets, indices)[..., 0]
    torch.testing.assert_close(response, ones)
    torch.testing.assert_close(run.project(features, values, row_offsets, indices), phi.flatten(1))
    for unit in (False, True):
        moment = run.second_moment(features, values, row_offsets, indices, 5, unit)
        squares = phi.square().sum((1, 2))
        if unit:
            squares = (squares / ones.square().sum(1)).nan_to_num(0)
        torch.testing.assert_close(moment, squares.sum() / max(len(counts), 1))


def test_gradients(chunks):
    features, values, weight, row_offsets, indices = problem()
    assert torch.autograd.gradcheck(
        lambda f, v, w: ops.convolve(f, v, w, row_offsets, indices), (features, values, weight)
    )
    assert torch.autograd.gradcheck(lambda f, v: ops.project(f, v, row_offsets, indices), (features, values))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1)])
@pytest.mark.parametrize(("c", "o"), [(1, 9), (9, 2), (8, 8)])  # either way back has fewer operations
def test_gradients_of_both_backends(wanted, c, o, backend, chunks):
    """Against torch's own derivative of the large sum."""
    features, values, weight, row_offsets, indices = problem(c=c, o=o)
    grad_out = torch.sin(torch.arange(5.0 * o, dtype=torch.float64)).view(5, o)
    grad_response = torch.cos(torch.arange(20.0, dtype=torch.float64)).view(5, 4)
    phi = dense(features, values, row_offsets, indices)
    response = dense(torch.ones_like(features[:, :1]), values, row_offsets, indices)[..., 0]
    loss = (phi.flatten(1) @ weight.flatten(0, 1) * grad_out).sum() + (response * grad_response).sum()
    expected = torch.autograd.grad(loss, (features, values, weight))
    inputs = [t.detach() for t in (features, values, weight)]
    flags = [bool(w) for w in wanted] + [False, False]
    grads = kernels(backend).convolve_backward(
        grad_out, grad_response, *inputs, row_offsets, indices, *REST, flags
    )
    for grad, want, right in zip(grads, flags, (*expected, None, None), strict=True):
        if want:
            torch.testing.assert_close(grad, right)
        else:
            assert grad.numel() == 0


@pytest.mark.parametrize("frozen", [False, True])  # either way back
@pytest.mark.parametrize(("c", "o"), [(1, 9), (9, 2), (8, 8)])
def test_the_order_of_visits_changes_nothing(c, o, frozen, chunks):
    features, values, weight, row_offsets, indices = problem(c=c, o=o)
    values.requires_grad_(not frozen)
    wanted = [t for t in (features, values, weight) if t.requires_grad]
    orders = torch.randperm(len(row_offsets) - 1), torch.randperm(len(features))
    results = []
    for rest in ((), (*(None,) * 5, *orders)):
        out, response = ops.convolve(features, values, weight, row_offsets, indices, *rest)
        loss = out.sin().sum() + (0 if frozen else response.cos().sum())
        results.append((out, response, *torch.autograd.grad(loss, wanted)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1)])
def test_only_what_is_wanted(wanted):
    *inputs, row_offsets, indices = problem()
    everything = torch.autograd.grad(
        sum(t.square().sum() for t in ops.convolve(*inputs, row_offsets, indices)), inputs
    )
    some = [t.detach().requires_grad_(bool(w)) for t, w in zip(inputs, wanted, strict=True)]
    sum(t.square().sum() for t in ops.convolve(*some, row_offsets, indices)).backward()
    for t, w, expected in zip(some, wanted, everything, strict=True):
        if w:
            torch.testing.assert_close(t.grad, expected)
        else:
            assert t.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(dtype):
    features, values, weight, row_offsets, indices = problem(dtype=dtype)
    out, response = (
        torch.randn_like(t) for t in ops.convolve(features, values, weight, row_offsets, indices)
    )
    phi = torch.randn_like(ops.project(features, values, row_offsets, indices))
    f, v, w = (t.detach() for t in (features, values, weight))
    torch.library.opcheck(ops.convolve, (features, values, weight, row_offsets, indices))
    torch.library.opcheck(ops.project, (features, values, row_offsets, indices))
    torch.library.opcheck(ops.second_moment, (f, v, row_offsets, indices, 4, True))
    for wanted in ([True, True, True, False, False], [False, True, False, False, False]):
        arguments = (out, response, f, v, w, row_offsets, indices, *REST, wanted)
        torch.library.opcheck(ops.convolve_backward, arguments)
        torch.library.opcheck(ops.project_backward, (phi, f, v, row_offsets, indices, wanted[:2]))


def test_precision_follows_values_and_weight():
    """Features and weight in bfloat16: the sums are those of float32, the product that of bfloat16."""
    features, values, weight, row_offsets, indices = problem(dtype=torch.float32)
    low, small = features.detach().bfloat16().requires_grad_(), weight.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out, response = ops.convolve(low, values, small, row_offsets, indices)
        phi = ops.project(low, values, row_offsets, indices)
    exact = dense(low.float(), values, row_offsets, indices)
    torch.testing.assert_close(phi, exact.flatten(1))
    torch.testing.assert_close(out, phi.bfloat16() @ small.flatten(0, 1))
    assert response.dtype == torch.float32
    out.sum().backward()
    assert [t.grad.dtype for t in (low, values, small)] == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_the_second_moment_is_summed_in_float64():
    """A million equal terms, which float32 would sum to something else."""
    n = 1 << 20
    one, row_offsets, indices = (
        torch.full((1, 1), 0.1),
        torch.arange(n + 1),
        torch.zeros(n, dtype=torch.int64),
    )
    moment = ops.second_moment(one, torch.ones(n, 1), row_offsets, indices, 1, False)
    assert float(moment) == pytest.approx(float(one.double()) ** 2, rel=1e-14)


def test_what_is_not_finite_stays_where_it_is_seen():
    """The padding of short rows must not spread it."""
    features, values, weight, row_offsets, indices = (t.detach() for t in problem())
    features[indices[0]] = torch.nan
    seen = torch.tensor(
        [bool((row == indices[0]).any()) for row in indices.split(row_offsets.diff().tolist())]
    )
    assert 0 < seen.sum() < len(seen)
    out, _ = ops.convolve(features, values, weight, row_offsets, indices)
    assert torch.equal(out.isnan().any(1), seen)


def test_the_same_bits_every_time():
    *inputs, row_offsets, indices = problem([9] * 300, support=50, dtype=torch.float32)

    def run():
        out, response = ops.convolve(*inputs, row_offsets, indices)
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_large_is_stored(backend):
    """2,000 queries: [E, K, C] has 5,120,000 elements, [M, K, C] 512,000, a chunk 131,072."""
    f, v, w, row_offsets, indices = (t.detach() for t in problem([10] * 2000, support=2000, k=16, c=16, o=8))
    out, response = ops.convolve(f, v, w, row_offsets, indices)
    every = [True, True, True, False, False]
    run = kernels(backend)  # the operator itself would hide what it does inside
    for kernel, args in (
        (run.convolve, (f, v, w, row_offsets, indices)),
        (run.convolve_backward, (out, response, f, v, w, row_offsets, indices, *REST, every)),
        (run.second_moment, (f, v, row_offsets, indices, 16, False)),
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
        {"basis": "linear"},  # neither kernel points nor a width
        {"basis": "nonsense"},
    ],
)
def test_native_kernels_check_their_arguments(change):
    """Whoever calls the raw operator with what does not fit gets an error, not another one's memory."""
    features, values, weight, _, _ = (t.detach() for t in problem((3,)))
    arguments = {"row_offsets": torch.tensor([0, 1, 3]), "indices": torch.tensor([0, 1, 2]), **change}
    with pytest.raises(ValueError, match=r"must|need|unknown|offsets|number"):
        ops.convolve(features, values, weight, **arguments)
