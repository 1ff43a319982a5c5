"""Which kernels run on which device: decided here, and nowhere else.

Plain torch defines every result and serves any device. A faster backend is a line in ``BACKENDS``: a module
with the functions of ``reference.py``, or some, and one with those of ``reference_convolve.py``.

=============  ======================  ========================
runs on        geometry                convolution
=============  ======================  ========================
any device     ``reference.py``        ``reference_convolve.py``
the CPU        ``native.py``           ``native_convolve.py``
a GPU          ``triton_geometry.py``  ``triton_convolve.py``
=============  ======================  ========================
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata, util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from pointvar.ops import (
    native,
    native_convolve,
    reference,
    reference_convolve,
    triton_convolve,
    triton_geometry,
)
from pointvar.ops.checks import on_one_device


class Backend(NamedTuple):
    name: str
    geometry: ModuleType
    convolution: ModuleType


PLAIN = Backend("reference", reference, reference_convolve)
NATIVE = Backend("native", native, native_convolve)
TRITON = Backend("triton", triton_geometry, triton_convolve)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _chosen() -> dict[str, Backend]:
    """The backend of each device that has one of its own; triton itself is imported when a kernel starts."""
    triton = util.find_spec("triton") is not None
    if native.WISH == "triton" and not triton:
        raise ValueError("POINTVAR_BACKEND=triton, but there is no triton here: pip install triton")
    chosen = {"cpu": NATIVE} if native.available else {}
    if native.WISH == "triton" and INTERPRETED:
        chosen["cpu"] = TRITON
    elif native.WISH in ("", "triton") and triton and not INTERPRETED:
        chosen["cuda"] = TRITON
    return chosen


BACKENDS = _chosen()


def of(device: str) -> Backend:
    return BACKENDS.get(device, PLAIN)


def convolution(tensor: Tensor) -> Any:
    """The kernels of the convolution for the device of a tensor."""
    return of(tensor.device.type).convolution


def at_once(tensor: Tensor) -> Callable[..., tuple[Tensor, Tensor, list[int]]] | None:
    """The function of a device that makes a whole hierarchy in one call, where it has one.

    What that gives is defined by the operators that make its parts (see ``csrc/levels.hpp``).
    """
    return getattr(of(tensor.device.type).geometry, "geometry", None)


def native_info() -> dict[str, Any]:
    """Which kernels run and how: on the CPU, with which threads, and on every device that is here."""
    here = ["cpu", *(name for name in ("cuda", "mps", "xpu") if _is_here(name))]
    return {"backend": of("cpu").name, **native.facts(), "devices": {name: describe(name) for name in here}}


def describe(device: str) -> str:
    """What runs on a kind of device, and if it is plain torch, why."""
    name = of(device).name
    if name == "triton":
        interpreted = ", interpreted: for tests" if INTERPRETED else ""
        return f"triton {metadata.version('triton')}{interpreted}"
    if name == "native":
        return f"native ({native.facts()['instruction_set']})"
    if native.WISH == "reference":
        return "reference (plain torch): POINTVAR_BACKEND asks for it"
    if device == "cpu":
        return "reference (plain torch): the native module cannot be imported"
    if device != "cuda":
        return "reference (plain torch): there are no kernels for it"
    if native.WISH == "native":
        return "reference (plain torch): POINTVAR_BACKEND=native speaks of the CPU"
    if INTERPRETED:
        return "reference (plain torch): with TRITON_INTERPRET=1 kernels run on the CPU alone"
    return "reference (plain torch): triton is not installed"


def _is_here(device: str) -> bool:
    found = getattr(torch.backends if device == "mps" else torch, device, None)
    return found is not None and bool(found.is_available())


_LIBRARY = torch.library.Library("pointvar", "FRAGMENT")


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """``pointvar::name`` from ``name(arguments) -> results``, at the level of torch's dispatcher.

    ``torch.library.custom_op`` takes 60 microseconds more for each call, which counts where clouds are small,
    and imports the compiler at the first one.
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
    """``pointvar::name`` from its definition in plain torch, or by a backend's kernel of that name."""
    name = definition.__name__

    def run(tensor: Tensor, *rest: Any) -> Any:
        return getattr(of(tensor.device.type).geometry, name, definition)(tensor, *rest)

    return define(name + torch.library.infer_schema(definition, mutates_args=()), run, fake)


def give_gradient(operator: Any, backward: Callable[..., Any]) -> None:
    """Lets an operator be differentiated, once, by ``backward(ctx, grad)``; its inputs are saved there."""
    torch.library.register_autograd(
        operator,
        once_differentiable(backward),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        lib=_LIBRARY,
    )
