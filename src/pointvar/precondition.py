r"""Preconditioned steps: weights as published, learned in coordinates in which the functions do not overlap.

Functions of a basis that overlap, such as wide hats around near kernel points, make a gradient descent slow:
a step along one weight undoes that along another. With

.. math::
    A = C + \epsilon \lambda_1 I, \qquad C = \mathrm{E}[b b^T], \qquad
    W = M V, \qquad M = s A^{-1/2}, \qquad s^2 = \mathrm{tr}(A) / K

it is V that an optimiser moves, so that gradient descent is
:math:`W \leftarrow W - \eta s^2 A^{-1} \, \partial L / \partial W`, while the layer, its initialisation and
what is saved are those of W. The mean E is over a surface through the query, in any orientation (in the
plane: over the disc), and the query itself; no data are needed. A basis and a multiple of it have the same M.
One that is learned changes: ``PointConvolution.refresh_precondition`` follows it, every 25 steps is enough.

Where this lives: V is the parameter (``coordinates``) and W (``weight``) is computed from it in each pass, a
product of [K, K] with [K, C O]. So clipping, weight decay, momentum, Adam, averages of weights and gradients
in a log are those of V, whoever wrote them, and none has to know. The other ways are not exact or not
simple: a hook on the gradient of W is right for SGD alone, as weight decay, clipping and Adam would still see
W; a wrapper around the optimiser does nothing where it is forgotten; ``torch.nn.utils.parametrize`` has other
names in a state dict, and its modules cannot be pickled.

A state dict has W as ``weight``, which a layer without preconditioning reads and writes as well, and with it
``coordinates`` and ``preconditioner``, so that a training goes on with the same bits. If ``weight`` is not,
to the bit, what these two give (it was changed, or there is nothing else), it alone counts. V then has the
rounding of the dtype, which M makes :math:`\epsilon^{-1/2} = 32` times as large at most: weights that are
read back differ by less than 2e-6 of the largest in float32.
"""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor

from pointvar.basis import Basis

__all__ = ["coordinates_of", "overlap", "preconditioner", "weight_of"]

_OFFSETS, _CENTRE = 8192, 1 / 16
"""Offsets that stand for a receptive field, and the share of the query itself, one of 16 neighbours."""
_FLOOR = 1e-3


def preconditioner(basis: Basis, radius: float | None = None) -> Tensor:
    """M of a basis as it is now, ``[K, K]``, symmetric, in float64."""
    values, vectors = torch.linalg.eigh(overlap(basis, radius))
    largest = values[-1] if values[-1] > 0 else 1.0  # of a basis that is 0
    values = values.clamp(min=0) + _FLOOR * largest
    root = vectors @ torch.diag((values.mean() / values).sqrt()) @ vectors.T
    return (root + root.T) / 2


@torch.no_grad()
def overlap(basis: Basis, radius: float | None = None) -> Tensor:
    """C = E[b b^T] over a receptive field of that radius (default: nominal), ``[K, K]``, in float64."""
    offsets = _receptive_field(basis.dim or 3)
    nominal = radius or getattr(basis, "radius", None) or 1.0
    twin = copy.deepcopy(basis).to("cpu", torch.float64)  # a copy: statistics of a norm stay
    values = twin(offsets.clone(), torch.full_like(offsets[:, :1], nominal))
    if values.shape != (len(offsets), basis.size) or not bool(values.isfinite().all()):
        raise ValueError(
            f"{type(basis).__name__} must give [E, K] = [{len(offsets)}, {basis.size}] finite "
            f"values, got shape {list(values.shape)}, {int((~values.isfinite()).sum())} values not finite"
        )
    return values.T @ values / len(values)


def weight_of(preconditioner: Tensor, coordinates: Tensor) -> Tensor:
    """W = M V, never in low precision. Shapes: V and W: ``[K, C, O]``."""
    if torch.is_autocast_enabled(coordinates.device.type):  # else the context alone would take time
        with torch.autocast(coordinates.device.type, enabled=False):
            return weight_of(preconditioner, coordinates)
    return (preconditioner.detach() @ coordinates.flatten(1)).view_as(coordinates)


@torch.no_grad()
def coordinates_of(preconditioner: Tensor, weight: Tensor) -> Tensor:
    """V = M^-1 W, rounded once."""
    with torch.autocast(weight.device.type, enabled=False):
        solved = torch.linalg.solve(preconditioner.double(), weight.flatten(1).double())
    return solved.to(weight.dtype).view_as(weight)


@cache
def _receptive_field(dim: int) -> Tensor:
    """Offsets ``[E, D]`` of a surface through the centre, in all orientations, and of the centre itself."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(_OFFSETS, dim, generator=generator, dtype=torch.float64)
    distance = torch.rand(_OFFSETS, 1, generator=generator, dtype=torch.float64) ** (1 / min(dim, 2))
    offsets = direction / direction.norm(dim=1, keepdim=True) * distance
    offsets[: round(_CENTRE * _OFFSETS)] = 0
    return offsets
