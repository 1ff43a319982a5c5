"""Which layers can be initialised: those that are linear in their weights, ours and anyone's.

A registered type says which of its parameters are the weights, and, if it can, how to compute the second
moment Z of what they multiply: Var[out] = Z Var[w]. The outermost registered module owns all inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from pointvar.convolution import PointConvolution
from pointvar.init import moments

SecondMoment = Callable[..., Tensor]
Select = type | tuple[type, ...] | str | Sequence[str] | Callable[[str, nn.Module], bool] | None
Target = float | Mapping[str, float] | Callable[[str, nn.Module], float]


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
    """The rule for a module, that of its nearest ancestor in the registry; ``None`` if there is none."""
    for ancestor in type(module).__mro__:
        kind = _KINDS.get(ancestor) or _KINDS.get(f"{ancestor.__module__}.{ancestor.__qualname__}")
        if kind is not None:
            return kind
    return None


class Layer:
    """One layer of a model that is linear in its weights: ``name``, ``module``, and what to set."""

    def __init__(self, name: str, module: nn.Module, kind: Kind) -> None:
        self.name = name or type(module).__name__
        self.module, self.kind = module, kind
        parameters = dict(module.named_parameters())
        self.weights = [p for n, p in parameters.items() if _matches(n, kind.weight)]
        self.biases = [p for n, p in parameters.items() if _matches(n, kind.bias)]

    def obstacle(self) -> str | None:
        """Why the layer cannot be set, if so."""
        if not self.weights and any(is_parametrized(m) for m in self.module.modules()):
            return "its weight is parametrised (weight norm, spectral norm, ...)"
        if not self.weights:
            return f"it has no parameter named {' or '.join(self.kind.weight)}"
        if any(isinstance(w, nn.parameter.UninitializedParameter) for w in self.weights):
            return "its weights are lazy: run the model once before"
        if not any(w.requires_grad for w in self.weights):
            return "frozen"
        return None

    @property
    def type(self) -> str:
        """What to call it: the method of a point convolution, else the class."""
        return getattr(self.module, "method", None) or type(self.module).__name__

    def fans(self) -> tuple[int, int, int]:
        """C, K C and K O: channels in, and how many weights each output and each input channel has.

        K counts the basis functions, or the taps of an image convolution."""
        weight, out_dim = self.weights[0], self.kind.out_dim
        if len(self.weights) != 1 or weight.dim() < 2:
            raise ValueError(f"{self.name} ({self.type}) has no single fan: set it by variance_init")
        channels = weight.shape[0 if out_dim == 1 else 1]
        return channels, weight.numel() // weight.shape[out_dim], weight.numel() // channels

    @torch.no_grad()
    def draw(
        self, variance: float, generator: torch.Generator | None = None, orthogonal: bool = False
    ) -> None:
        """Draws the weights with this variance: Gaussian, or with orthogonal rows or columns."""
        for weight in self.weights:
            value = _normal(weight, generator)
            if orthogonal and weight.dim() > 1:
                value = _orthogonal(value, self.kind.out_dim)
            weight.copy_(value.mul_(variance**0.5))

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        for weight in self.weights:
            weight.mul_(factor)

    @torch.no_grad()
    def zero_bias(self) -> None:
        for bias in self.biases:
            bias.zero_()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _normal(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    """Unit Gaussian numbers like ``weight``, from a generator of any device."""
    device = weight.device if generator is None else generator.device
    return torch.randn(weight.shape, generator=generator, dtype=weight.dtype, device=device).to(weight.device)


def _orthogonal(value: Tensor, out_dim: int) -> Tensor:
    """The orthogonal matrix nearest in kind to a Gaussian one, with entries of unit variance."""
    matrix = value.movedim(out_dim, 0).flatten(1)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    q, r = torch.linalg.qr(tall.double())
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0) * tall.shape[0] ** 0.5
    matrix = (q if tall is matrix else q.T).to(value.dtype)
    return matrix.reshape(value.movedim(out_dim, 0).shape).movedim(0, out_dim).contiguous()


def find_layers(model: nn.Module, select: Select = None) -> tuple[list[Layer], dict[str, str]]:
    """The layers of a model in order of registration, and what is left alone: name -> why.

    Args:
        model: any module.
        select: which layers: a type or several, a name pattern or several (``"encoder.*"``), a predicate
            ``(name, module) -> bool``; default: all.
    """
    chosen = predicate(select)
    layers: list[Layer] = []
    left: dict[str, str] = {}
    owners: dict[int, str] = {}
    for name, module, kind in outermost(model):
        if kind is None:
            left[name] = f"no rule for {type(module).__name__}"
            continue
        layer = Layer(name, module, kind)
        twin = next((owners[id(w)] for w in layer.weights if id(w) in owners), None)
        obstacle = layer.obstacle()
        if not chosen(layer.name, module):
            left[layer.name] = "not selected"
        elif obstacle is not None:
            left[layer.name] = obstacle
        elif twin is not None:
            left[layer.name] = f"shares its weight with {twin}"
        else:
            layers.append(layer)
            owners.update((id(w), layer.name) for w in layer.weights)
    return layers, left


def outermost(model: nn.Module) -> Iterator[tuple[str, nn.Module, Kind | None]]:
    """Registered modules, and others that have parameters of their own; nothing inside a registered one."""
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, Kind | None]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        kind = kind_of(module)
        if kind is not None:
            yield name, module, kind
            return
        if next(module.parameters(recurse=False), None) is not None:
            yield name or type(module).__name__, module, None
        for child_name, child in module.named_children():
            yield from visit(f"{name}.{child_name}" if name else child_name, child)

    return visit("", model)


def predicate(select: Select) -> Callable[[str, nn.Module], bool]:
    if select is None:
        return lambda name, module: True
    if isinstance(select, str):
        select = (select,)
    if isinstance(select, type):
        select = (select,)
    if callable(select):
        return select
    options = tuple(select)
    if options and all(isinstance(o, type) for o in options):
        types: Any = options
        return lambda name, module: isinstance(module, types)
    if options and all(isinstance(o, str) for o in options):
        patterns: Any = options
        return lambda name, module: _matches(name, patterns)
    raise TypeError(f"layers must be types, name patterns or a predicate, got {select!r}")


def nothing_to_set(model: nn.Module, left_alone: dict[str, str]) -> ValueError:
    why = left_alone or "it has no parameters"
    return ValueError(f"{type(model).__name__} has no layer that could be initialised: {why}")


def target_of(target: Target, layer: Layer) -> float:
    """The target variance of a layer: a number, by name pattern (1 where none matches), or by a function."""
    if isinstance(target, Mapping):
        value = next((v for p, v in target.items() if fnmatchcase(layer.name, p)), 1.0)
    elif callable(target):
        value = target(layer.name, layer.module)
    else:
        value = target
    if not 0 < value < float("inf"):
        raise ValueError(f"the target variance must be positive and finite, got {value} for {layer.name}")
    return float(value)


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
    "spline_conv.SplineConv": ("weight", "lin.weight"),
    "rgcn_conv.RGCNConv": ("weight", "root"),
    "le_conv.LEConv": ("lin1.weight", "lin2.weight", "lin3.weight"),
}.items():
    register_layer(_PYG + "conv." + _name, weight=_weights, bias=("bias", "*.bias"))
