"""The convolution on the CPU: native projections, a chunk of rows at a time, and ``torch.mm``.

Backward has two ways. Forth: project again, then send the gradient of the projection back along the
edges; the only way where what is evaluated on them needs gradients. Back: otherwise, the gradients of
features and weight follow from one projection of the output's gradient onto the support points.
The one with fewer operations is taken.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pointvar.ops.edges import Edges, Native, Values
from pointvar.ops.native import _module, transpose

BASES = ("gaussian", "linear", "nearest", "spherical", "mlp", "dot")
ROWS = 512  # rows of a chunk, at least: with fewer, the matrix products are slower
NUMBERS = 1 << 18  # in the projection of a chunk, where rows are short
CACHE = 1 << 24  # bytes of features that a processor keeps at hand, in whatever order they are read

_local = threading.local()


def asks_for(features: Tensor, weight: Tensor, edges: Edges) -> tuple[bool, bool]:
    """The transposed edges for the way back, an order where features do not fit into the cache."""
    backward = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    along_edges = any(t is not None and t.requires_grad for t in edges.operands)
    return backward and not along_edges, features.nbytes > CACHE


def convolve(features: Tensor, weight: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
    size, channels, outputs = weight.shape
    plan = _Plan(features, edges, size)
    rows, order = edges.num_queries, plan.row_order
    out, response = _empty((rows, outputs), weight.dtype), _empty((rows, size), plan.dtype)
    matrix = weight.detach().flatten(0, 1)
    for first, count, phi in _chunks(rows, size * channels, plan.dtype):
        plan.kernels.project(plan.features, first, count, phi, response)
        _mm_rows(phi.to(weight.dtype), matrix, out, order, first)
    return out, response


def convolve_backward(
    grad_out: Tensor,
    grad_response: Tensor,
    features: Tensor,
    weight: Tensor,
    edges: Edges,
    wanted: list[bool],
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    plan = _Plan(features, edges, size)
    grad_out = grad_out.detach().to(weight.dtype).contiguous()
    support, rows, count = features.shape[0], edges.num_queries, edges.indices.shape[0]
    both = wanted[0] + wanted[1]
    back = count * size * outputs + both * support * size * channels * outputs
    forth = both * (count * size * channels + rows * size * channels * outputs)
    if not any(wanted[2:]) and back < forth:
        grads = _back(plan, weight, grad_out, wanted)
    else:
        grads = _forth(plan, weight, grad_out, grad_response, wanted)
    types = (features.dtype, weight.dtype, *(plan.dtype,) * 3)
    return [grad if grad is None else grad.to(t) for grad, t in zip(grads, types, strict=True)]


def _back(plan: _Plan, weight: Tensor, grad_out: Tensor, wanted: list[bool]) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    features, edges, order = plan.features, plan.edges, plan.column_order
    if edges.transposed is None:
        columns = transpose(edges.row_offsets, edges.indices, features.shape[0])
    else:
        columns = tuple(part.contiguous() for part in edges.transposed())
    turned = weight.detach().transpose(1, 2).reshape(size * outputs, channels).contiguous()
    wide = grad_out.to(plan.dtype)
    grad_features = _empty(features.shape, weight.dtype) if wanted[0] else None
    grad_weight = torch.zeros(channels, size * outputs, dtype=weight.dtype) if wanted[1] else None
    for first, count, psi in _chunks(features.shape[0], size * outputs, plan.dtype):
        plan.kernels.project_back(wide, first, count, psi, *columns, order)
        low = psi.to(weight.dtype)
        if grad_features is not None:
            _mm_rows(low, turned, grad_features, order, first)
        if grad_weight is not None:
            grad_weight.addmm_(_rows(features, order, first, count).to(weight.dtype).t(), low)
    if grad_weight is not None:
        grad_weight = grad_weight.view(channels, size, outputs).transpose(0, 1).contiguous()
    return [grad_features, grad_weight, None, None, None]


def _forth(
    plan: _Plan, weight: Tensor, grad_out: Tensor, grad_response: Tensor, wanted: list[bool]
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    features, operand, dtype = plan.features, plan.operand, plan.dtype
    matrix = weight.detach().flatten(0, 1)
    grad_features = _empty(features.shape, dtype).zero_() if wanted[0] else None
    grad_weight = torch.zeros(size * channels, outputs, dtype=weight.dtype) if wanted[1] else None
    grad_operand = _empty(operand.shape, dtype) if wanted[2] else None
    grad_scale = _empty(operand.shape[:1], dtype) if wanted[3] else None
    sums = torch.zeros(plan.kernels.parameter_sums, dtype=dtype) if wanted[4] else None
    response = grad_response.detach().contiguous()
    for first, count, phi in _chunks(grad_out.shape[0], size * channels, dtype):
        grad = _rows(grad_out, plan.row_order, first, count)
        if grad_weight is not None:
            plan.kernels.project(features, first, count, phi, None)
            grad_weight.addmm_(phi.to(weight.dtype).t(), grad)
        if wanted[0] or any(wanted[2:]):
            if weight.dtype == dtype:
                torch.mm(grad, matrix.t(), out=phi)
            else:
                phi.copy_(grad @ matrix.t())
            plan.kernels.unproject(
                *(features, first, count, phi, response, grad_features, grad_operand, grad_scale, sums)
            )
    if grad_weight is not None:
        grad_weight = grad_weight.view_as(weight)
    if sums is not None:
        sums = _parameters(sums, plan.kernels.padded, size, operand.shape[1])
    return [grad_features, grad_weight, grad_operand, grad_scale, sums]


def project(features: Tensor, edges: Edges) -> Tensor:
    size = edges.functions.size
    plan = _Plan(features, edges, size)
    phi = _empty((edges.num_queries, size * features.shape[1]), plan.dtype)
    plan.kernels.project(plan.features, 0, edges.num_queries, phi, None)
    return phi


def second_moment(features: Tensor, edges: Edges, unit_response: bool) -> Tensor:
    rows, size = edges.num_queries, edges.functions.size
    plan = _Plan(features, edges, size)
    response = _empty((rows, size), plan.dtype) if unit_response else None
    squares = torch.empty(rows, dtype=torch.float64)
    for first, count, phi in _chunks(rows, size * features.shape[1], plan.dtype):
        plan.kernels.project(plan.features, first, count, phi, response)
        plan.kernels.squared_norms(phi, squares[first : first + count])
    if response is not None:
        length = response.double().square().sum(1)
        squares = torch.where(length > 0, squares / length, 0)
    return squares.sum() / max(rows, 1)


# Parts


class _Plan:
    """Edges and features as the C++ kernels take them: packed, in the precision of what is on the edges."""

    def __init__(self, features: Tensor, edges: Edges, size: int) -> None:
        operand, scale, parameters = (None if t is None else t.detach().contiguous() for t in edges.operands)
        assert operand is not None
        self.edges, self.operand, self.dtype = edges, operand, operand.dtype
        self.features = features.detach().to(operand.dtype).contiguous()
        orders: Any = edges.orders() if edges.orders else (None, None)
        self.row_order, self.column_order = (None if o is None else o.contiguous() for o in orders)
        basis = Native("values", operand) if isinstance(edges.functions, Values) else edges.functions.basis
        make = _module.PlanFloat if self.dtype == torch.float32 else _module.PlanDouble
        self.kernels: Any = make(
            *(edges.row_offsets.contiguous(), edges.indices.contiguous(), self.row_order),
            *(features.shape[0], basis.name, size, operand, scale),
            *(operand.new_empty(0) if parameters is None else parameters, list(basis.constants)),
        )


def _chunks(rows: int, width: int, dtype: torch.dtype) -> Iterator[tuple[int, int, Tensor]]:
    """First row, number of rows and room for their projection, of ``width`` numbers each."""
    most = max(ROWS, NUMBERS // max(width, 1))
    room = _scratch("phi", (min(most, rows), width), dtype)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        yield first, count, room[:count]


def _rows(tensor: Tensor, order: Tensor | None, first: int, count: int) -> Tensor:
    """The rows that are visited from ``first`` on."""
    if order is None:
        return tensor[first : first + count]
    room = _scratch("rows", (count, tensor.shape[1]), tensor.dtype)
    return torch.index_select(tensor, 0, order[first : first + count], out=room)


def _mm_rows(a: Tensor, b: Tensor, out: Tensor, order: Tensor | None, first: int) -> None:
    """The product a b, as the rows of ``out`` that are visited from ``first`` on."""
    last = first + a.shape[0]
    if order is None:
        torch.mm(a, b, out=out[first:last])
    else:
        part = torch.mm(a, b, out=_scratch("out", (a.shape[0], b.shape[1]), a.dtype))
        out.index_copy_(0, order[first:last], part)


def _empty(shape: Any, dtype: torch.dtype) -> Tensor:
    """Like ``torch.empty``, in memory that was used before."""
    if dtype == torch.float32:
        return _module.empty_float(math.prod(shape)).view(*shape)
    if dtype == torch.float64:
        return _module.empty_double(math.prod(shape)).view(*shape)
    return torch.empty(*shape, dtype=dtype)


def _scratch(name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Room for a chunk, used again in the next call of this thread."""
    key, size = f"{name} {dtype}", shape[0] * shape[1]
    room = _local.__dict__.get(key)
    if room is None or room.numel() < size:
        room = _local.__dict__[key] = torch.empty(size, dtype=dtype)
    return room[:size].view(shape)


def _parameters(sums: Tensor, padded: int, size: int, dim: int) -> Tensor:
    """From sums per axis, padded, to the map ``[K, D]`` and its bias ``[K]``, flat."""
    table = sums.view(dim + 1, padded)[:, :size]
    return torch.cat([table[:dim].t().flatten(), table[dim]])
