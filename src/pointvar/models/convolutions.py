"""The convolutions of a network: any method, or any basis with any estimator, made for each layer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from pointvar import basis as bases
from pointvar import estimator as estimators
from pointvar import methods
from pointvar.convolution import PointConvolution
from pointvar.geometry import Hierarchy
from pointvar.nn.norm import Norm
from pointvar.orthonormal import orthonormalise

Part = str | nn.Module | Callable[..., Any]
Method = str | Callable[..., PointConvolution] | tuple[Part, Part]
"""A name of ``pointvar.methods``, a function like those there, or a pair (basis, estimator), of which each is
a name, a class or function that makes one, or an object, of which each layer gets a copy."""


@dataclass(frozen=True)
class Convolutions:
    """Makes the convolutions of a network: ``make(in_channels, out_channels, radius)``.

    A method is called with ``dim``, ``bias``, ``unit_response``, ``generator`` and, where one is given,
    ``num_basis``. One with a parameter ``radius`` that is left open (PointConv) gets the nominal radius of
    its receptive field, one with a parameter ``batch_norm`` gets that where the norm is ``"batch"``.
    """

    method: Method
    dim: int = 3
    num_basis: int | None = None
    unit_response: bool = False
    orthonormal: bool = False
    norm: Norm = "none"
    generator: torch.Generator | None = None

    def __call__(
        self, in_channels: int, out_channels: int, radius: float | None = None, bias: bool = False
    ) -> PointConvolution:
        if isinstance(self.method, tuple):
            conv = self._pair(in_channels, out_channels, bias)
        else:
            conv = self._whole(self.method, in_channels, out_channels, radius, bias)
        return orthonormalise(conv) if self.orthonormal else conv

    def _whole(
        self,
        method: str | Callable[..., PointConvolution],
        in_channels: int,
        out_channels: int,
        radius: float | None,
        bias: bool,
    ) -> PointConvolution:
        options: dict[str, Any] = {
            "dim": self.dim,
            "bias": bias,
            "unit_response": self.unit_response,
            "generator": self.generator,
        }
        if self.num_basis is not None:
            options["num_basis"] = self.num_basis
        named = _parameters(methods.METHODS.get(method) if isinstance(method, str) else method)
        if named.get("radius", 0) is None:
            options["radius"] = radius
        if "batch_norm" in named and self.norm == "batch":
            options["batch_norm"] = True
        return methods.resolve(method, in_channels, out_channels, **options)

    def _pair(self, in_channels: int, out_channels: int, bias: bool) -> PointConvolution:
        if not isinstance(self.method, tuple) or len(self.method) != 2:
            raise ValueError(f"a method by parts is a pair (basis, estimator), got {self.method!r}")
        basis, estimator = self.method
        return PointConvolution(
            in_channels,
            out_channels,
            self._part(basis, bases, bases.Basis),
            self._part(estimator, estimators, estimators.Estimator),
            bias,
            self.unit_response,
            generator=self.generator,
        )

    def _part(self, part: Part, room: ModuleType, kind: type) -> Any:
        if isinstance(part, nn.Module):
            part = copy.deepcopy(part)
            if isinstance(part, (bases.Basis, estimators.Estimator)):
                part.reset_parameters(self.generator)  # each layer draws its own
            return part
        make = _named(part, room, kind) if isinstance(part, str) else part
        options: dict[str, Any] = {"dim": self.dim, "generator": self.generator}
        if self.num_basis is not None:
            options["num_basis"] = self.num_basis
        named = _parameters(make)
        return make(**{name: value for name, value in options.items() if name in named})


def _named(name: str, room: ModuleType, kind: type) -> Callable[..., Any]:
    """The basis or the estimator of that name."""
    classes = {key: getattr(room, key) for key in room.__all__ if inspect.isclass(getattr(room, key))}
    del classes[kind.__name__]
    if name not in classes:
        raise ValueError(f"there is no {kind.__name__.lower()} {name!r}; known are {', '.join(classes)}")
    return classes[name]


def _parameters(function: Any) -> dict[str, Any]:
    """The parameters that a function names, with their defaults."""
    if not callable(function):
        return {}
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


def check_levels(levels: object, count: int) -> None:
    """A network takes a hierarchy with as many levels as it has itself."""
    if not isinstance(levels, Hierarchy):
        raise TypeError(f"a network takes features and a Hierarchy, got {type(levels).__name__}")
    if len(levels) != count:
        raise ValueError(f"the network has {count} levels, the hierarchy {len(levels)}")
