r"""Deprecated: bases whose functions overlap, made orthonormal. ``precondition=True`` replaces them.

Functions that are nearly the same, such as wide hats around near kernel points, give a layer that hardly
tells one neighbourhood from another, and whose weights act against each other. With

.. math:: C = \mathrm{E}[b b^T], \qquad \tilde b = (C + \epsilon \lambda_1 I)^{-1/2} \, b

the functions are orthonormal over a receptive field and each stays as near to its original as it can. What
a layer is able to represent does not change: a weight :math:`\tilde W` does the same as
:math:`W = (C + \epsilon \lambda_1 I)^{-1/2} \tilde W` does without.

``precondition=True`` takes the same steps, and leaves layer and initial weights as published.
"""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pointvar.basis import Basis
from pointvar.precondition import overlap

__all__ = ["Orthonormal", "orthonormalise"]

M = TypeVar("M", bound=nn.Module)
DEPRECATED = (
    "orthonormal bases are deprecated and go with the next version: precondition=True, of a convolution or a "
    "network, learns in the same coordinates and leaves weights and basis as published"
)


class Orthonormal(Basis):
    r"""The functions of another basis, mixed so that they are orthonormal over a receptive field.

    The mean E is over a surface through the query, in any orientation (in the plane: over the disc), and the
    query itself. No data are needed. A basis that is learned is mixed as it was at the start.

    Args:
        inner: the basis.
        floor: :math:`\epsilon`, relative to the largest eigenvalue: what is weaker, such as functions that
            are 0 everywhere, is not brought up.
    """

    def __init__(self, inner: Basis, floor: float = 1e-3) -> None:
        super().__init__()
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        if not isinstance(inner, Basis):
            raise TypeError(f"inner must be a pointvar.Basis, got {type(inner).__name__}")
        if isinstance(inner, Orthonormal):
            raise ValueError("the basis is orthonormal already")
        if not 0 < floor <= 1:
            raise ValueError(f"floor must be in (0, 1], got {floor}")
        self.inner, self.floor = inner, floor
        self.size, self.dim = inner.size, inner.dim
        # A parameter, though it is not learned: it is drawn with the others, it is no running statistic.
        self.mixing = nn.Parameter(torch.empty(inner.size, inner.size), requires_grad=False)
        self._mix()

    @property
    def sees_length(self) -> bool:
        return self.inner.sees_length

    def reset_parameters(self, generator: torch.Generator | None = None, radius: float | None = None) -> None:
        """Draws the parameters of the inner basis anew, and mixes accordingly."""
        self.inner.reset_parameters(generator, **({} if radius is None else {"radius": radius}))
        self._mix(radius)

    @torch.no_grad()
    def _mix(self, radius: float | None = None) -> None:
        eigenvalues, vectors = torch.linalg.eigh(overlap(self.inner, radius))
        largest = eigenvalues[-1] if eigenvalues[-1] > 0 else 1.0  # of a basis that is 0: it stays 0
        scale = (eigenvalues.clamp(min=0) + self.floor * largest).rsqrt()
        root = vectors @ torch.diag(scale) @ vectors.T
        self.mixing.copy_((root + root.T) / 2)

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        return self.inner(offsets, radius) @ self.mixing

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}"


def orthonormalise(module: M) -> M:
    """Makes the basis of a point convolution, or of all that a network has, orthonormal; in place.

    The weights stay as they are, and mean something else: initialise afterwards. Tables of z are of the
    published bases, so ``transfer_init`` does not know the layers any more.

    Example::

        conv = pv.orthonormalise(pv.KPConvN(64, 64))
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"orthonormalise takes a layer or a network, got {type(module).__name__}")
    layers: list[Any] = [m for m in module.modules() if isinstance(getattr(m, "basis", None), Basis)]
    if not layers:
        raise ValueError(f"{type(module).__name__} has no PointConvolution, nor another layer with a basis")
    for layer in layers:
        if not isinstance(layer.basis, Orthonormal):
            layer.basis = Orthonormal(layer.basis).to(next(layer.parameters(), torch.empty(0)))
            layer.method = f"orthonormal {layer.method}" if getattr(layer, "method", None) else None
    return module
