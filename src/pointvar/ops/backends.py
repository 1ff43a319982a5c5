"""Which kernels run on which device: decided here, and nowhere else.

Plain torch defines every result and serves any device. A faster backend is a line in ``BACKENDS``: a module
with the functions of ``reference.py``, or some, and one with those of ``reference_convolve.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointvar.ops import native, native_convolve, reference, reference_convolve
from pointvar.ops.checks import on_one_device


class Backend(NamedTuple):
    geometry: ModuleType
    convolution: ModuleType


PLAIN = Backend(reference, reference_convolve)
BACKENDS: dict[str, Backend] = {}
if native.available:
    BACKENDS["cpu"] = Backend(native, native_convolve)


def convolution(tensor: Tensor) -> Any:
    """The kernels of the convolution for the device of a tensor."""
    return BACKENDS.get(tensor.device.type, PLAIN).convolution


def at_once(tensor: Tensor) -> Callable[..., tuple[Tensor, Tensor, list[int]]] | None:
    """The function of a device that makes a whole hierarchy in one call, where it has one.

    What that gives is defined by the operators that make its parts (see ``csrc/levels.hpp``).
    """
    backend = BACKENDS.get(tensor.device.type, PLAIN)
    return getattr(backend.geometry, "geometry", None)


def operator(definition: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """``pointvar::name`` from its definition in plain torch, with each backend's kernel of that name."""
    name = definition.__name__
    operator = torch.library.custom_op(f"pointvar::{name}", definition, mutates_args=())
    for device, backend in BACKENDS.items():
        if hasattr(backend.geometry, name):
            operator.register_kernel(device)(getattr(backend.geometry, name))
    operator.register_fake(on_one_device(fake))
    return operator
