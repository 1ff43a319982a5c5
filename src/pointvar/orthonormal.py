r"""Bases whose functions overlap, made orthonormal: the same layer, in coordinates that train well.

Functions that are nearly the same, such as wide hats around near kernel points, give a layer that hardly
tells one neighbourhood from another, and whose weights act against each other. With

.. math:: C = \mathrm{E}[b b^T], \qquad \tilde b = (C + \epsilon \lambda_1 I)^{-1/2} \, b

the functions are orthonormal over a receptive field and each stays as near to its original as it can. What
a layer is able to represent does not change: a weight :math:`\tilde W` does the same as
:math:`W = (C + \epsilon \lambda_1 I)^{-1/2} \tilde W` does without.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pointvar.basis import Basis

__all__ = ["Orthonormal", "orthonormalise"]

M = TypeVar("M", bound=nn.Module)
_OFFSETS, _CENTRE = 8192, 1 / 16
"""Offsets that stand for a receptive field, and the share of the query itself, one of 16 neighbours."""


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
        offsets = _receptive_field(self.dim or 3)
        nominal = radius or getattr(self.inner, "radius", None) or 1.0
        basis = copy.deepcopy(self.inner).to("cpu", torch.float64)  # a copy: statistics of a norm stay
        values = basis(offsets, torch.full_like(offsets[:, :1], nominal))
        if values.shape != (len(offsets), self.size) or not bool(values.isfinite().all()):
            raise ValueError(
                f"{type(self.inner).__name__} must give [E, K] = [{len(offsets)}, {self.size}] finite "
                f"values, got shape {list(values.shape)}, {int((~values.isfinite()).sum())} values not finite"
            )
        eigenvalues, vectors = torch.linalg.eigh(values.T @ values / len(values))
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


def _receptive_field(dim: int) -> Tensor:
    """Offsets ``[E, D]`` of a surface through the centre, in all orientations, and of the centre itself."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(_OFFSETS, dim, generator=generator, dtype=torch.float64)
    distance = torch.rand(_OFFSETS, 1, generator=generator, dtype=torch.float64) ** (1 / min(dim, 2))
    offsets = direction / direction.norm(dim=1, keepdim=True) * distance
    offsets[: round(_CENTRE * _OFFSETS)] = 0
    return offsets
