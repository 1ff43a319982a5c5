"""The convolution on the CPU: native projections, a chunk of rows at a time, and ``torch.mm``.

Where the weight is small, one native call projects and multiplies: ``torch.mm`` would take longer to start.

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
from pointvar.ops.native import _module, capsule, transpose

BASES = ("gaussian", "linear", "nearest", "spherical", "mlp", "dot")
DIVIDES = True
ROWS = 512  # rows of a chunk, at least: with fewer, the matrix products are slower
NUMBERS = 1 << 18  # in the projection of a chunk, where rows are short
CACHE = 1 << 24  # bytes of features that a processor keeps at hand, in whatever order they are read
WEIGHT = 1 << 20  # bytes of a weight that a core keeps at hand; eight times as many where it is only read
COPY = 30  # operations of a matrix product in the time that it takes to copy a number
POOLED = 1 << 14  # numbers from which on memory that was used before is faster than torch's

_local = threading.local()


def asks_for(features: Tensor, weight: Tensor, edges: Edges) -> tuple[bool, bool]:
    """The transposed edges for the way back, an order where features do not fit into the cache.

    A compiled graph, which serves clouds of any size, has no order.
    """
    backward = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    along_edges = any(t is not None and t.requires_grad for t in edges.operands)
    large = not torch.compiler.is_compiling() and features.nbytes > CACHE
    return backward and not along_edges, large


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
    size, channels, outputs = weight.shape
    plan = _Plan(features, edges, size)
    rows = edges.num_queries
    out = _empty((rows, outputs), weight.dtype)
    norm = _empty((rows if edges.unit_response else 0,), plan.dtype)
    matrix = weight.detach().flatten(0, 1)
    if _fits(plan, weight, 8 * WEIGHT):
        plan.convolve(matrix, bias, out, norm)
        return out, norm
    for first, count, phi in _chunks(rows, size * channels, plan.dtype):
        plan.project(first, count, phi, norm)
        _mm_rows(phi.to(weight.dtype), matrix, out, plan.row_order, first, bias)
    return out, norm


def convolve_backward(
    grad_out: Tensor, norm: Tensor, features: Tensor, weight: Tensor, edges: Edges, wanted: list[bool]
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    plan = _Plan(features, edges, size)
    support, rows, count = features.shape[0], edges.num_queries, edges.indices.shape[0]
    both, numbers = wanted[0] + wanted[1], size * channels * outputs
    # On the way back the weights, or their gradient, are turned over.
    back = count * size * outputs + both * numbers * (support + COPY)
    forth = both * (count * size * channels + rows * numbers)
    way = _back if not any(wanted[2:]) and back < forth else _forth
    grads = way(plan, weight, grad_out.detach().contiguous(), norm, wanted)
    types = (features.dtype, weight.dtype, *(plan.dtype,) * 3)
    return [grad if grad is None else grad.to(t) for grad, t in zip(grads, types, strict=True)]


def _back(
    plan: _Plan, weight: Tensor, grad_out: Tensor, norm: Tensor, wanted: list[bool]
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    features, edges, order = plan.features, plan.edges, plan.column_order
    if edges.transposed is None:
        columns = transpose(edges.row_offsets, edges.indices, features.shape[0])
    else:
        columns = tuple(part.contiguous() for part in edges.transposed())
    turned = weight.detach().transpose(1, 2).reshape(size * outputs, channels).contiguous()
    wide = grad_out.to(plan.dtype)
    if edges.unit_response:
        wide = wide / norm[:, None]
    grad_features = _empty(features.shape, weight.dtype) if wanted[0] else None
    grad_weight = _empty((channels, size * outputs), weight.dtype).zero_() if wanted[1] else None
    for first, count, psi in _chunks(features.shape[0], size * outputs, plan.dtype):
        plan.project_back(wide, first, count, psi, columns)
        low = psi.to(weight.dtype)
        if grad_features is not None:
            _mm_rows(low, turned, grad_features, order, first)
        if grad_weight is not None:
            grad_weight.addmm_(_rows(features, order, first, count).to(weight.dtype).t(), low)
    if grad_weight is not None:
        turned_back = _empty(weight.shape, weight.dtype)
        grad_weight = turned_back.copy_(grad_weight.view(channels, size, outputs).transpose(0, 1))
    return [grad_features, grad_weight, None, None, None]


def _forth(
    plan: _Plan, weight: Tensor, grad_out: Tensor, norm: Tensor, wanted: list[bool]
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    dtype, rows, width = plan.dtype, grad_out.shape[0], size * channels
    matrix = weight.detach().flatten(0, 1)
    grad_features = _empty(plan.features.shape, dtype).zero_() if wanted[0] else None
    grad_weight = _empty(weight.shape, weight.dtype) if wanted[1] else None
    if grad_weight is not None and not rows:
        grad_weight.zero_()
    grad_operand = _empty(plan.operand.shape, dtype) if wanted[2] else None
    grad_scale = _empty(plan.operand.shape[:1], dtype) if wanted[3] else None
    sums = torch.zeros(plan.kernels.parameters, dtype=dtype) if wanted[4] else None
    grads = [grad_features, grad_weight, grad_operand, grad_scale, sums]
    if _fits(plan, weight, WEIGHT):
        plan.convolve_backward(matrix, grad_out, norm, *grads)
        return grads
    for first, count, phi in _chunks(rows, width, dtype):
        grad = _rows(grad_out, plan.row_order, first, count)
        if grad_weight is not None:
            plan.project(first, count, phi, norm)
            to, low = grad_weight.view(width, outputs), phi.to(weight.dtype).t()
            if first:
                to.addmm_(low, grad)
            else:
                torch.mm(low, grad, out=to)
        if wanted[0] or any(wanted[2:]):
            if weight.dtype == dtype:
                torch.mm(grad, matrix.t(), out=phi)
            else:
                phi.copy_(grad @ matrix.t())
            plan.unproject(first, count, phi, norm, grad_features, grad_operand, grad_scale, sums)
    return grads


def project(features: Tensor, edges: Edges) -> Tensor:
    size = edges.functions.size
    plan = _Plan(features, edges, size)
    phi = _empty((edges.num_queries, size * features.shape[1]), plan.dtype)
    plan.project(0, edges.num_queries, phi)
    return phi


def second_moment(features: Tensor, edges: Edges) -> Tensor:
    rows, size = edges.num_queries, edges.functions.size
    plan = _Plan(features, edges, size)
    norm = _empty((rows if edges.unit_response else 0,), plan.dtype)
    squares = torch.empty(rows, dtype=torch.float64)
    for first, count, phi in _chunks(rows, size * features.shape[1], plan.dtype):
        plan.project(first, count, phi, norm)
        plan.kernels.squared_norms(capsule(phi), capsule(squares[first : first + count]))
    return squares.sum() / max(rows, 1)


# Parts


class _Plan:
    """Edges and features as the C++ kernels take them: packed, in the precision of what is on the edges."""

    def __init__(self, features: Tensor, edges: Edges, size: int) -> None:
        operand, scale, parameters, mixing = (
            None if t is None else t.detach().contiguous() for t in (*edges.operands, edges.mixing)
        )
        assert operand is not None
        self.edges, self.operand, self.dtype = edges, operand, operand.dtype
        self.features = features.detach().to(operand.dtype).contiguous()
        orders: Any = edges.orders() if edges.orders else (None, None)
        self.row_order, self.column_order = (None if o is None else o.contiguous() for o in orders)
        basis = Native("values", operand) if isinstance(edges.functions, Values) else edges.functions.basis
        make = _module.PlanFloat if self.dtype == torch.float32 else _module.PlanDouble
        tensors = edges.row_offsets.contiguous(), edges.indices.contiguous(), self.row_order, self.features
        on_edges = map(capsule, (operand, scale, parameters))
        numbers = basis.constants, capsule(mixing)
        self.kernels: Any = make(*map(capsule, tensors), basis.name, size, *on_edges, *numbers)

    def project(self, first: int, count: int, phi: Tensor, norm: Tensor | None = None) -> None:
        self.kernels.project(first, count, capsule(phi), self._norm(norm))

    def project_back(self, grad: Tensor, first: int, count: int, psi: Tensor, columns: Any) -> None:
        self.kernels.project_back(
            *(capsule(grad), first, count, capsule(psi), *map(capsule, (*columns, self.column_order)))
        )

    def unproject(self, first: int, count: int, phi: Tensor, norm: Tensor, *grads: Tensor | None) -> None:
        self.kernels.unproject(first, count, capsule(phi), self._norm(norm), *map(capsule, grads))

    def convolve(self, weight: Tensor, bias: Tensor | None, out: Tensor, norm: Tensor) -> None:
        bias = None if bias is None else bias.detach().contiguous()
        self.kernels.convolve(capsule(weight.contiguous()), capsule(bias), capsule(out), self._norm(norm))

    def convolve_backward(
        self, weight: Tensor, grad_out: Tensor, norm: Tensor, *grads: Tensor | None
    ) -> None:
        weight, norm = capsule(weight.contiguous()), self._norm(norm)
        self.kernels.convolve_backward(weight, capsule(grad_out), norm, *map(capsule, grads))

    def _norm(self, norm: Tensor | None) -> Any:
        return None if norm is None or not self.edges.unit_response else capsule(norm)


def _fits(plan: _Plan, weight: Tensor, most: int) -> bool:
    """Whether the weight stays in the cache, so that the native kernels multiply by it as well."""
    return weight.dtype == plan.dtype and weight.nbytes <= most


def _chunks(rows: int, width: int, dtype: torch.dtype) -> Iterator[tuple[int, int, Tensor]]:
    """First row, number of rows and room for their projection, of ``width`` numbers each."""
    most = max(ROWS, NUMBERS // max(width, 1))
    room = _scratch("phi", (min(most, rows), width), dtype)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        yield first, count, room if count == len(room) else room[:count]


def _rows(tensor: Tensor, order: Tensor | None, first: int, count: int) -> Tensor:
    """The rows that are visited from ``first`` on."""
    if order is None:
        return tensor if count == len(tensor) else tensor[first : first + count]
    room = _scratch("rows", (count, tensor.shape[1]), tensor.dtype)
    return torch.index_select(tensor, 0, order[first : first + count], out=room)


def _mm_rows(
    a: Tensor, b: Tensor, out: Tensor, order: Tensor | None, first: int, bias: Tensor | None = None
) -> None:
    """The product a b, plus a bias, as the rows of ``out`` that are visited from ``first`` on."""
    last = first + a.shape[0]
    if order is not None:
        to = _scratch("out", (a.shape[0], b.shape[1]), a.dtype)
    else:
        to = out if a.shape[0] == len(out) else out[first:last]
    if bias is None:
        torch.mm(a, b, out=to)
    else:
        torch.addmm(bias.detach(), a, b, out=to)
    if order is not None:
        out.index_copy_(0, order[first:last], to)


def _empty(shape: Any, dtype: torch.dtype) -> Tensor:
    """Like ``torch.empty``; where it is large, in memory that was used before."""
    size = math.prod(shape)
    if size >= POOLED and dtype in (torch.float32, torch.float64):
        fresh = _module.empty_float if dtype == torch.float32 else _module.empty_double
        return fresh(size).view(*shape)
    return torch.empty(shape, dtype=dtype)


def _scratch(name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Room for a chunk, used again in the next call of this thread."""
    rooms: dict[Any, Any] = _local.__dict__
    room, view = rooms.get((name, dtype), (None, None))
    if view is not None and view.shape == shape:
        return view
    size = shape[0] * shape[1]
    if room is None or room.numel() < size:
        room = torch.empty(size, dtype=dtype)
    view = room[:size].view(shape)
    rooms[name, dtype] = room, view
    return view
