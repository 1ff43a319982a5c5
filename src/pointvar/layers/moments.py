"""Z, exactly: the mean over outputs of the squared norm of what a layer's weights multiply.

All in float64, without autocast. For every layer here the output is a sum of weights times inputs, so with
independent weights of mean 0, Var[out] = Z Var[w].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def point_convolution(module: Any, features: Tensor, hood: Any) -> Tensor:
    return module.second_moment(features, hood)


def linear(module: nn.Module, input: Tensor) -> Tensor:
    return input.double().square().sum(-1).mean()


def bilinear(module: nn.Module, input1: Tensor, input2: Tensor) -> Tensor:
    return (input1.double().square().sum(-1) * input2.double().square().sum(-1)).mean()


_CONVOLVE: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def convolution(module: Any, input: Tensor) -> Tensor:
    """The squares of the inputs, summed over each window and the channels of each group."""
    power, ones = _power(module, input)
    padding: Any = module.padding
    if module.padding_mode != "zeros":
        power = functional.pad(power, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = 0
    convolve = _CONVOLVE[len(module.kernel_size)]
    return convolve(power, ones, None, module.stride, padding, module.dilation, module.groups).mean()


def transposed_convolution(module: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    """Each output sums over the inputs whose window covers it; at the borders there are fewer."""
    power, ones = _power(module, input)
    dims = len(module.kernel_size)
    padding = module.output_padding
    if output_size is not None:
        padding = module._output_padding(
            input, output_size, module.stride, module.padding, module.kernel_size, dims, module.dilation
        )
    convolve = _TRANSPOSED[dims]
    return convolve(
        power, ones, None, module.stride, module.padding, padding, module.groups, module.dilation
    ).mean()


def _power(module: Any, input: Tensor) -> tuple[Tensor, Tensor]:
    """Squared inputs summed over the channels of each group [B, G, ...], and a window of ones for each."""
    dims = len(module.kernel_size)
    batch = input if input.dim() == dims + 2 else input[None]
    power = batch.double().square().unflatten(1, (module.groups, -1)).sum(2)
    ones = torch.ones(module.groups, 1, *module.kernel_size, dtype=power.dtype, device=power.device)
    return power, ones
