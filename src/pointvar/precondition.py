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
from typing import Any

import torch
from torch import Tensor, nn

from pointvar.basis import Basis
from pointvar.cloud import kind_of

__all__ = ["Preconditioned", "coordinates_of", "overlap", "preconditioner", "weight_of"]

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


class Preconditioned(nn.Module):
    """Abstract: a layer with a basis and a weight W, ``[K, C, O]``, that may be learned as V.

    Args:
        basis: the K functions.
        channels: C and O.
        precondition: the parameter is V, ``coordinates``, and ``weight`` is computed from it. Otherwise the
            parameter is ``weight``.

    The parameter is made, not drawn.
    """

    preconditioner: Tensor

    def __init__(self, basis: Basis, channels: tuple[int, int], precondition: bool) -> None:
        super().__init__()
        self.basis, self.precondition = basis, precondition
        self._shown = _Shown()
        self._radius: float | None = None
        learned = nn.Parameter(torch.empty(basis.size, *channels))
        if precondition:
            self.coordinates = learned
            self.register_buffer("preconditioner", torch.eye(basis.size))
        else:
            self.weight = learned
        self.register_state_dict_pre_hook(_save_written)
        self.register_state_dict_post_hook(_save_weight)
        self.register_load_state_dict_pre_hook(_load_weight)
        self.register_load_state_dict_post_hook(_settle_weight)

    @property
    def weight(self) -> Tensor:
        """W, ``[K, C, O]``, as published. What is written into it in place counts from then on."""
        if self.precondition:
            if self._shown.written() is not None:
                self._take_over()
            return self._shown.show(weight_of(self.preconditioner, self.coordinates))
        found = self._parameters.get("weight", self.__dict__.get("weight"))
        if found is None:
            raise AttributeError("a convolution whose weight was taken away")
        return found

    @weight.setter
    def weight(self, value: Tensor) -> None:
        if not self.precondition:  # what torch puts in the place of a parameter: pruning, weight norm
            self.__dict__["weight"] = value
            return
        if not isinstance(value, Tensor) or value.shape != self.coordinates.shape:
            shapes = f"{list(self.coordinates.shape)}, got {kind_of(value)}"
            raise ValueError(f"the weight of this convolution must have shape {shapes}")
        self._shown.forget()
        with torch.no_grad():
            self.coordinates.copy_(coordinates_of(self.preconditioner, value.to(self.coordinates)))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """With preconditioning, a parameter in the place of the weight is a value of it."""
        if name == "weight" and param is not None and "coordinates" in self._parameters:
            self.weight = param.detach()
        else:
            super().register_parameter(name, param)

    def _factors(self, edges: int) -> tuple[Tensor, Tensor | None]:
        """W alone; or V, and the M to mix the functions with, which takes less time if edges are few.

        The output is the same, as phi W = (phi M) V. A compiled graph serves any number of edges.
        """
        if not self.precondition:
            return self.weight, None
        self._take_over()
        _, inputs, outputs = self.coordinates.shape
        if not torch.compiler.is_compiling() and edges < 8 * inputs * outputs:
            return self.coordinates, self.preconditioner
        return weight_of(self.preconditioner, self.coordinates), None

    def _take_over(self) -> None:
        """With preconditioning: what was written into the weight since it was asked for."""
        if torch.compiler.is_compiling():
            return
        written = self._shown.written()
        self._shown.forget()
        if written is not None:
            self.weight = written

    def __getstate__(self) -> dict[str, Any]:
        if self.precondition:
            self._take_over()
        return self.__dict__

    @property
    def learned(self) -> Tensor:
        """The parameter behind the weight: itself, or with preconditioning its coordinates."""
        return self.coordinates if self.precondition else self.weight

    @torch.no_grad()
    def refresh_precondition(self, radius: float | None = None) -> None:
        """Preconditions for the basis as it is now; the weight stays.

        A basis that is learned changes. The coordinates of momenta in an optimiser stay as they were.

        Args:
            radius: of the receptive field, where the basis sees it; default: the last one given, or that
                which the basis was made for.
        """
        if not self.precondition:
            return
        self._radius = self._radius if radius is None else radius
        weight = self.weight
        self.preconditioner.copy_(preconditioner(self.basis, self._radius))
        self.weight = weight


class _Shown:
    """The weight that was computed for somebody, who may write into it. No copy and no file has it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.weight: Tensor | None = None
        self.before: Tensor | None = None

    def show(self, weight: Tensor) -> Tensor:
        """The weight, in the memory of the one shown before if it is the same, so that either may be written
        into: ``conv.weight.mul_(2 / conv.weight.std())``."""
        watched = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
        if not watched:
            return weight
        if self.weight is not None and self.before is not None and _same(weight, self.before):
            weight.data = self.weight.data
        else:
            self.before = weight.detach().clone()
        self.weight = weight
        return weight

    def written(self) -> Tensor | None:
        """The weight, if it is not as it was: no version tells what was written by way of ``.data``."""
        if torch.compiler.is_compiling() or self.weight is None or self.before is None:
            return None
        return None if _same(self.weight, self.before) else self.weight.detach()

    def __reduce__(self) -> Any:
        return _Shown, ()


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _save_written(conv: nn.Module, *_: Any) -> None:
    if isinstance(conv, Preconditioned) and conv.precondition:
        conv._take_over()


def _save_weight(conv: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Puts W into a state dict."""
    if isinstance(conv, Preconditioned) and conv.precondition:
        weight = weight_of(state[prefix + "preconditioner"], state[prefix + "coordinates"])
        state[prefix + "weight"] = conv._shown.show(weight)  # who loads by hand copies into it


def _load_weight(conv: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Takes what a layer with preconditioning, or one without, has put into a state dict."""
    weight, known = state.get(prefix + "weight"), [prefix + "preconditioner", prefix + "coordinates"]
    if weight is None or not isinstance(conv, Preconditioned):
        return
    saved = [state.get(name) for name in known]
    if not conv.precondition:
        for name in known:
            state.pop(name, None)
        return
    conv._shown.forget()
    del state[prefix + "weight"]
    matrix, coordinates = saved
    if matrix is not None and coordinates is not None and torch.equal(weight_of(matrix, coordinates), weight):
        return
    # W alone counts: V is found when basis and preconditioner are there, after all is loaded.
    conv.__dict__["_arriving"] = weight, matrix is None
    state[known[0]] = conv.preconditioner.detach().clone() if matrix is None else matrix
    state[known[1]] = weight.detach().clone()


def _settle_weight(conv: nn.Module, _: Any) -> None:
    weight, refresh = conv.__dict__.pop("_arriving", (None, False))
    if isinstance(conv, Preconditioned) and weight is not None and weight.shape == conv.learned.shape:
        if refresh:
            conv.refresh_precondition()
        conv.weight = weight
