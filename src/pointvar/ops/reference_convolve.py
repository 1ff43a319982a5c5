"""The convolution's operators in plain torch: the definition of each result, on any device.

.. math:: \\phi[x, i, c] = \\sum_{y \\in N(x)} v_i(x, y) F[y, c], \\qquad
          \\mathrm{out}[x, o] = \\sum_{i, c} \\phi[x, i, c] W[i, c, o]

with v = q(x, y) b_i((y - x) / r): the basis times the estimator, one number per edge and basis function. Here
v is always given as ``Values``, divided by its response where that is asked for (``Edges.evaluated``); other
backends evaluate the bases that they know, and divide, themselves.
The projection is made for a chunk of query points at a time and made again in the backward pass, so that
neither [E, K, C] nor [M, K, C] is ever stored. Sums are accumulated in the dtype of the values, the
matrix product is done in the dtype of the weight; that is all there is to mixed precision.

Shapes (M queries, N support points, K basis functions, C channels in, O out):
    - features: ``[N, C]``; weight: ``[K, C, O]``
    - convolution: ``[M, O]``; norm: ``[0]``, or of backends that divide ``[M]``; projection: ``[M, K * C]``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pointvar.ops.edges import Edges

BASES: tuple[str, ...] = ()  # those that are known by name
DIVIDES = False  # by the response, and mixes
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


def _chunks(features: Tensor, edges: Edges) -> Iterator[_Chunk]:
    row_offsets, indices, values = edges.row_offsets, edges.indices, edges.values
    offsets = row_offsets.tolist()
    if offsets[0] != 0 or offsets[-1] != len(indices) or offsets != sorted(offsets):
        raise ValueError("offsets must run from 0 to the number of rows and must not descend")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(features):
        raise ValueError(f"indices must name support points, of which there are {len(features)}")
    for first in range(0, len(offsets) - 1, ROWS):
        for start, stop in _halves(offsets, first, min(first + ROWS, len(offsets) - 1)):
            counts = row_offsets[start + 1 : stop + 1] - row_offsets[start:stop]
            part = slice(offsets[start], offsets[stop])
            slots = torch.arange(_longest(offsets, start, stop), device=indices.device)
            inside = slots < counts[:, None]
            yield _Chunk(
                slice(start, stop),
                part,
                inside,
                indices[part],
                _padded(values[part], inside),
                _padded(features[indices[part]].to(values.dtype), inside),
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


def asks_for(features: Tensor, weight: Tensor, edges: Edges) -> tuple[bool, bool]:
    """Whether the transposed edges, and whether the orders of visits are of use in a convolution."""
    return False, False


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
    out = weight.new_zeros(edges.num_queries, weight.shape[2])
    with _exact(features):
        for chunk in _chunks(features, edges):
            out[chunk.rows] = chunk.project().flatten(1).to(weight.dtype) @ weight.flatten(0, 1)
        if bias is not None:
            out += bias
    return out, edges.values.new_empty(0)


def convolve_backward(
    grad_out: Tensor, norm: Tensor, features: Tensor, weight: Tensor, edges: Edges, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients of features, weight and the edges' operands, of those that are wanted."""
    values = edges.values
    grads = _zeros((features, weight, values), wanted, values.dtype)
    with _exact(features):
        for chunk in _chunks(features, edges):
            grad = grad_out[chunk.rows]
            if grads[1] is not None:
                phi = chunk.project().flatten(1).to(weight.dtype)
                grads[1] += (phi.T @ grad).view_as(weight)
            if wanted[0] or wanted[2]:
                grad_phi = (grad @ weight.flatten(0, 1).T).to(values.dtype)
                _unproject(chunk, grad_phi, grads[0], grads[2])
    types = (features.dtype, weight.dtype, values.dtype)
    return [g if g is None else g.to(t) for g, t in zip(grads, types, strict=True)] + [None, None]


def project(features: Tensor, edges: Edges) -> Tensor:
    phi = edges.values.new_zeros(edges.num_queries, edges.values.shape[1] * features.shape[1])
    with _exact(features):
        for chunk in _chunks(features, edges):
            phi[chunk.rows] = chunk.project().flatten(1)
    return phi


def project_backward(
    grad: Tensor, features: Tensor, edges: Edges, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of features and values, of those that are wanted."""
    grad_features, grad_values = _zeros((features, edges.values), wanted, edges.values.dtype)
    with _exact(features):
        for chunk in _chunks(features, edges):
            _unproject(chunk, grad[chunk.rows], grad_features, grad_values)
    return grad_features if grad_features is None else grad_features.to(features.dtype), grad_values


def second_moment(features: Tensor, edges: Edges) -> Tensor:
    total = features.new_zeros((), dtype=torch.float64)
    with _exact(features):
        for chunk in _chunks(features, edges):
            total += chunk.project().double().square().sum()
    return total / max(edges.num_queries, 1)


def _unproject(
    chunk: _Chunk, grad_phi: Tensor, grad_features: Tensor | None, grad_values: Tensor | None
) -> None:
    """Sends the gradient of a chunk's projection back along its edges, adding to both gradients."""
    m, _, k = chunk.values.shape
    grad_phi = grad_phi.reshape(m, k, chunk.features.shape[2])
    if grad_features is not None:
        grad = torch.bmm(chunk.values, grad_phi)
        grad_features.index_add_(0, chunk.support, grad[chunk.inside])
    if grad_values is not None:
        grad = torch.bmm(chunk.features, grad_phi.transpose(1, 2))
        grad_values[chunk.edges] += grad[chunk.inside]


def _zeros(inputs: tuple[Tensor, ...], wanted: list[bool], dtype: torch.dtype) -> list[Tensor | None]:
    return [torch.zeros_like(t, dtype=dtype) if w else None for t, w in zip(inputs, wanted, strict=False)]
