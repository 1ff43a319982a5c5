"""The convolution's operators in plain torch: the definition of each result, on any device.

.. math:: \\phi[x, i, c] = \\sum_{y \\in N(x)} v_i(x, y) F[y, c], \\qquad
          \\mathrm{out}[x, o] = \\sum_{i, c} \\phi[x, i, c] W[i, c, o]

with v = q(x, y) b_i((y - x) / r): the basis times the estimator, one number per edge and basis function. Here
v is always given as ``Values``, divided by its response where that is asked for (``Edges.evaluated``); other
backends evaluate the bases that they know, and divide, themselves.
The projection is made for a batch of query points at a time and made again in the backward pass, so that
neither [E, K, C] nor [M, K, C] is ever stored. Sums are accumulated in the dtype of the values, the
matrix product is done in the dtype of the weight; that is all there is to mixed precision.

Fit for any device: the host waits for numbers once for each list of edges, batches are as large as memory
allows, and nothing is added up by several writers, whose order a device does not fix.

Shapes (M queries, N support points, K basis functions, C channels in, O out):
    - features: ``[N, C]``; weight: ``[K, C, O]``
    - convolution: ``[M, O]``; norm: ``[0]``, or of backends that divide ``[M]``; projection: ``[M, K * C]``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pointvar.ops.edges import Edges, exact
from pointvar.ops.grid import widest
from pointvar.ops.reference import transpose

BASES: tuple[str, ...] = ()  # those that are known by name
DIVIDES = False  # by the response, and mixes
BYTES = 1 << 26  # of a batch: more start fewer operators, fewer stay in a cache
LENGTHS = [0, 1, *((2 + i % 2) << i // 2 for i in range(80))]  # 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...


class _Batch(NamedTuple):
    """Rows of like length, filled up to the same one."""

    rows: Tensor  # [m]
    edges: Tensor  # [m, n]: numbers of edges, of any edge where there is none
    outside: Tensor  # [m, n, 1]: where there is none

    def take(self, of_edges: Tensor, index: Tensor | None = None) -> Tensor:
        """``[m, n, ...]``: what edges have, or what points have that an index of the edges names; else 0."""
        names = self.edges.flatten() if index is None else index[self.edges.flatten()]
        found = of_edges.index_select(0, names).view(*self.edges.shape, of_edges.shape[1])
        return found.masked_fill_(self.outside, 0)

    def put(self, to: Tensor, of_edges: Tensor) -> None:
        """Writes ``[m, n, k]`` to the edges; ``to`` has one row more, for what belongs to none."""
        place = self.edges.masked_fill(self.outside.squeeze(2), len(to) - 1)
        to.index_copy_(0, place.flatten(), of_edges.flatten(0, 1))


def _batches(
    row_offsets: Tensor, indices: Tensor, support: int, numbers: Callable[[int], int], size: int
) -> Iterator[_Batch]:
    """All rows that have edges, in batches; a row of n takes ``numbers(n)`` numbers of ``size`` bytes."""
    counts, device = row_offsets.diff(), indices.device
    steps = torch.arange(len(LENGTHS) - 2, device=device)
    lengths = torch.cat([steps[:2], (2 + steps % 2) << steps // 2])
    classes, order = torch.bucketize(counts, lengths).sort(stable=True)
    ends = torch.searchsorted(classes, torch.arange(len(LENGTHS), device=device), right=True)
    nothing, none = steps[:1], steps[:1] - 1
    least = torch.cat([counts, nothing]).amin(0, True)
    lowest, highest = torch.cat([indices, nothing]).amin(0, True), torch.cat([indices, none]).amax(0, True)
    facts = torch.cat([ends, row_offsets[:1], row_offsets[-1:], least, lowest, highest])
    *bounds, first, last, fewest, low, high = facts.tolist()  # the one time that the host waits
    if first != 0 or last != len(indices) or fewest < 0:
        raise ValueError("offsets must run from 0 to the number of rows and must not descend")
    if low < 0 or high >= support:
        raise ValueError(f"indices must name support points, of which there are {support}")
    for length, (start, end) in zip(LENGTHS[1:], pairwise(bounds), strict=True):
        if start == end:
            continue
        slots = torch.arange(length, device=device)
        most = max(BYTES // (size * numbers(length)), 1)
        for rows in order[start:end].split(most):
            edges = (row_offsets[rows][:, None] + slots).clamp(max=len(indices) - 1)
            yield _Batch(rows, edges, (slots >= counts[rows][:, None])[:, :, None])


def _queries(features: Tensor, edges: Edges) -> Iterator[tuple[_Batch, Tensor, Tensor]]:
    """Batches of query points, with v ``[m, K, n]`` and the features ``[m, n, C]`` of their neighbours."""
    values, (k, c) = edges.values, (edges.values.shape[1], features.shape[1])
    for batch in _batches(
        edges.row_offsets,
        edges.indices,
        len(features),
        lambda n: 2 * n * (k + c + 1) + 2 * k * c,
        values.element_size(),
    ):
        near = batch.take(features, edges.indices).to(values.dtype)
        yield batch, batch.take(values).transpose(1, 2), near


def _columns(
    features: Tensor, edges: Edges, width: int, result: int
) -> Iterator[tuple[_Batch, Tensor, Tensor]]:
    """Batches of support points, with v ``[m, n, K]`` and the queries ``[E]`` of their edges.

    ``width`` numbers are taken from each query, ``result`` are made for each support point.
    """
    if edges.transposed is None:
        columns = transpose(edges.row_offsets, edges.indices, len(features))
    else:
        columns = edges.transposed()
    offsets, rows, numbers = columns
    values, k = edges.values, edges.values.shape[1]
    size = values.element_size()
    for batch in _batches(
        offsets, rows, edges.num_queries, lambda n: 2 * n * (k + width + 1) + 2 * result, size
    ):
        yield batch, batch.take(values, numbers), rows


def asks_for(features: Tensor, weight: Tensor, edges: Edges) -> tuple[bool, bool]:
    """Whether the transposed edges, and whether the orders of visits are of use in a convolution."""
    return torch.is_grad_enabled() and features.requires_grad, False


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
    out = weight.new_zeros(edges.num_queries, weight.shape[2])
    with exact(features):
        for batch, values, near in _queries(features, edges):
            phi = torch.bmm(values, near).flatten(1).to(weight.dtype)
            out.index_copy_(0, batch.rows, phi @ weight.flatten(0, 1))
        if bias is not None:
            out += bias
    return out, edges.values.new_empty(0)


def convolve_backward(
    grad_out: Tensor, norm: Tensor, features: Tensor, weight: Tensor, edges: Edges, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients of features, weight and the edges' operands, of those that are wanted."""
    values, (size, channels, outputs) = edges.values, weight.shape
    grad_features = torch.zeros_like(features, dtype=weight.dtype) if wanted[0] else None
    grad_weight = torch.zeros_like(weight, dtype=values.dtype).flatten(0, 1) if wanted[1] else None
    grad_values = _for_edges(values) if wanted[2] else None
    with exact(features):
        if grad_weight is not None or grad_values is not None:
            for batch, v, near in _queries(features, edges):
                grad = grad_out[batch.rows]
                if grad_weight is not None:
                    grad_weight += torch.bmm(v, near).flatten(1).to(weight.dtype).T @ grad
                if grad_values is not None:
                    grad_phi = (grad @ weight.flatten(0, 1).T).unflatten(1, (size, channels)).to(values.dtype)
                    batch.put(grad_values, torch.bmm(near, grad_phi.transpose(1, 2)))
        if grad_features is not None:
            # The same projection of the output's gradient, onto the support points.
            turned = weight.transpose(1, 2).reshape(size * outputs, channels)
            for batch, v, rows in _columns(features, edges, outputs, size * outputs):
                psi = torch.bmm(v.transpose(1, 2), batch.take(grad_out, rows).to(values.dtype))
                grad_features.index_copy_(0, batch.rows, psi.flatten(1).to(weight.dtype) @ turned)
    return [
        None if grad_features is None else grad_features.to(features.dtype),
        None if grad_weight is None else grad_weight.to(weight.dtype).view_as(weight),
        None if grad_values is None else grad_values[:-1],
        *(None, None),
    ]


def project(features: Tensor, edges: Edges) -> Tensor:
    phi = edges.values.new_zeros(edges.num_queries, edges.values.shape[1] * features.shape[1])
    with exact(features):
        for batch, values, near in _queries(features, edges):
            phi.index_copy_(0, batch.rows, torch.bmm(values, near).flatten(1))
    return phi


def project_backward(
    grad: Tensor, features: Tensor, edges: Edges, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of features and values, of those that are wanted."""
    values, (size, channels) = edges.values, (edges.values.shape[1], features.shape[1])
    grad_features = torch.zeros_like(features, dtype=values.dtype) if wanted[0] else None
    grad_values = _for_edges(values) if wanted[1] else None
    with exact(features):
        if grad_values is not None:
            for batch, _, near in _queries(features, edges):
                grad_phi = grad[batch.rows].view(len(batch.rows), size, channels)
                batch.put(grad_values, torch.bmm(near, grad_phi.transpose(1, 2)))
        if grad_features is not None:
            for batch, v, rows in _columns(features, edges, grad.shape[1], channels):
                each = batch.take(grad, rows).view(*v.shape[:2], size, channels).flatten(1, 2)  # [m, n K, C]
                found = torch.bmm(v.reshape(len(batch.rows), 1, -1), each)
                grad_features.index_copy_(0, batch.rows, found.squeeze(1))
    return (
        None if grad_features is None else grad_features.to(features.dtype),
        None if grad_values is None else grad_values[:-1],
    )


def second_moment(features: Tensor, edges: Edges) -> Tensor:
    wide = widest(features.device)
    total = features.new_zeros((), dtype=wide)
    with exact(features):
        for _, values, near in _queries(features, edges):
            total += torch.bmm(values, near).to(wide).square().sum()
    return total / max(edges.num_queries, 1)


def _for_edges(values: Tensor) -> Tensor:
    return values.new_zeros(len(values) + 1, values.shape[1])
