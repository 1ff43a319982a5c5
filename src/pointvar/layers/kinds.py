"""Which types of layers can be initialised: those that are linear in their weights, ours and anyone's.

A registered type says which of its parameters are the weights, and, if it can, how to compute the second
moment Z of what they multiply: Var[out] = Z Var[w].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from pointvar.convolution import PointConvolution
from pointvar.layers import moments

SecondMoment = Callable[..., Tensor]


@dataclass(frozen=True)
class Kind:
    """How a type of layer is initialised; see ``register_layer``."""

    weight: tuple[str, ...]
    bias: tuple[str, ...]
    second_moment: SecondMoment | None
    out_dim: int


_KINDS: dict[type | str, Kind] = {}


def register_layer(
    layer: type[nn.Module] | str,
    weight: str | Sequence[str] = "weight",
    bias: str | Sequence[str] = "bias",
    second_moment: SecondMoment | None = None,
    out_dim: int = 0,
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

    Example::

        pv.register_layer(MyConv, weight=("kernel", "skip.weight"))
    """
    if not (isinstance(layer, str) or (isinstance(layer, type) and issubclass(layer, nn.Module))):
        raise TypeError(f"layer must be a type of nn.Module or its full name, got {layer!r}")
    _KINDS[layer] = Kind(_names(weight), _names(bias), second_moment, out_dim)


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


for _image in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_layer(_image, second_moment=moments.convolution)
for _type in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    register_layer(_type, second_moment=moments.transposed_convolution, out_dim=1)
register_layer(nn.Linear, second_moment=moments.linear)
register_layer(nn.Bilinear, second_moment=moments.bilinear)
register_layer(PointConvolution, second_moment=moments.point_convolution, out_dim=2)

# PyTorch Geometric, by name, so that it need not be there. All are linear in the weights named.
_PYG = "torch_geometric.nn."
register_layer(_PYG + "dense.linear.Linear", second_moment=moments.linear)
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
