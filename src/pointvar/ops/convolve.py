"""The one equation as operators: a projection of the features, then one matrix product.

.. math:: \\phi[x, i, c] = \\sum_{y \\in N(x)} v_i(x, y) F[y, c], \\qquad
          \\mathrm{out}[x, o] = \\sum_{i, c} \\phi[x, i, c] W[i, c, o]

with v = q(x, y) b_i((y - x) / r): the basis times the estimator, one number per edge and basis function.
The projection is made for a chunk of query points at a time and made again in the backward pass, so that
neither [E, K, C] nor [M, K, C] is ever stored. Sums are accumulated in the dtype of the values, the
matrix product is done in the dtype of the weight; that is all there is to mixed precision.

Shapes (M queries, N support points, E edges, K basis functions, C channels in, O out):
    - features: ``[N, C]``; values: ``[E, K]``; weight: ``[K, C, O]``
    - row_offsets: ``[M + 1]``; indices: ``[E]``, as in ``Neighborhood``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROWS = 512  # query points of a chunk
SLOTS = 1 << 15  # their neighbours, with the padding of short rows


class _Chunk(NamedTuple):
    """Some query points with their neighbours, in rows as long as the longest, filled up with zeros."""

    rows: slice  # m query points
    edges: slice  # all their edges
    inside: Tensor  # [m, n]: which slots hold an edge
    support: Tensor  # the support point of each edge
    values: Tensor  # [m, n, K]
    features: Tensor  # [m, n, C]

    def project(self) -> Tensor:
        return torch.bmm(self.values.transpose(1, 2), self.features)  # [m, K, C]


def _chunks(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Iterator[_Chunk]:
    offsets = row_offsets.tolist()
    for first in range(0, len(offsets) - 1, ROWS):
        for start, stop in _halves(offsets, first, min(first + ROWS, len(offsets) - 1)):
            counts = row_offsets[start + 1 : stop + 1] - row_offsets[start:stop]
            edges = slice(offsets[start], offsets[stop])
            slots = torch.arange(_longest(offsets, start, stop), device=indices.device)
            inside = slots < counts[:, None]
            yield _Chunk(
                slice(start, stop),
                edges,
                inside,
                indices[edges],
                _padded(values[edges], inside),
                _padded(features[indices[edges]].to(values.dtype), inside),
            )


def _halves(offsets: list[int], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """One long row must not make all others as long: halve the chunk until it fits, or is one row."""
    if stop - start == 1 or (stop - start) * _longest(offsets, start, stop) <= SLOTS:
        yield start, stop
    else:
        middle = (start + stop) // 2
        yield from _halves(offsets, start, middle)
        yield from _halves(offsets, middle, stop)


def _longest(offsets: list[int], start: int, stop: int) -> int:
    return max(offsets[i + 1] - offsets[i] for i in range(start, stop))


def _padded(edges: Tensor, inside: Tensor) -> Tensor:
    result = edges.new_zeros(*inside.shape, edges.shape[1])
    result[inside] = edges
    return result


def _exact(like: Tensor) -> torch.autocast:
    """Operators decide on their precision themselves."""
    return torch.autocast(like.device.type, enabled=False)


@torch.library.custom_op("pointvar::convolve", mutates_args=())
def convolve(
    features: Tensor, values: Tensor, weight: Tensor, row_offsets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    """The convolution ``[M, O]``, and the response ``[M, K]``: the projection of the feature 1."""
    out = weight.new_zeros(row_offsets.shape[0] - 1, weight.shape[2])
    response = values.new_zeros(out.shape[0], values.shape[1])
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            out[chunk.rows] = chunk.project().flatten(1).to(weight.dtype) @ weight.flatten(0, 1)
            response[chunk.rows] = chunk.values.sum(1)
    return out, response


@torch.library.custom_op("pointvar::convolve_backward", mutates_args=())
def convolve_backward(
    grad_out: Tensor,
    grad_response: Tensor,
    features: Tensor,
    values: Tensor,
    weight: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features, values and weight; those not wanted are empty."""
    grads = _zeros((features, values, weight), wanted, values.dtype)
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            grad = grad_out[chunk.rows].to(weight.dtype)
            if wanted[2]:
                phi = chunk.project().flatten(1).to(weight.dtype)
                grads[2] += (phi.T @ grad).view_as(weight)
            if wanted[0] or wanted[1]:
                grad_phi = (grad @ weight.flatten(0, 1).T).to(values.dtype)
                _unproject(chunk, grad_phi, grads[0], grads[1], wanted)
            if wanted[1]:
                edges = chunk.inside.nonzero()[:, 0] + chunk.rows.start
                grads[1][chunk.edges] += grad_response[edges]
    return grads[0].to(features.dtype), grads[1], grads[2].to(weight.dtype)


@torch.library.custom_op("pointvar::project", mutates_args=())
def project(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    """The projection itself, ``[M, K * C]``, basis-major: ``phi.view(M, K, C)``."""
    phi = values.new_zeros(row_offsets.shape[0] - 1, values.shape[1] * features.shape[1])
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            phi[chunk.rows] = chunk.project().flatten(1)
    return phi


@torch.library.custom_op("pointvar::project_backward", mutates_args=())
def project_backward(
    grad: Tensor, features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of features and values; one not wanted is empty."""
    grads = _zeros((features, values), wanted, values.dtype)
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            _unproject(chunk, grad[chunk.rows], grads[0], grads[1], wanted)
    return grads[0].to(features.dtype), grads[1]


@torch.library.custom_op("pointvar::second_moment", mutates_args=())
def second_moment(
    features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor, scale: Tensor
) -> Tensor:
    r"""Mean over the queries of :math:`\mathrm{scale}[x]^2 \|\phi[x]\|^2`, a float64 scalar; 0 for none."""
    total = features.new_zeros((), dtype=torch.float64)
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            total += (chunk.project() * scale[chunk.rows, None, None]).double().square().sum()
    return total / max(row_offsets.shape[0] - 1, 1)


def _unproject(
    chunk: _Chunk, grad_phi: Tensor, grad_features: Tensor, grad_values: Tensor, wanted: list[bool]
) -> None:
    """Sends the gradient of a chunk's projection back along its edges, adding to both gradients."""
    m, _, k = chunk.values.shape
    grad_phi = grad_phi.reshape(m, k, chunk.features.shape[2])
    if wanted[0]:
        grad = torch.bmm(chunk.values, grad_phi)
        grad_features.index_add_(0, chunk.support, grad[chunk.inside])
    if wanted[1]:
        grad = torch.bmm(chunk.features, grad_phi.transpose(1, 2))
        grad_values[chunk.edges] += grad[chunk.inside]


def _zeros(inputs: tuple[Tensor, ...], wanted: list[bool], dtype: torch.dtype) -> list[Tensor]:
    return [t.new_zeros(t.shape if w else 0, dtype=dtype) for t, w in zip(inputs, wanted, strict=True)]


# What tracing and differentiation need to know


@convolve.register_fake
def _(features, values, weight, row_offsets, indices):  # type: ignore[no-untyped-def]
    m = row_offsets.shape[0] - 1
    return weight.new_empty(m, weight.shape[2]), values.new_empty(m, values.shape[1])


@convolve_backward.register_fake
def _(grad_out, grad_response, features, values, weight, row_offsets, indices, wanted):  # type: ignore[no-untyped-def]
    return _fake_gradients((features, values, weight), wanted)


@project.register_fake
def _(features, values, row_offsets, indices):  # type: ignore[no-untyped-def]
    return values.new_empty(row_offsets.shape[0] - 1, values.shape[1] * features.shape[1])


@project_backward.register_fake
def _(grad, features, values, row_offsets, indices, wanted):  # type: ignore[no-untyped-def]
    return _fake_gradients((features, values), wanted)


@second_moment.register_fake
def _(features, values, row_offsets, indices, scale):  # type: ignore[no-untyped-def]
    return features.new_empty((), dtype=torch.float64)


def _fake_gradients(inputs: tuple[Tensor, ...], wanted: list[bool]) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape if w else 0) for t, w in zip(inputs, wanted, strict=True))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _convolve_gradient(ctx: Any, grad_out: Tensor, grad_response: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:3])
    grads = convolve_backward(grad_out, grad_response, *ctx.saved_tensors, wanted)
    return *(g if w else None for g, w in zip(grads, wanted, strict=True)), None, None


def _project_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:2])
    grads = project_backward(grad, *ctx.saved_tensors, wanted)
    return *(g if w else None for g, w in zip(grads, wanted, strict=True)), None, None


convolve.register_autograd(_convolve_gradient, setup_context=_save)
project.register_autograd(_project_gradient, setup_context=_save)
