"""The convolution on a GPU: Triton projections, a chunk of rows at a time, and ``torch.mm``.

Backward, the gradient of the features is one projection of the output's gradient onto the support points and
a matrix product; that of the weight follows from the same projection, or from that of the features where
these need no gradient. What is on the edges gets its gradients from ``unproject``. The host never waits.

A mixing of the functions is one of the weights: (phi M) W = phi (M W).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pointvar.ops.edges import Edges, Native, Values, exact
from pointvar.ops.grid import widest
from pointvar.ops.reference import transpose

BASES = ("gaussian", "linear", "nearest", "mlp", "dot")
DIVIDES = True
BYTES = 1 << 28  # of the projection of a chunk
NEIGHBOURS = 16  # of a row that are taken at a time: the least for a matrix product
SHARED = 1 << 14  # bytes of all functions in a block of channels, which a program may have to hold there
# Rows are short: many of them at once hide the time of memory, not a pipeline within one. Squared distances
# are rounded at each step, as everywhere, or what is as far from two kernel points would choose another one.
COMPILED = {"num_stages": 1, "enable_fp_fusion": False}


def asks_for(features: Tensor, weight: Tensor, edges: Edges) -> tuple[bool, bool]:
    """The transposed edges for the gradient of the features; no order of visits."""
    return torch.is_grad_enabled() and features.requires_grad, False


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
    size, channels, outputs = weight.shape
    plan = _Plan(features, edges)
    rows = edges.num_queries
    out = weight.new_empty(rows, outputs)
    norm = plan.operand.new_empty(rows if edges.unit_response else 0)
    matrix = _mixed(weight.detach(), edges).flatten(0, 1)
    with exact(features):
        for first, count, phi in _chunks(rows, size * channels, weight):
            plan.project(first, count, phi=phi, norm=norm)
            to = out[first : first + count]
            if bias is None:
                torch.mm(phi, matrix, out=to)
            else:
                torch.addmm(bias.detach(), phi, matrix, out=to)
    return out, norm


def convolve_backward(
    grad_out: Tensor, norm: Tensor, features: Tensor, weight: Tensor, edges: Edges, wanted: list[bool]
) -> list[Tensor | None]:
    plan = _Plan(features, edges)
    matrix, grad_out = _mixed(weight.detach(), edges), grad_out.detach().contiguous()
    along_edges = any(wanted[2:])
    grads: list[Tensor | None] = [None] * 5
    with exact(features):
        if along_edges or (wanted[1] and not wanted[0]):
            by_phi = wanted[1] and (edges.unit_response or not wanted[0])
            grads[1:] = _forth(plan, matrix, grad_out, norm, [by_phi, *wanted[2:]])
        if wanted[0]:
            grads[0], by_psi = _back(plan, matrix, grad_out, norm, wanted[1] and grads[1] is None)
            grads[1] = by_psi if grads[1] is None else grads[1]
        if grads[1] is not None and edges.mixing is not None:
            grads[1] = (edges.mixing.to(grads[1].dtype).T @ grads[1].flatten(1)).view_as(weight)
    types = (features.dtype, weight.dtype, *(plan.dtype,) * 3)
    return [grad if grad is None else grad.to(t) for grad, t in zip(grads, types, strict=True)]


def _back(
    plan: _Plan, weight: Tensor, grad_out: Tensor, norm: Tensor, wants_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of features and weight from the projection of the output's gradient."""
    size, channels, outputs = weight.shape
    features, edges = plan.features, plan.edges
    support = features.shape[0]
    if edges.transposed is None:
        columns: Any = transpose(edges.row_offsets, edges.indices, support)
    else:
        columns = edges.transposed()
    turned = weight.transpose(1, 2).reshape(size * outputs, channels)
    wide = grad_out / norm[:, None] if edges.unit_response else grad_out
    grad_features = weight.new_empty(support, channels)
    sums = _Sums(channels, size * outputs, weight) if wants_weight else None
    for first, count, psi in _chunks(support, size * outputs, weight):
        plan.project_back(wide, first, count, psi, columns)
        torch.mm(psi, turned, out=grad_features[first : first + count])
        if sums is not None:
            sums.add(features[first : first + count].to(weight.dtype).t(), psi)
    if sums is None:
        return grad_features, None
    return grad_features, sums.total.view(channels, size, outputs).transpose(0, 1).contiguous()


def _forth(
    plan: _Plan, weight: Tensor, grad_out: Tensor, norm: Tensor, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients of weight and operands from the projection of the features."""
    size, channels, outputs = weight.shape
    rows, width, matrix = grad_out.shape[0], size * channels, weight.flatten(0, 1)
    divides, along_edges = plan.edges.unit_response, any(wanted[1:])
    sums = _Sums(width, outputs, weight) if wanted[0] else None
    operand, scale, parameters = plan.operand, plan.scale, plan.parameters
    grad_operand = torch.zeros_like(operand) if wanted[1] else None
    grad_scale = torch.zeros_like(operand[:, 0]) if wanted[2] and scale is not None else None
    total = torch.zeros_like(parameters) if wanted[3] and parameters is not None else None
    dtype = plan.dtype if divides else weight.dtype
    for first, count, phi in _chunks(rows, width, operand.new_empty(0, dtype=dtype)):
        grad = grad_out[first : first + count]
        response = operand.new_empty(count, size) if divides and along_edges else None
        if sums is not None or response is not None:
            plan.project(first, count, phi=phi, response=response)  # the norm is known, and stays
        if sums is not None:
            sums.add(phi.to(weight.dtype).t(), grad)
        if along_edges:
            grad_phi = grad @ matrix.t()
            inner = (phi * grad_phi).sum(1) if divides else None
            partial = None if total is None else operand.new_empty(count, total.numel())
            grads = grad_operand, grad_scale, partial
            plan.unproject(first, count, grads, grad_phi, norm, response, inner)
            if total is not None and partial is not None:
                total += partial.sum(0)
    weights = None if sums is None else sums.total.view_as(weight)
    return [weights, grad_operand, grad_scale, total]


def project(features: Tensor, edges: Edges) -> Tensor:
    plan = _Plan(features, edges)
    rows = edges.num_queries
    phi = plan.operand.new_empty(rows, plan.size * features.shape[1])
    plan.project(0, rows, phi=phi, norm=plan.operand.new_empty(rows if edges.unit_response else 0))
    return phi


def second_moment(features: Tensor, edges: Edges) -> Tensor:
    """The projection is not even stored in part: each program adds up its own squares."""
    edges = edges if edges.mixing is None else edges.evaluated()
    plan = _Plan(features, edges)
    rows = edges.num_queries
    squares = features.new_empty(rows, plan.blocks(features.shape[1]), dtype=widest(features.device))
    norm = plan.operand.new_empty(rows if edges.unit_response else 0)
    plan.project(0, rows, norm=norm, squares=squares)
    return squares.sum() / max(rows, 1)


# Parts


class _Plan:
    """Edges and features as the Triton kernels take them, in the precision of what is on the edges."""

    def __init__(self, features: Tensor, edges: Edges) -> None:
        operand, scale, parameters = (None if t is None else t.detach().contiguous() for t in edges.operands)
        assert operand is not None
        functions = edges.functions
        self.edges, self.operand, self.scale, self.parameters = edges, operand, scale, parameters
        self.dtype, self.size = operand.dtype, functions.size
        self.features = features.detach().contiguous()
        basis = Native("values", operand) if isinstance(functions, Values) else functions.basis
        # By pointer: a number would be rounded to float32 on its way into a kernel.
        constant = operand.new_full((1,), basis.constants[0]) if basis.constants else None
        self._on_edges = operand, scale, parameters, constant
        self._rows = edges.row_offsets.contiguous(), edges.indices.contiguous()
        self._basis = {"K": self.size, "D": operand.shape[1], "BASIS": basis.name}
        _check_basis(basis, self.size, operand)

    def project(
        self,
        first: int,
        count: int,
        phi: Tensor | None = None,
        norm: Tensor | None = None,
        response: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> None:
        results = phi, norm if self.edges.unit_response else None, response, squares
        self._project(results, self.features, (*self._rows, None), first, count, self.edges.unit_response)

    def project_back(self, grad: Tensor, first: int, count: int, psi: Tensor, columns: Any) -> None:
        columns = tuple(part.contiguous() for part in columns)
        self._project((psi, None, None, None), grad, columns, first, count, False)

    def _project(self, results: Any, features: Tensor, rows: Any, first: int, count: int, unit: bool) -> None:
        from pointvar.ops.triton_kernels import project

        channels = features.shape[1]
        if not count:
            return
        numbers = first, self.operand.shape[0], features.shape[0], channels
        with _on(features):
            project[count, self.blocks(channels)](
                *(*results, features, *self._on_edges, *rows, *numbers),
                **self._basis,
                UNIT=unit,
                **_launch(self.size, channels, self.dtype),
            )

    def unproject(
        self,
        first: int,
        count: int,
        grads: tuple[Tensor | None, ...],
        grad_phi: Tensor,
        norm: Tensor,
        response: Tensor | None,
        inner: Tensor | None,
    ) -> None:
        from pointvar.ops.triton_kernels import unproject

        unit, channels = self.edges.unit_response, self.features.shape[1]
        given = grad_phi, norm if unit else None, response, inner, self.features
        numbers = first, self.operand.shape[0], self.features.shape[0], channels
        if count:
            with _on(grad_phi):
                unproject[count,](
                    *(*grads, *given, *self._on_edges, *self._rows, *numbers),
                    **self._basis,
                    UNIT=unit,
                    **_launch(self.size, channels, self.dtype),
                )

    def blocks(self, channels: int) -> int:
        return -(-max(channels, 1) // _launch(self.size, channels, self.dtype)["CB"])


def _launch(size: int, channels: int, dtype: torch.dtype) -> dict[str, Any]:
    """Fixed by the shapes, not tuned: another block would add up in another order."""
    functions = max(16, _power(size))
    most = min(256, SHARED // functions) // dtype.itemsize
    block = max(16, min(_power(channels), most))
    warps = min(max(2, functions * block // 256), 8)
    return {"KB": functions, "EB": NEIGHBOURS, "CB": block, "num_warps": warps, **COMPILED}


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(number - 1, 0).bit_length()


def _check_basis(basis: Native, size: int, operand: Tensor) -> None:
    """As many parameters and constants as the basis reads."""
    dim = operand.shape[1]
    wanted = {"values": 0, "dot": 0, "mlp": size * (dim + 1)}.get(basis.name, size * dim)
    found = 0 if basis.parameters is None else basis.parameters.numel()
    constants = 0 if basis.name in ("values", "dot", "nearest") else 1
    if found != wanted or len(basis.constants) < constants or (basis.name == "dot" and size != dim + 1):
        raise ValueError(
            f"a basis {basis.name!r} of {size} functions needs {wanted} parameters and {constants} constants"
            f", got {found} and {len(basis.constants)}"
        )


class _Sums:
    """A sum of matrix products over chunks, at least in float32."""

    def __init__(self, rows: int, columns: int, like: Tensor) -> None:
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.total = like.new_zeros(rows, columns, dtype=dtype)

    def add(self, a: Tensor, b: Tensor) -> None:
        if a.dtype == self.total.dtype:
            self.total.addmm_(a, b)
        else:
            self.total += a @ b


def _mixed(weight: Tensor, edges: Edges) -> Tensor:
    if edges.mixing is None:
        return weight.contiguous()
    mixing = edges.mixing.detach()
    return (mixing @ weight.flatten(1).to(mixing.dtype)).view_as(weight).to(weight.dtype)


def _chunks(rows: int, width: int, like: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """First row, number of rows and room for their projection, of ``width`` numbers each."""
    most = max(BYTES // max(width * like.element_size(), 1), 1)
    room = like.new_empty(min(most, rows), width)
    for first in range(0, rows, most):
        count = min(most, rows - first)
        yield first, count, room[:count]


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device: that of the tensors."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
