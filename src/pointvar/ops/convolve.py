"""The convolution as custom ops: native on the CPU, plain torch elsewhere.

``reference_convolve.py`` says what each one computes. There v is given as ``values`` [E, K]; natively, a
known basis is named instead and evaluated on the way: ``values`` are then the offsets [E, D], ``scale`` the
estimator's weights q [E], ``parameters`` and ``constants`` those of the basis (see ``Basis.native``).
The columns are the parts of ``Neighborhood.transposed()``, where they are known. Rows and columns are
visited in the given orders, which changes nothing but the speed (see ``Neighborhood.orders``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pointvar.ops import _operator, native
from pointvar.ops import reference_convolve as reference

if native.available:
    from pointvar.ops import native_convolve

    _kernels: Any = native_convolve
else:
    _kernels = None

convolve = _operator(reference.convolve, _kernels)
convolve_backward = _operator(reference.convolve_backward, _kernels)
project = _operator(reference.project, _kernels)
project_backward = _operator(reference.project_backward)
second_moment = _operator(reference.second_moment, _kernels)


@convolve.register_fake
def _(features, values, weight, row_offsets, indices, *unused, **_unused):  # type: ignore[no-untyped-def]
    m = row_offsets.shape[0] - 1
    return weight.new_empty(m, weight.shape[2]), values.new_empty(m, weight.shape[0])


@convolve_backward.register_fake
def _(grad_out, grad_response, features, values, weight, row_offsets, indices, scale, parameters, *rest):  # type: ignore[no-untyped-def]
    inputs = (features, values, weight, scale, parameters)
    return tuple(
        values.new_empty(0) if t is None or not w else torch.empty_like(t)
        for t, w in zip(inputs, rest[-1], strict=True)
    )


@project.register_fake
def _(features, values, row_offsets, indices):  # type: ignore[no-untyped-def]
    return values.new_empty(row_offsets.shape[0] - 1, values.shape[1] * features.shape[1])


@project_backward.register_fake
def _(grad, features, values, row_offsets, indices, wanted):  # type: ignore[no-untyped-def]
    return tuple(t.new_empty(t.shape if w else 0) for t, w in zip((features, values), wanted, strict=True))


@second_moment.register_fake
def _(features, *unused, **_unused):  # type: ignore[no-untyped-def]
    return features.new_empty((), dtype=torch.float64)


_LEFT_OUT: Any = (None,) * 7 + ("values", None)  # torch does not pass what a caller leaves out


def _save_convolve(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    every = (*inputs, *_LEFT_OUT[len(inputs) - 5 :])
    ctx.save_for_backward(*every[:-2])
    ctx.basis, ctx.constants = every[-2:]


def _convolve_gradient(ctx: Any, grad_out: Tensor, grad_response: Tensor) -> tuple[Any, ...]:
    order = (0, 1, 2, 5, 6)  # features, values, weight, scale, parameters
    needed = (*ctx.needs_input_grad, False, False)
    wanted = [bool(needed[i]) for i in order]
    grads = convolve_backward(grad_out, grad_response, *ctx.saved_tensors, ctx.basis, ctx.constants, wanted)
    result: list[Any] = [None] * len(ctx.needs_input_grad)
    for i, w, grad in zip(order, wanted, grads, strict=True):
        if w:
            result[i] = grad
    return tuple(result)


def _save_project(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _project_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:2])
    grads = project_backward(grad, *ctx.saved_tensors, wanted)
    return *(g if w else None for g, w in zip(grads, wanted, strict=True)), None, None


convolve.register_autograd(_convolve_gradient, setup_context=_save_convolve)
project.register_autograd(_project_gradient, setup_context=_save_project)
