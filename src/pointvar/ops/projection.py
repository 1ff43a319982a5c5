"""The convolution, its projection and the second moment of that, of typed edges.

``reference_convolve.py`` says what each one computes. A ``torch.library`` operator takes tensors and numbers
only: the operators at the end take the edges laid out flat, and are private to this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from pointvar.ops import backends, checks, reference_convolve
from pointvar.ops.edges import Edges, Known, Native, Values


def convolve(features: Tensor, weight: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
    """The convolution ``[M, O]`` and its response ``[M, K]``, the projection of the feature 1.

    Under autocast the matrix product is in the lower precision, all sums are in that of the edges.

    Shapes: features: ``[N, C]``; weight: ``[K, C, O]``
    """
    kernels = backends.convolution(features)
    edges = _suited(edges, kernels)
    mixing = edges.mixing
    if mixing is not None:  # (phi M) W = phi (M W)
        weight = _mixed(mixing, weight)
    weight = _autocast(weight)
    out, response = _convolve(features, weight, *_flat(edges, *kernels.asks_for(features, weight, edges)))
    return out, response if mixing is None else _mixed(mixing, response.T).T


def project(features: Tensor, edges: Edges) -> Tensor:
    """The projection itself, ``[M, K * C]``, basis-major: ``phi.view(M, K, C)``."""
    edges = edges.evaluated()
    return _project(features, edges.values, edges.row_offsets, edges.indices)


def second_moment(features: Tensor, edges: Edges, unit_response: bool = False) -> Tensor:
    r"""Mean over the queries of :math:`\|\phi[x]\|^2`, divided by the squared norm of the response if wanted.

    A float64 scalar; 0 where there are no queries.
    """
    edges = _suited(edges, backends.convolution(features), mixing=False)
    return _second_moment(features, *_flat(edges), unit_response)


def _suited(edges: Edges, kernels: Any, mixing: bool = True) -> Edges:
    """With a known basis where these kernels know it, and else with its values."""
    functions = edges.functions
    if isinstance(functions, Values) or (
        functions.basis.name in kernels.BASES and (mixing or functions.basis.mixing is None)
    ):
        return edges
    return edges.evaluated()


def _mixed(mixing: Tensor, rows: Tensor) -> Tensor:
    """M R, of rows ``[K, ...]``."""
    with torch.autocast(rows.device.type, enabled=False):
        return (mixing.to(rows.dtype) @ rows.flatten(1)).view_as(rows)


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
    "Tensor? column_order, str? basis, int size, float[] constants"
)
_PAIR = "Tensor features, Tensor values, Tensor row_offsets, Tensor indices"


def _flat(edges: Edges, transposed: bool = False, orders: bool = False) -> tuple[Any, ...]:
    """The arguments ``_EDGES``."""
    columns = edges.transposed() if transposed and edges.transposed is not None else (None,) * 3
    visits = edges.orders() if orders and edges.orders is not None else (None,) * 2
    known = edges.functions.basis if isinstance(edges.functions, Known) else None
    numbers = (known and known.name, edges.functions.size, list(known.constants) if known else [])
    return edges.row_offsets, edges.indices, *edges.operands, *columns, *visits, *numbers


def _typed(features: Tensor, *flat: Any) -> Edges:
    """The edges again, checked: a tensor may come from anywhere."""
    row_offsets, indices, operand, scale, parameters, *columns, row_order, column_order = flat[:10]
    basis, size, constants = flat[10:]
    known = Known(Native(basis, operand, parameters, tuple(constants)), size, scale) if basis else None
    if known is None and (operand.dim() != 2 or operand.shape[1] != size or scale is not None):
        raise ValueError(f"values must be [E, {size}], scale included, got {list(operand.shape)}")
    transposed = None if columns[0] is None else lambda: tuple(columns)
    orders = None if row_order is None else lambda: (row_order, column_order)
    edges = Edges(row_offsets, indices, known or Values(operand), transposed, orders)
    checks.check_edges(edges, features)
    checks.check_visits(columns, [row_order, column_order], features, edges)
    return edges


def _valued(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Edges:
    if values.dim() != 2:
        raise ValueError(f"values must be [E, K], got {list(values.shape)}")
    edges = Edges(row_offsets, indices, Values(values))
    checks.check_edges(edges, features)
    return edges


def _differentiable(
    operator: Any, backward: Any, results: int, tensors: int, places: tuple[int, ...]
) -> None:
    """Lets ``backward`` differentiate an operator.

    It takes the gradients of the ``results``, all inputs, of which the first ``tensors`` are tensors, and
    for each of the inputs at ``places`` whether its gradient is wanted.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.numbers = inputs[tensors:]

    def gradient(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [ctx.needs_input_grad[i] for i in places]
        found = backward(*grads, *ctx.saved_tensors, *ctx.numbers, wanted)
        result = dict(zip(places, found, strict=True))
        return tuple(result[i] if needed else None for i, needed in enumerate(ctx.needs_input_grad))

    def fake(*arguments: Any) -> tuple[Tensor, ...]:
        pairs = zip(places, arguments[-1], strict=True)
        like = (torch.empty_like(arguments[results + i]) if wanted else None for i, wanted in pairs)
        return _or_empty(like, arguments[0])

    backward.register_fake(checks.on_one_device(fake))
    operator.register_autograd(gradient, setup_context=save)


def _or_empty(grads: Iterable[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    """An operator gives tensors: empty ones for gradients that nobody wants."""
    return tuple(like.new_empty(0) if grad is None else grad for grad in grads)


@custom_op(
    "pointvar::convolve",
    mutates_args=(),
    schema=f"(Tensor features, Tensor weight, {_EDGES}) -> (Tensor, Tensor)",
)
def _convolve(features: Tensor, weight: Tensor, *edges: Any) -> tuple[Tensor, Tensor]:
    typed = _typed(features, *edges)
    checks.check_weight(weight, features, typed)
    return backends.convolution(features).convolve(features, weight, typed)


@_convolve.register_fake
@checks.on_one_device
def _(features: Tensor, weight: Tensor, row_offsets: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    rows, operand = row_offsets.shape[0] - 1, rest[1]
    return weight.new_empty(rows, weight.shape[2]), operand.new_empty(rows, weight.shape[0])


@custom_op(
    "pointvar::convolve_backward",
    mutates_args=(),
    schema=f"(Tensor grad_out, Tensor grad_response, Tensor features, Tensor weight, {_EDGES}, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _convolve_backward(grad_out: Tensor, grad_response: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    features, weight, *flat, wanted = inputs
    edges, operands = _typed(features, *flat), flat[2:5]
    checks.check_weight(weight, features, edges)
    rows = edges.num_queries
    checks.check_gradient("grad_out", grad_out, (rows, weight.shape[2]), weight)
    checks.check_gradient("grad_response", grad_response, (rows, weight.shape[0]), operands[0])
    checks.check_wanted(wanted, [features, weight, *operands])
    kernels = backends.convolution(features)
    grads = kernels.convolve_backward(grad_out, grad_response, features, weight, edges, wanted)
    return _or_empty(grads, grad_out)


@custom_op("pointvar::project", mutates_args=(), schema=f"({_PAIR}) -> Tensor")
def _project(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    edges = _valued(features, values, row_offsets, indices)
    return backends.convolution(features).project(features, edges)


@_project.register_fake
@checks.on_one_device
def _(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    return values.new_empty(row_offsets.shape[0] - 1, values.shape[1] * features.shape[1])


@custom_op(
    "pointvar::project_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {_PAIR}, bool[] wanted) -> (Tensor, Tensor)",
)
def _project_backward(grad: Tensor, features: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *pair, wanted = inputs
    edges = _valued(features, *pair)
    shape = edges.num_queries, edges.functions.size * features.shape[1]
    checks.check_gradient("grad", grad, shape, edges.values)
    checks.check_wanted(wanted, [features, edges.values])
    return _or_empty(reference_convolve.project_backward(grad, features, edges, wanted), grad)


@custom_op(
    "pointvar::second_moment",
    mutates_args=(),
    schema=f"(Tensor features, {_EDGES}, bool unit_response) -> Tensor",
)
def _second_moment(features: Tensor, *rest: Any) -> Tensor:
    *edges, unit_response = rest
    return backends.convolution(features).second_moment(features, _typed(features, *edges), unit_response)


@_second_moment.register_fake
@checks.on_one_device
def _(features: Tensor, *rest: Any) -> Tensor:
    return features.new_empty((), dtype=torch.float64)


_differentiable(_convolve, _convolve_backward, 2, tensors=12, places=(0, 1, 4, 5, 6))
_differentiable(_project, _project_backward, 1, tensors=4, places=(0, 1))
