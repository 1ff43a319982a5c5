"""The operators as ``torch.library`` custom ops: native on the CPU, plain torch elsewhere (``backends.py``).

``reference.py`` defines the result of each; other backends must match it.
Values (NaN, radii, lengths) are checked by the geometry functions, before an operator sees them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pointvar.ops import reference
from pointvar.ops.backends import at_once, give_gradient, operator
from pointvar.ops.clipping import clip_units
from pointvar.ops.edges import Edges, Known, Native, Values
from pointvar.ops.projection import convolve, project, second_moment

__all__ = [
    "Edges",
    "Known",
    "Native",
    "Values",
    "at_once",
    "ball_query",
    "clip_units",
    "convolve",
    "farthest_points",
    "kernel_density",
    "knn",
    "poisson_disk",
    "project",
    "second_moment",
    "spatial_order",
    "transpose",
]


def _size(like: Tensor, *size: int) -> Tensor:
    """A fake int64 vector; of no size: of one that only the real operator knows."""
    shape = size or (torch.library.get_ctx().new_dynamic_size(),)
    return like.new_empty(shape, dtype=torch.int64)


def _found(support: Tensor, support_offsets: Tensor, queries: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    m = queries.shape[0]
    return _size(queries, m + 1), _size(queries), _size(queries, m)


ball_query = operator(reference.ball_query, _found)
knn = operator(reference.knn, _found)
poisson_disk = operator(reference.poisson_disk, lambda points, *rest: _size(points))
spatial_order = operator(reference.spatial_order, lambda points, *rest: _size(points, points.shape[0]))
farthest_points = operator(reference.farthest_points, lambda points, *rest: _size(points, rest[-1]))
kernel_density = operator(reference.kernel_density, lambda points, *rest: points.new_empty(points.shape[0]))
kernel_density_backward = operator(
    reference.kernel_density_backward, lambda grad, points, *rest: torch.empty_like(points)
)
transpose = operator(
    reference.transpose,
    lambda rows, edges, size: (_size(edges, size + 1), torch.empty_like(edges), torch.empty_like(edges)),
)
give_gradient(
    kernel_density,
    lambda ctx, grad: (kernel_density_backward(grad, *ctx.saved_tensors), None, None),
)
