"""The edges of a neighbourhood and what is evaluated on them: the one description that operators take.

What is evaluated is v = q b, an estimator's weight times a basis, one number per edge and basis function. It
is given as ``Values``, or as a ``Known`` basis that kernels evaluate on the way, so that v is never stored.
With unit response it is v / s, where s is the norm of the sum of v over a query's neighbours; mixed, v M.

Shapes (M queries, N support points, E edges, K basis functions, D dimensions):
    - row_offsets: ``[M + 1]``; indices: ``[E]``, as in ``Neighborhood``
    - values: ``[E, K]``; offsets: ``[E, D]``; scale: ``[E]``
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    unit_response: bool = False
    """Divides v by its response."""
    mixing: Tensor | None = None
    """``[K, K]``, symmetric, without gradients: v is multiplied by it in the end."""
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
        if parameters is not None and parameters.dtype != offsets.dtype:
            parameters = parameters.to(offsets.dtype)
        return offsets, functions.scale, parameters

    def on(self, operand: Any, scale: Any, parameters: Any) -> Edges:
        """The same edges with these operands."""
        functions = self.functions
        if isinstance(functions, Values):
            return self._replace(functions=Values(operand))
        basis = functions.basis._replace(offsets=operand, parameters=parameters)
        return self._replace(functions=Known(basis, functions.size, scale))

    @property
    def values(self) -> Tensor:
        """v, where it is given."""
        if not isinstance(self.functions, Values):
            raise ValueError(f"these kernels take a basis as its values, got {self.functions.basis.name!r}")
        if self.unit_response or self.mixing is not None:
            raise ValueError(
                "these kernels take values that are divided by their response, and mixed, already"
            )
        return self.functions.values

    def valued(self) -> Edges:
        """The same edges with v given, still to be divided and mixed."""
        if isinstance(self.functions, Values):
            return self
        with exact(self.indices):
            return self._replace(functions=Values(_evaluated(self.functions)))

    def evaluated(self) -> Edges:
        """The same edges with v given, divided by its response and mixed where that is asked for."""
        values = self.valued().operands[0]
        with exact(self.indices):
            if self.unit_response:
                values = _divided(values, self.row_offsets, self.indices)
            if self.mixing is not None:
                values = values @ self.mixing
        return self._replace(functions=Values(values), unit_response=False, mixing=None)


def exact(like: Tensor) -> torch.autocast:
    """Operators decide on their precision themselves; geometry is never in a low one."""
    return torch.autocast(like.device.type, enabled=False)


def _evaluated(functions: Known) -> Tensor:
    if functions.otherwise is None:
        raise ValueError(f"no kernel here knows the basis {functions.basis.name!r}, and nothing else does")
    return functions.otherwise()


def _divided(values: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
    """v / s, 0 where s is 0; safe to differentiate."""
    rows = torch.repeat_interleave(row_offsets.diff(), output_size=values.shape[0])
    # The projection of 1, seen by all: unlike index_add on a GPU it has the same bits in every run.
    one = values.new_ones(1, 1), values, row_offsets, torch.zeros_like(indices)
    response: Tensor = torch.ops.pointvar.project(*one)
    largest = response.detach().abs().amax(1, keepdim=True)  # so that no square under- or overflows
    alive = largest > 0
    largest = torch.where(alive, largest, 1)
    squared = (response / largest).square().sum(1, keepdim=True)
    norm = torch.where(alive, squared, 1).sqrt() * largest
    return torch.where(alive[rows], values / norm[rows], 0)
