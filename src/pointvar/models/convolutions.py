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
from pointvar.nn.norm import Norm
from pointvar.orthonormal import orthonormalise
from pointvar.registry import Registry

Part = str | nn.Module | Callable[..., Any]
Method = str | Callable[..., PointConvolution] | tuple[Part, Part]
"""A name of ``pointvar.methods``, a function like those there, or a pair (basis, estimator), of which each is
a name, a class or function that makes one, or an object, of which each layer gets a copy."""


@dataclass(frozen=True)
class Convolutions:
    """Makes the convolutions of a network: ``make(in_channels, out_channels, radius)``.

    A method is called with ``dim``, ``bias``, ``unit_response``, ``generator`` and, where they are given,
    ``num_basis`` and ``precondition``. One with a parameter ``radius`` that is left open (PointConv) gets the
    nominal radius of its receptive field, one with a parameter ``batch_norm`` gets that where the norm is
    ``"batch"``.
    """

    method: Method
    dim: int = 3
    num_basis: int | None = None
    unit_response: bool = False
    orthonormal: bool = False
    norm: Norm = "none"
    generator: torch.Generator | None = None
    precondition: bool = False

    def __call__(
        self, in_channels: int, out_channels: int, radius: float | None = None, bias: bool = False
    ) -> PointConvolution:
        method = self.method
        options: dict[str, Any] = {"bias": bias, "unit_response": self.unit_response}
        if self.precondition:
            options["precondition"] = True
        if isinstance(method, tuple):
            if len(method) != 2:
                raise ValueError(f"a method by parts is a pair (basis, estimator), got {method!r}")
            basis = self._part(method[0], bases, bases.Basis)
            estimator = self._part(method[1], estimators, estimators.Estimator)
            options["generator"] = self.generator
            conv = PointConvolution(in_channels, out_channels, basis, estimator, **options)
        else:
            named = _parameters(methods.METHODS.get(method) if isinstance(method, str) else method)
            if named.get("radius", 0) is None:
                options["radius"] = radius
            if "batch_norm" in named and self.norm == "batch":
                options["batch_norm"] = True
            conv = methods.resolve(method, in_channels, out_channels, **options, **self._options())
        return orthonormalise(conv) if self.orthonormal else conv

    def _options(self) -> dict[str, Any]:
        """What methods, bases and estimators are made with."""
        size = {} if self.num_basis is None else {"num_basis": self.num_basis}
        return {"dim": self.dim, "generator": self.generator, **size}

    def _part(self, part: Part, room: ModuleType, kind: type) -> Any:
        if isinstance(part, nn.Module):
            part = copy.deepcopy(part)
            if isinstance(part, (bases.Basis, estimators.Estimator)):
                part.reset_parameters(self.generator)  # each layer draws its own
            return part
        make: Any = part
        if isinstance(part, str):
            known = {name: found for name, found in vars(room).items() if name in room.__all__}
            classes = {name: c for name, c in known.items() if inspect.isclass(c) and c is not kind}
            make = Registry(kind.__name__.lower(), classes).resolve(part)
        named = _parameters(make)
        return make(**{name: value for name, value in self._options().items() if name in named})


def _parameters(function: Any) -> dict[str, Any]:
    """The parameters that a function names, with their defaults."""
    if not callable(function):
        return {}
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}
