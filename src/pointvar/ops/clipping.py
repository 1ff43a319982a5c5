"""Adaptive clipping of the gradients of all parameters at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pointvar.ops import native
from pointvar.ops.checks import FLOATS


@torch.no_grad()
def clip_units(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], units: Sequence[int], limit: float, eps: float
) -> None:
    r"""Limits the gradient of each unit by the norm of its weights, in place.

    .. math:: G_i \leftarrow G_i \min\left(1, \lambda \,
              \frac{\max(\|W_i\|, \epsilon)}{\|G_i\|}\right)

    Shapes:
        - weights, gradients: any, each gradient as its weight; units: the dimension of each weight that
          counts its units, -1 if it is one as a whole
    """
    taken: tuple[list[Tensor], list[Tensor], list[int]] = ([], [], [])
    for weight, gradient, unit in zip(weights, gradients, units, strict=True):
        if native.available and _plain(weight) and _plain(gradient) and weight.dtype == gradient.dtype:
            taken[0].append(weight)
            taken[1].append(gradient)
            taken[2].append(unit)
        else:
            _clip(weight, gradient, unit, limit, eps)
    if taken[0]:
        native.clip_units(*taken, limit, eps)


def _plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.dtype in FLOATS and tensor.is_contiguous()


def _clip(weight: Tensor, gradient: Tensor, unit: int, limit: float, eps: float) -> None:
    """The definition, for one parameter."""
    dims = [d for d in range(weight.dim()) if d != unit]
    largest = _norm(weight, dims).clamp(min=eps) * limit
    size = _norm(gradient, dims)
    # 0 / 0 is no reason to clip; a gradient that is not finite stays so, and is noticed.
    gradient.mul_(torch.where(size > largest, largest / size, 1.0))


def _norm(tensor: Tensor, dims: list[int]) -> Tensor:
    # On the CPU a sum of squares is eight times as fast as vector_norm over these dimensions.
    return tensor.square().sum(dims, keepdim=True).sqrt() if dims else tensor.abs()
