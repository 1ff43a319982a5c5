"""The convolution's operators in plain torch: the definition of each result, on any device.

.. math:: \\phi[x, i, c] = \\sum_{y \\in N(x)} v_i(x, y) F[y, c], \\qquad
          \\mathrm{out}[x, o] = \\sum_{i, c} \\phi[x, i, c] W[i, c, o]

with v = q(x, y) b_i((y - x) / r): the basis times the estimator, one number per edge and basis function. Here
v is always given as values; only the native operators evaluate a basis themselves.
The projection is made for a chunk of query points at a time and made again in the backward pass, so that
neither [E, K, C] nor [M, K, C] is ever stored. Sums are accumulated in the dtype of the values, the
matrix product is done in the dtype of the weight; that is all there is to mixed precision.

Shapes (M queries, N support points, E edges, K basis functions, C channels in, O out):
    - features: ``[N, C]``; values: ``[E, K]``; weight: ``[K, C, O]``
    - row_offsets: ``[M + 1]``; indices: ``[E]``, as in ``Neighborhood``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
    """The convolution ``[M, O]``, and the response ``[M, K]``: the projection of the feature 1."""
    _require_values(basis)
    out = weight.new_zeros(row_offsets.shape[0] - 1, weight.shape[2])
    response = values.new_zeros(out.shape[0], values.shape[1])
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            out[chunk.rows] = chunk.project().flatten(1).to(weight.dtype) @ weight.flatten(0, 1)
            response[chunk.rows] = chunk.values.sum(1)
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
    """Gradients of features, values, weight, scale and parameters; those not wanted are empty."""
    _require_values(basis)
    grads = _zeros((features, values, weight), wanted[:3], values.dtype)
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
    none = values.new_zeros(0)
    return grads[0].to(features.dtype), grads[1], grads[2].to(weight.dtype), none, none.clone()


def project(features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    """The projection itself, ``[M, K * C]``, basis-major: ``phi.view(M, K, C)``."""
    phi = values.new_zeros(row_offsets.shape[0] - 1, values.shape[1] * features.shape[1])
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            phi[chunk.rows] = chunk.project().flatten(1)
    return phi


def project_backward(
    grad: Tensor, features: Tensor, values: Tensor, row_offsets: Tensor, indices: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of features and values; one not wanted is empty."""
    grads = _zeros((features, values), wanted, values.dtype)
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            _unproject(chunk, grad[chunk.rows], grads[0], grads[1], wanted)
    return grads[0].to(features.dtype), grads[1]


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
    r"""Mean over the queries of :math:`\|\phi[x]\|^2`, divided by the squared norm of the response if wanted.

    A float64 scalar; 0 where there are no queries.
    """
    _require_values(basis)
    total = features.new_zeros((), dtype=torch.float64)
    with _exact(features):
        for chunk in _chunks(features, values, row_offsets, indices):
            squares = chunk.project().double().square().sum((1, 2))
            if unit_response:
                response = chunk.values.double().sum(1).square().sum(1)
                squares = torch.where(response > 0, squares / response, 0)
            total += squares.sum()
    return total / max(row_offsets.shape[0] - 1, 1)


def _require_values(basis: str) -> None:
    if basis != "values":
        raise ValueError(f"plain torch takes a basis as its values, got {basis!r}")


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
