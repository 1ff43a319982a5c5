"""The operators as ``torch.library`` custom ops: native on the CPU, plain torch elsewhere.

``reference.py`` defines the result of each; ``native.py`` must match it.
Values (NaN, radii, lengths) are checked by the geometry functions, before an operator sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pointvar.ops import native, reference

__all__ = [
    "ball_query",
    "farthest_points",
    "kernel_density",
    "knn",
    "poisson_disk",
    "transpose",
]


def _operator(implementation: Callable[..., Any], kernels: Any = None) -> Any:
    """Makes ``pointvar::name`` from the reference, with the native kernel of that name for the CPU."""
    name = implementation.__name__
    operator = torch.library.custom_op(f"pointvar::{name}", implementation, mutates_args=())
    if kernels is not None:
        operator.register_kernel("cpu")(getattr(kernels, name))
    return operator


_kernels = native if native.available else None


def _new_size(like: Tensor) -> Tensor:
    """A fake int64 vector whose length only the real operator knows."""
    return like.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def _ints(like: Tensor, size: int) -> Tensor:
    return like.new_empty(size, dtype=torch.int64)


ball_query = _operator(reference.ball_query, _kernels)
knn = _operator(reference.knn, _kernels)
poisson_disk = _operator(reference.poisson_disk, _kernels)
farthest_points = _operator(reference.farthest_points, _kernels)
kernel_density = _operator(reference.kernel_density, _kernels)
kernel_density_backward = _operator(reference.kernel_density_backward, _kernels)
transpose = _operator(reference.transpose, _kernels)


@ball_query.register_fake
def _(support, support_offsets, queries, query_offsets, radius, max_neighbors, seed):  # type: ignore[no-untyped-def]
    m = queries.shape[0]
    return _ints(queries, m + 1), _new_size(queries), _ints(queries, m)


@knn.register_fake
def _(support, support_offsets, queries, query_offsets, k):  # type: ignore[no-untyped-def]
    m = queries.shape[0]
    return _ints(queries, m + 1), _new_size(queries), _ints(queries, m)


@poisson_disk.register_fake
def _(points, offsets, radius, seed):  # type: ignore[no-untyped-def]
    return _new_size(points)


@farthest_points.register_fake
def _(points, offsets, counts, start, total):  # type: ignore[no-untyped-def]
    return _ints(points, total)


@kernel_density.register_fake
def _(points, offsets, bandwidth):  # type: ignore[no-untyped-def]
    return points.new_empty(points.shape[0])


@kernel_density_backward.register_fake
def _(grad, points, offsets, bandwidth):  # type: ignore[no-untyped-def]
    return torch.empty_like(points)


@transpose.register_fake
def _(row_offsets, indices, num_support):  # type: ignore[no-untyped-def]
    return _ints(indices, num_support + 1), torch.empty_like(indices), torch.empty_like(indices)


def _save_density(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _density_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return kernel_density_backward(grad, *ctx.saved_tensors), None, None


kernel_density.register_autograd(_density_gradient, setup_context=_save_density)
