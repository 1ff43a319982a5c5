"""The convolution, its projection and the second moment of that, of typed edges.

``reference_convolve.py`` says what each one computes. A ``torch.library`` operator takes tensors and numbers
only: the operators at the end take the edges laid out flat, and are private to this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pointvar.ops import backends, checks, reference_convolve
from pointvar.ops.edges import Edges, Known, Native, Values
from pointvar.ops.grid import widest


def convolve(features: Tensor, weight: Tensor, edges: Edges, bias: Tensor | None = None) -> Tensor:
    """The convolution ``[M, O]``.

    Under autocast the matrix product is in the lower precision, all sums are in that of the edges.

    Shapes: features: ``[N, C]``; weight: ``[K, C, O]``; bias: ``[O]``
    """
    kernels = backends.convolution(features)
    edges, weight = _suited(edges, kernels), _autocast(weight)
    bias = None if bias is None else bias.to(weight.dtype)
    transposed, orders = kernels.asks_for(features, weight, edges)
    edges = edges._replace(
        transposed=edges.transposed if transposed else None, orders=edges.orders if orders else None
    )
    if not backends.unseen(features, weight):
        return _convolve(features, weight, bias, *_flat(edges))[0]
    checks.check_edges(edges, features)
    checks.check_weight(weight, bias, features, edges)
    operands = edges.operands
    if backends.needs_gradient(features, weight, bias, *operands):
        return _Convolve.apply(features, weight, bias, *operands, edges)[0]
    return kernels.convolve(features, weight, bias, edges)[0]


def project(features: Tensor, edges: Edges) -> Tensor:
    """The projection itself, ``[M, K * C]``, basis-major: ``phi.view(M, K, C)``."""
    edges = edges.evaluated()
    return _project(features, edges.values, edges.row_offsets, edges.indices)


def second_moment(features: Tensor, edges: Edges) -> Tensor:
    r"""Mean over the queries of :math:`\|\phi[x]\|^2`: a float64 scalar; 0 where there are none."""
    edges = _suited(edges, backends.convolution(features))
    return _second_moment(features, *_flat(edges._replace(transposed=None, orders=None)))


def _suited(edges: Edges, kernels: Any) -> Edges:
    """As they are where these kernels can do all of it themselves, and else with what they cannot do done."""
    functions = edges.functions
    if not kernels.DIVIDES and (edges.unit_response or edges.mixing is not None):
        return edges.evaluated()
    known = isinstance(functions, Values) or functions.basis.name in kernels.BASES
    return edges if known else edges.valued()


def _autocast(weight: Tensor) -> Tensor:
    """The weight as a matrix product would see it here."""
    device = weight.device.type
    if torch.is_autocast_enabled(device) and weight.dtype == torch.float32:
        return weight.to(torch.get_autocast_dtype(device))
    return weight


# The flat operators

_EDGES = (
    "Tensor row_offsets, Tensor indices, Tensor operand, Tensor? scale, Tensor? parameters, "
    "Tensor? column_offsets, Tensor? column_rows, Tensor? column_edges, Tensor? row_order, "
    "Tensor? column_order, Tensor? mixing, str? basis, int size, float[] constants, bool unit_response"
)
_PAIR = "Tensor features, Tensor values, Tensor row_offsets, Tensor indices"


def _flat(edges: Edges) -> tuple[Any, ...]:
    """The arguments ``_EDGES``."""
    columns = (None,) * 3 if edges.transposed is None else edges.transposed()
    visits = (None,) * 2 if edges.orders is None else edges.orders()
    known = edges.functions.basis if isinstance(edges.functions, Known) else None
    numbers = (known and known.name, edges.functions.size, known.constants if known else ())
    tensors = edges.row_offsets, edges.indices, *edges.operands, *columns, *visits, edges.mixing
    return *tensors, *numbers, edges.unit_response


def _typed(features: Tensor, *flat: Any) -> Edges:
    """The edges again, checked: a tensor may come from anywhere."""
    row_offsets, indices, operand, scale, parameters, *columns, row_order, column_order, mixing = flat[:11]
    basis, size, constants, unit_response = flat[11:]
    known = Known(Native(basis, operand, parameters, tuple(constants)), size, scale) if basis else None
    if known is None and (operand.dim() != 2 or operand.shape[1] != size or scale is not None):
        raise ValueError(f"values must be [E, {size}], scale included, got {list(operand.shape)}")
    transposed = None if columns[0] is None else lambda: tuple(columns)
    orders = None if row_order is None else lambda: (row_order, column_order)
    edges = Edges(row_offsets, indices, known or Values(operand), unit_response, mixing, transposed, orders)
    checks.check_edges(edges, features)
    checks.check_visits(columns, [row_order, column_order], features, edges)
    return edges


def _valued(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Edges:
    if values.dim() != 2:
        raise ValueError(f"values must be [E, K], got {list(values.shape)}")
    edges = Edges(row_offsets, indices, Values(values))
    checks.check_edges(edges, features)
    return edges


def _or_empty(grads: Iterable[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    """An operator gives tensors: empty ones for gradients that nobody wants."""
    return tuple(like.new_empty(0) if grad is None else grad for grad in grads)


def _like_wanted(grad: Tensor, inputs: Iterable[Tensor | None], wanted: list[bool]) -> tuple[Tensor, ...]:
    """Fake gradients."""
    pairs = zip(inputs, wanted, strict=True)
    return _or_empty((torch.empty_like(t) if t is not None and w else None for t, w in pairs), grad)


def _run_convolve(features: Tensor, weight: Tensor, bias: Tensor | None, *flat: Any) -> tuple[Tensor, Tensor]:
    edges = _typed(features, *flat)
    checks.check_weight(weight, bias, features, edges)
    return backends.convolution(features).convolve(features, weight, bias, edges)


def _fake_convolve(features: Tensor, weight: Tensor, bias: Any, *flat: Any) -> tuple[Tensor, Tensor]:
    rows, operand, unit_response = flat[0].shape[0] - 1, flat[2], flat[-1]
    divided = unit_response and backends.convolution(features).DIVIDES
    return weight.new_empty(rows, weight.shape[2]), operand.new_empty(rows if divided else 0)


_convolve = backends.define(
    f"convolve(Tensor features, Tensor weight, Tensor? bias, {_EDGES}) -> (Tensor, Tensor)",
    _run_convolve,
    _fake_convolve,
)


def _run_convolve_backward(grad_out: Tensor, norm: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    features, weight, *flat, wanted = inputs
    edges, operands = _typed(features, *flat), flat[2:5]
    checks.check_weight(weight, None, features, edges)
    kernels = backends.convolution(features)
    divided = edges.unit_response and kernels.DIVIDES
    checks.check_gradient("grad_out", grad_out, (edges.num_queries, weight.shape[2]), weight)
    checks.check_gradient("norm", norm, (edges.num_queries if divided else 0,), operands[0])
    checks.check_wanted(wanted, [features, weight, *operands])
    grads = kernels.convolve_backward(grad_out, norm, features, weight, edges, wanted)
    return _or_empty(grads, grad_out)


_convolve_backward = backends.define(
    "convolve_backward(Tensor grad_out, Tensor norm, Tensor features, Tensor weight, "
    f"{_EDGES}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_convolve_backward,
    lambda grad, norm, features, weight, *flat: _like_wanted(grad, (features, weight, *flat[2:5]), flat[-1]),
)


class _Convolve(torch.autograd.Function):
    """How torch differentiates the convolution: by features, weight, bias and the operands of the edges."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
        *operands, edges = rest
        if backends.unseen(features, weight):
            out, norm = backends.convolution(features).convolve(features, weight, bias, edges)
        else:
            with backends.below_autograd():
                out, norm = _convolve(features, weight, bias, *_flat(edges))
        ctx.save_for_backward(features, weight, norm, *operands)
        ctx.edges = edges.on(None, None, None)
        ctx.mark_non_differentiable(norm)
        ctx.set_materialize_grads(False)
        return out, norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        if grad is None:
            return (None,) * len(needs)
        features, weight, norm, *operands = ctx.saved_tensors
        edges, wanted = ctx.edges.on(*operands), [*needs[:2], *needs[3:6]]
        if backends.unseen(grad, features, weight):
            kernels = backends.convolution(features)
            grads: Any = kernels.convolve_backward(grad, norm, features, weight, edges, wanted)
        else:
            grads = _convolve_backward(grad, norm, features, weight, *_flat(edges), wanted)
        grads = [found if want else None for found, want in zip(grads, wanted, strict=True)]
        return *grads[:2], grad.sum(0) if needs[2] else None, *grads[2:], None


backends.differentiate(
    _convolve,
    lambda features, weight, bias, *flat: _Convolve.apply(
        features, weight, bias, *flat[2:5], _typed(features, *flat)
    ),
)


def _run_project(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    edges = _valued(features, values, row_offsets, indices)
    return backends.convolution(features).project(features, edges)


_project = backends.define(
    f"project({_PAIR}) -> Tensor",
    _run_project,
    lambda features, values, row_offsets, indices: values.new_empty(
        row_offsets.shape[0] - 1, values.shape[1] * features.shape[1]
    ),
)


def _run_project_backward(grad: Tensor, features: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *pair, wanted = inputs
    edges = _valued(features, *pair)
    shape = edges.num_queries, edges.functions.size * features.shape[1]
    checks.check_gradient("grad", grad, shape, edges.values)
    checks.check_wanted(wanted, [features, edges.values])
    return _or_empty(reference_convolve.project_backward(grad, features, edges, wanted), grad)


_project_backward = backends.define(
    f"project_backward(Tensor grad, {_PAIR}, bool[] wanted) -> (Tensor, Tensor)",
    _run_project_backward,
    lambda grad, features, values, *rest: _like_wanted(grad, (features, values), rest[-1]),
)


class _Project(torch.autograd.Function):
    """How torch differentiates the projection."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        with backends.below_autograd():
            return _project(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[:2])
        found = _project_backward(grad, *ctx.saved_tensors, wanted)
        return *(g if w else None for g, w in zip(found, wanted, strict=True)), None, None


backends.differentiate(_project, _Project.apply)

_second_moment = backends.define(
    f"second_moment(Tensor features, {_EDGES}) -> Tensor",
    lambda features, *flat: backends.convolution(features).second_moment(features, _typed(features, *flat)),
    lambda features, *flat: features.new_empty((), dtype=widest(features.device)),
)
