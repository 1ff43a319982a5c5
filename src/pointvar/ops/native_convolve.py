"""The convolution's operators on the CPU: native projections, a chunk of rows at a time, and ``torch.mm``.

Backward has two ways. Forth: project again, then send the gradient of the projection back along the
edges; the only way where values need gradients. Back: with values that need none, the gradients of
features and weight follow from one projection of the output's gradient onto the support points.
The one with fewer operations is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pointvar.ops.native import _module, transpose

ROWS = 512  # rows of a chunk, at least: with fewer, the matrix products are slower
NUMBERS = 1 << 18  # in the projection of a chunk, where rows are short

_local = threading.local()


def convolve(
    features: Tensor,
    values: Tensor,
    weight: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    scale: Tensor | None = None,
    parameters: Tensor | None = None,
    column_offsets: Tensor | None = None,
    column_rows: Tensor | None = None,
    column_edges: Tensor | None = None,
    row_order: Tensor | None = None,
    column_order: Tensor | None = None,
    basis: str = "values",
    constants: list[float] | None = None,
) -> tuple[Tensor, Tensor]:
    size, channels, outputs = weight.shape
    features, plan = _prepare(
        features, values, row_offsets, indices, size, scale, parameters, basis, constants, row_order
    )
    rows = row_offsets.shape[0] - 1
    out, response = _empty((rows, outputs), weight.dtype), _empty((rows, size), values.dtype)
    matrix = weight.detach().flatten(0, 1)
    for first, count, phi in _chunks(rows, size * channels, values.dtype):
        plan.project(features, first, count, phi, response)
        low = phi.to(weight.dtype)
        if row_order is None:
            torch.mm(low, matrix, out=out[first : first + count])
        else:
            part = torch.mm(low, matrix, out=_scratch("out", (count, outputs), weight.dtype))
            out.index_copy_(0, row_order[first : first + count], part)
    return out, response


def convolve_backward(
    grad_out: Tensor,
    grad_response: Tensor,
    features: Tensor,
    values: Tensor,
    weight: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    scale: Tensor | None,
    parameters: Tensor | None,
    column_offsets: Tensor | None,
    column_rows: Tensor | None,
    column_edges: Tensor | None,
    row_order: Tensor | None,
    column_order: Tensor | None,
    basis: str,
    constants: list[float] | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    size, channels, outputs = weight.shape
    of_basis = (size, scale, parameters, basis, constants, row_order)
    exact, plan = _prepare(features, values, row_offsets, indices, *of_basis)
    grad_out = grad_out.detach().to(weight.dtype).contiguous()
    along_edges = wanted[1] or wanted[3] or wanted[4]
    support, rows, edges = exact.shape[0], row_offsets.shape[0] - 1, indices.shape[0]
    back = edges * size * outputs + (wanted[0] + wanted[2]) * support * size * channels * outputs
    forth = (wanted[0] + wanted[2]) * (edges * size * channels + rows * size * channels * outputs)
    grads: list[Tensor | None]
    if not along_edges and back < forth:
        columns = (column_offsets, column_rows, column_edges)
        if column_offsets is None:
            columns = transpose(row_offsets, indices, support)
        grads = _back(plan, exact, weight, grad_out, columns, column_order, values.dtype, wanted)
    else:
        grads = _forth(plan, exact, values, weight, grad_out, grad_response, row_order, wanted)
    grad_features, grad_values, grad_weight, grad_scale, grad_parameters = (
        values.new_empty(0) if grad is None else grad for grad in grads
    )
    return (
        grad_features.to(features.dtype),
        grad_values,
        grad_weight.to(weight.dtype),
        grad_scale,
        grad_parameters,
    )


def _back(
    plan: Any,
    features: Tensor,
    weight: Tensor,
    grad_out: Tensor,
    columns: Any,
    order: Tensor | None,
    dtype: torch.dtype,
    wanted: list[bool],
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    turned = weight.detach().transpose(1, 2).reshape(size * outputs, channels).contiguous()
    wide = grad_out.to(dtype)
    grad_features = _empty(features.shape, weight.dtype) if wanted[0] else None
    grad_weight = torch.zeros(channels, size * outputs, dtype=weight.dtype) if wanted[2] else None
    for first, count, psi in _chunks(features.shape[0], size * outputs, dtype):
        plan.project_back(wide, first, count, psi, *columns, order)
        low = psi.to(weight.dtype)
        if grad_features is not None:
            if order is None:
                torch.mm(low, turned, out=grad_features[first : first + count])
            else:
                part = torch.mm(low, turned, out=_scratch("out", (count, channels), weight.dtype))
                grad_features.index_copy_(0, order[first : first + count], part)
        if grad_weight is not None:
            grad_weight.addmm_(_rows(features, order, first, count).to(weight.dtype).t(), low)
    if grad_weight is not None:
        grad_weight = grad_weight.view(channels, size, outputs).transpose(0, 1).contiguous()
    return [grad_features, None, grad_weight, None, None]


def _forth(
    plan: Any,
    features: Tensor,
    values: Tensor,
    weight: Tensor,
    grad_out: Tensor,
    grad_response: Tensor,
    order: Tensor | None,
    wanted: list[bool],
) -> list[Tensor | None]:
    size, channels, outputs = weight.shape
    dtype, edges = values.dtype, values.shape[0]
    rows = grad_out.shape[0]
    matrix = weight.detach().flatten(0, 1)
    grad_features = _zeros(features.shape, dtype) if wanted[0] else None
    grad_weight = torch.zeros(size * channels, outputs, dtype=weight.dtype) if wanted[2] else None
    grad_values = _empty(values.shape, dtype) if wanted[1] else None
    grad_scale = _empty((edges,), dtype) if wanted[3] else None
    sums = torch.zeros(plan.parameter_sums, dtype=dtype) if wanted[4] else None
    response = grad_response.detach().contiguous()
    for first, count, phi in _chunks(rows, size * channels, dtype):
        grad = _rows(grad_out, order, first, count)
        if grad_weight is not None:
            plan.project(features, first, count, phi, None)
            grad_weight.addmm_(phi.to(weight.dtype).t(), grad)
        if wanted[0] or wanted[1] or wanted[3] or wanted[4]:
            if weight.dtype == dtype:
                torch.mm(grad, matrix.t(), out=phi)
            else:
                phi.copy_(grad @ matrix.t())
            plan.unproject(
                *(features, first, count, phi, response),
                *(grad_features, grad_values, grad_scale, sums),
            )
    return [
        grad_features,
        grad_values,
        None if grad_weight is None else grad_weight.view_as(weight),
        grad_scale,
        None if sums is None else _parameters(sums, plan.padded, size, values.shape[1]),
    ]


def project(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    size = values.shape[1]
    features, plan = _prepare(features, values, row_offsets, indices, size, None, None, "values", None)
    rows = row_offsets.shape[0] - 1
    phi = _empty((rows, size * features.shape[1]), values.dtype)
    plan.project(features, 0, rows, phi, None)
    return phi


def second_moment(
    features: Tensor,
    values: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    size: int,
    unit_response: bool,
    scale: Tensor | None = None,
    parameters: Tensor | None = None,
    basis: str = "values",
    constants: list[float] | None = None,
) -> Tensor:
    features, plan = _prepare(
        features, values, row_offsets, indices, size, scale, parameters, basis, constants
    )
    rows = row_offsets.shape[0] - 1
    response = _empty((rows, size), values.dtype) if unit_response else None
    squares = torch.empty(rows, dtype=torch.float64)
    for first, count, phi in _chunks(rows, size * features.shape[1], values.dtype):
        plan.project(features, first, count, phi, response)
        plan.squared_norms(phi, squares[first : first + count])
    if response is not None:
        length = response.double().square().sum(1)
        squares = torch.where(length > 0, squares / length, 0)
    return squares.sum() / max(rows, 1)


# Parts


def _prepare(
    features: Tensor,
    values: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    size: int,
    scale: Tensor | None,
    parameters: Tensor | None,
    basis: str,
    constants: list[float] | None,
    order: Tensor | None = None,
) -> tuple[Tensor, Any]:
    make = _module.PlanFloat if values.dtype == torch.float32 else _module.PlanDouble
    values = values.detach().contiguous()
    plan = make(
        row_offsets.contiguous(),
        indices.contiguous(),
        order,
        features.shape[0],
        basis,
        size,
        values,
        None if scale is None else scale.detach().contiguous(),
        values.new_empty(0) if parameters is None else parameters.detach().contiguous(),
        constants or [],
    )
    return features.detach().to(values.dtype).contiguous(), plan


def _chunks(rows: int, width: int, dtype: torch.dtype) -> Iterator[tuple[int, int, Tensor]]:
    """First row, number of rows and room for their projection, of ``width`` numbers each."""
    most = max(ROWS, NUMBERS // width)
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


def _empty(shape: Any, dtype: torch.dtype) -> Tensor:
    """Like ``torch.empty``, in memory that was used before."""
    size = 1
    for extent in shape:
        size *= extent
    if dtype == torch.float32:
        return _module.empty_float(size).view(*shape)
    if dtype == torch.float64:
        return _module.empty_double(size).view(*shape)
    return torch.empty(*shape, dtype=dtype)


def _zeros(shape: Any, dtype: torch.dtype) -> Tensor:
    return _empty(shape, dtype).zero_()


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
