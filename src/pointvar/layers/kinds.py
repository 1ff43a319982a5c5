"""Which types of layers can be initialised: those that are linear in their weights, ours and anyone's.

A registered type says which of its parameters are the weights, and, if it can, how to compute the second
moment Z of what they multiply: Var[out] = Z Var[w].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar.convolution import PointConvolution

SecondMoment = Callable[..., Tensor]


@dataclass(frozen=True)
class Kind:
    """How a type of layer is initialised; see ``register_layer``."""

    weight: tuple[str, ...]
    bias: tuple[str, ...]
    second_moment: SecondMoment | None
    out_dim: int
    kept: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    """Weights in front of what is not linear inside the layer; drawn from its input, before the others."""
    late: bool = False
    """A layer that is set behind its call, when all inside it are."""
    narrow: bool = False
    """Its ``forward`` takes a weight of any number of outputs."""


_KINDS: dict[type | str, Kind] = {}


def register_layer(
    layer: type[nn.Module] | str,
    weight: str | Sequence[str] = "weight",
    bias: str | Sequence[str] = "bias",
    second_moment: SecondMoment | None = None,
    out_dim: int = 0,
    kept: str | Sequence[str] = (),
) -> None:
    r"""Teaches the initialisation a type of layer whose output is linear in its weights.

    Args:
        layer: the type, or its full name (``"package.module.Class"``) where importing it is not wanted.
            Subclasses count too, unless they are registered themselves.
        weight: the parameters to draw, by name inside the module; ``*`` matches any part, as in
            ``"lins.*.weight"``. If there are several, they share one variance.
        bias: the parameters that are added, and set to 0; names that do not exist are ignored.
        second_moment: ``second_moment(module, *args, **kwargs)`` gives Z, the mean over outputs of the
            squared norm of what the weights multiply, for the arguments of a call. Without it the layer is
            measured by a probe: unit Gaussian weights, and the second moment of the output.
        out_dim: the dimension of the weight that counts the outputs, for orthogonal draws.
        kept: parameters that are well as the layer itself draws them. Others that are named nowhere are in
            the report, as left alone.

    Example::

        pv.register_layer(MyConv, weight=("kernel", "skip.weight"))
    """
    if not (isinstance(layer, str) or (isinstance(layer, type) and issubclass(layer, nn.Module))):
        raise TypeError(f"layer must be a type of nn.Module or its full name, got {layer!r}")
    _KINDS[layer] = Kind(_names(weight), _names(bias), second_moment, out_dim, _names(kept))


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def kind_of(module: nn.Module) -> Kind | None:
    """The rule for a module, that of its nearest ancestor in the registry; ``None`` if there is none.

    A module with a ``forward`` of its own is measured by a probe: the ancestor's formula may not hold.
    """
    for ancestor in type(module).__mro__:
        kind = _KINDS.get(ancestor) or _KINDS.get(f"{ancestor.__module__}.{ancestor.__qualname__}")
        if kind is not None:
            same = getattr(module.forward, "__func__", None) is getattr(ancestor, "forward", None)
            return kind if same else replace(kind, second_moment=None)
    return None


def unknown_kind(module: nn.Module) -> Kind | str:
    """A rule to try for a module without one, that it is linear in the weights of its own; or why not."""
    own = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    # Flat weights, as of e3nn, have one dimension, like gains and biases. Those are not called weights.
    weights = {name: p for name, p in own.items() if p.dim() > 1 or name.startswith("weight")}
    if not weights:
        return f"no rule for {type(module).__name__}"
    if not any(p.any() for p in weights.values()):
        return "0 on purpose"
    inside = sum(p.numel() for p in module.parameters())
    if sum(p.numel() for p in weights.values()) < 0.1 * inside:
        return f"no rule for {type(module).__name__}, which holds other layers"
    names = tuple(name for name, p in weights.items() if p.any())
    return Kind(names, tuple(n for n in own if "bias" in n), None, 0 if len(names) > 1 else -1, late=True)


# Z, exactly: the mean over outputs of the squared norm of what the weights multiply, in float64.


def _point_convolution(module: Any, features: Tensor, hood: Any) -> Tensor:
    return module.second_moment(features, hood)


def _linear(module: nn.Module, input: Tensor) -> Tensor:
    return _total(input) / input[..., 0].numel()


def _total(input: Tensor) -> Tensor:
    """The sum of all squares; in one reduction, which takes half the time of squares in float64."""
    return torch.linalg.vector_norm(input, dtype=torch.float64).square()


def _bilinear(module: nn.Module, input1: Tensor, input2: Tensor) -> Tensor:
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


def pointwise(module: Any) -> bool:
    """Whether a layer is the same linear map at every place: each output sees the channels at one."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        ones = {*module.kernel_size, *module.stride} == {1}
        return ones and not any(module._reversed_padding_repeated_twice)
    return isinstance(module, nn.Linear)


def _convolution(module: Any, input: Tensor) -> Tensor:
    """The squares of the inputs, summed over each window and the channels of each group."""
    if pointwise(module):
        return _total(input) * module.in_channels / module.groups / input.numel()
    power, ones = _power(module, input)
    padding: Any = module.padding
    if module.padding_mode != "zeros":
        power = functional.pad(power, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = 0
    convolve = _CONVOLVE[len(module.kernel_size)]
    return convolve(power, ones, None, module.stride, padding, module.dilation, module.groups).mean()


def _transposed_convolution(module: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
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


for _image in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_layer(_image, second_moment=_convolution)
for _type in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    register_layer(_type, second_moment=_transposed_convolution, out_dim=1)
register_layer(nn.Linear, second_moment=_linear)
register_layer(nn.Bilinear, second_moment=_bilinear)
_KINDS[nn.MultiheadAttention] = Kind(
    weight=("out_proj.weight",),
    bias=("in_proj_bias", "out_proj.bias"),
    second_moment=None,
    out_dim=0,
    kept=("bias_k", "bias_v"),
    inner=("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
)
register_layer(
    PointConvolution,
    weight=("weight", "coordinates"),  # the one or the other
    second_moment=_point_convolution,
    out_dim=2,
    kept=("basis.*", "estimator.*", "preconditioner"),
)
for _known, _kind in list(_KINDS.items()):
    _KINDS[_known] = replace(_kind, narrow=_kind.second_moment is not None)

# PyTorch Geometric, by name, so that it need not be there. All are linear in the weights named.
_PYG = "torch_geometric.nn."
register_layer(_PYG + "dense.linear.Linear", second_moment=_linear)
for _name, _weights in {
    "gcn_conv.GCNConv": ("lin.weight",),
    "sg_conv.SGConv": ("lin.weight",),
    "sage_conv.SAGEConv": ("lin_l.weight", "lin_r.weight"),
    "graph_conv.GraphConv": ("lin_rel.weight", "lin_root.weight"),
    "cheb_conv.ChebConv": ("lins.*.weight",),
    "tag_conv.TAGConv": ("lins.*.weight",),
    "rgcn_conv.RGCNConv": ("weight", "root"),
    "le_conv.LEConv": ("lin1.weight", "lin2.weight", "lin3.weight"),
}.items():
    _biases = ("bias", *(w.removesuffix("weight") + "bias" for w in _weights))
    register_layer(_PYG + "conv." + _name, weight=_weights, bias=_biases)
