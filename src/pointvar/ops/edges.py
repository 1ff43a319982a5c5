"""The edges of a neighbourhood and what is evaluated on them: the one description that operators take.

What is evaluated is v = q b, an estimator's weight times a basis, one number per edge and basis function. It
is given as ``Values``, or as a ``Known`` basis that kernels evaluate on the way, so that v is never stored.

Shapes (M queries, N support points, E edges, K basis functions, D dimensions):
    - row_offsets: ``[M + 1]``; indices: ``[E]``, as in ``Neighborhood``
    - values: ``[E, K]``; offsets: ``[E, D]``; scale: ``[E]``; mixing: ``[K, K]``
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Values(NamedTuple):
    """v itself, from whatever made it."""

    values: Tensor

    @property
    def size(self) -> int:
        return self.values.shape[1]


class Native(NamedTuple):
    """A basis by its name among the kernels, what it sees, and its numbers."""

    name: str
    offsets: Tensor
    parameters: Tensor | None = None
    constants: tuple[float, ...] = ()
    mixing: Tensor | None = None
    """Symmetric: the basis is this times what the kernels know."""


class Known(NamedTuple):
    """A basis that kernels may know, with the estimator's weights."""

    basis: Native
    size: int
    """K"""
    scale: Tensor
    """q"""
    otherwise: Callable[[], Tensor] | None = None
    """Gives the values where the kernels at hand do not know the basis."""


class Edges(NamedTuple):
    """Which support points each query sees, and the functions evaluated there."""

    row_offsets: Tensor
    indices: Tensor
    functions: Values | Known
    transposed: Callable[[], tuple[Tensor, Tensor, Tensor]] | None = None
    """The edges by support point (``Neighborhood.transposed``), asked for where they are needed."""
    orders: Callable[[], tuple[Tensor, Tensor]] | None = None
    """Orders in which queries and support points are visited; these change nothing but the speed."""

    @property
    def num_queries(self) -> int:
        return self.row_offsets.shape[0] - 1

    @property
    def operands(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What can need gradients: values, or else offsets, scale and parameters."""
        functions = self.functions
        if isinstance(functions, Values):
            return functions.values, None, None
        offsets, parameters = functions.basis.offsets, functions.basis.parameters
        return offsets, functions.scale, None if parameters is None else parameters.to(offsets.dtype)

    @property
    def values(self) -> Tensor:
        """v, where it is given."""
        if isinstance(self.functions, Values):
            return self.functions.values
        raise ValueError(f"these kernels take a basis as its values, got {self.functions.basis.name!r}")

    def evaluated(self) -> Edges:
        """The same edges with v given."""
        functions = self.functions
        if isinstance(functions, Values):
            return self
        if functions.otherwise is None:
            raise ValueError(
                f"no kernel here knows the basis {functions.basis.name!r}, and nothing else does"
            )
        with torch.autocast(self.indices.device.type, enabled=False):  # geometry is never in low precision
            values = Values(functions.otherwise())
        return Edges(self.row_offsets, self.indices, values, self.transposed, self.orders)

    @property
    def mixing(self) -> Tensor | None:
        return None if isinstance(self.functions, Values) else self.functions.basis.mixing
