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
from torch.nn import Parameter

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


_LIBRARY = torch.library.Library("pointvar", "FRAGMENT")


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """``pointvar::name`` from ``name(arguments) -> results``, at the level of torch's dispatcher.

    ``torch.library.custom_op`` takes 60 microseconds more for each call, which counts where clouds are small.
    """
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pointvar::{name}", on_one_device(fake), lib=_LIBRARY)
    return getattr(torch.ops.pointvar, name).default


def differentiate(operator: Any, recorded: Callable[..., Any]) -> None:
    """Lets ``recorded``, an autograd function around it, stand for it where gradients are wanted."""

    def choose(*arguments: Any) -> Any:
        if needs_gradient(*arguments):
            return recorded(*arguments)
        with below_autograd():
            return operator(*arguments)

    _LIBRARY.impl(operator._schema.name.split("::")[1], choose, "Autograd")


below_autograd = torch._C._AutoDispatchBelowAutograd
"""Inside, an operator runs without a look at gradients."""


def needs_gradient(*arguments: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


def unseen(*tensors: Tensor) -> bool:
    """Whether kernels may run without torch's dispatcher, which can take longer than they do.

    It must be asked where somebody wants to see the operators: a compiler, a mode, a transform of functions,
    or a tensor of another kind.
    """
    return (
        tensors[0].device.type in BACKENDS
        and all(type(tensor) in (Tensor, Parameter) for tensor in tensors)
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
    )


def operator(definition: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """``pointvar::name`` from its definition in plain torch, with each backend's kernel of that name."""
    name = definition.__name__
    operator = torch.library.custom_op(f"pointvar::{name}", definition, mutates_args=())
    for device, backend in BACKENDS.items():
        if hasattr(backend.geometry, name):
            operator.register_kernel(device)(getattr(backend.geometry, name))
    operator.register_fake(on_one_device(fake))
    return operator
