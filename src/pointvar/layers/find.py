"""The layers of a model that can be initialised. The outermost registered module owns all inside it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from pointvar.convolution import PointConvolution
from pointvar.geometry.search import check_generator
from pointvar.layers.kinds import Kind, kind_of, unknown_kind
from pointvar.precondition import coordinates_of

Select = type | tuple[type, ...] | str | Sequence[str] | Callable[[str, nn.Module], bool] | None


class Layer:
    """One layer of a model that is linear in its weights: ``name``, ``module``, and what to set."""

    def __init__(self, name: str, module: nn.Module, kind: Kind) -> None:
        self.name = name or type(module).__name__
        self.module, self.kind = module, kind
        parameters = dict(module.named_parameters())
        self.weights = [p for n, p in parameters.items() if _matches(n, kind.weight)]
        self.biases = [p for n, p in parameters.items() if _matches(n, kind.bias)]
        self.inner = [p for n, p in parameters.items() if _matches(n, kind.inner)]
        self.kept = [p for n, p in parameters.items() if _matches(n, kind.kept)]
        named = (*kind.weight, *kind.bias, *kind.kept, *kind.inner)
        own = set(dict(module.named_parameters(recurse=False))) if kind.late else parameters
        self.unnamed = [f"{self.name}.{n}" for n in parameters if n in own and not _matches(n, named)]
        """Parameters inside of which the layer's rule says nothing."""
        self.dropped: list[str] = []
        """Weights that turned out to be none."""

    def obstacle(self) -> str | None:
        """Why the layer cannot be set, if so."""
        if not self.weights and any(is_parametrized(m) for m in self.module.modules()):
            return "its weight is parametrised (weight norm, spectral norm, ...)"
        if not self.weights:
            return f"it has no parameter named {' or '.join(self.kind.weight)}"
        if not all(w.requires_grad for w in self.weights):
            return "frozen"
        return None

    @property
    def type(self) -> str:
        """What to call it: the method of a point convolution, else the class."""
        return getattr(self.module, "method", None) or type(self.module).__name__

    def keep_weight(self, weight: nn.Parameter) -> str:
        """Takes one of the weights for the only one; its name."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        self.weights, others = [weight], [w for w in self.weights if w is not weight]
        self.dropped = [f"{self.name}.{names[id(other)]}" for other in others]
        return names[id(weight)]

    def fans(self) -> tuple[int, int, int] | None:
        """C, K C and K O: channels in, and how many weights each output and each input channel has.

        K counts the basis functions, or the taps of an image convolution; of a grouped one, C and O count
        the channels of a group. ``None`` for several weights, or one that is no matrix."""
        weight, out_dim = self.weights[0], self.kind.out_dim
        if len(self.weights) != 1 or weight.dim() < 2:
            return None
        in_dim = 0 if out_dim == 1 else 1
        groups = self.groups
        # Dimension 1 of an image convolution counts the channels of one group, dimension 0 those of all.
        channels, outputs = (weight.shape[d] // (groups if d == 0 else 1) for d in (in_dim, out_dim))
        taps = weight.numel() // (weight.shape[in_dim] * weight.shape[out_dim])
        return channels, taps * channels, taps * outputs

    @torch.no_grad()
    def draw(
        self, variance: float, generator: torch.Generator | None = None, orthogonal: bool = False
    ) -> None:
        """Draws the weights with this variance: Gaussian, or with orthogonal rows or columns."""
        if isinstance(self.module, PointConvolution):
            self.module.refresh_precondition()
        for weight in self.weights:
            fill_normal(weight, generator)
            if orthogonal and weight.dim() > 1:
                weight.copy_(_orthogonal(weight, self.kind.out_dim))
            weight.mul_(variance**0.5)
        if len(self.weights) == 1:
            self.weight = self.weights[0]  # the draw is of W, whatever is learned

    @property
    def weight(self) -> Tensor:
        """The single weight, of a point convolution W as published."""
        module, weight = self.module, self.weights[0].detach()
        return module.weight.detach() if isinstance(module, PointConvolution) else weight

    @weight.setter
    def weight(self, value: Tensor) -> None:
        module = self.module
        if isinstance(module, PointConvolution) and module.precondition:
            module.weight = value.detach()
        elif value is not self.weights[0]:
            self.weights[0].detach().copy_(value)

    def published(self, gradient: Tensor) -> Tensor:
        """The gradient of the single weight, from that of what is learned."""
        module = self.module
        if isinstance(module, PointConvolution) and module.precondition:
            return coordinates_of(module.preconditioner, gradient)
        return gradient

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        for weight in self.weights:
            weight.mul_(factor)

    @torch.no_grad()
    def scale_channels(self, factor: Tensor) -> None:
        """Scales what the single weight gives to each output channel."""
        rows = self.by_channel(self.weights[0])
        rows.mul_(factor.view(*rows.shape[:2], *[1] * (rows.dim() - 2)).to(rows))

    def by_channel(self, weight: Tensor) -> Tensor:
        """A view of a tensor like the single weight, ``[G, O / G, ...]``: groups, their outputs, the rest."""
        groups = self.groups
        if self.kind.out_dim == 1:  # transposed: the groups are in dimension 0, with the inputs
            return weight.unflatten(0, (groups, -1)).movedim(2, 1)
        return weight.movedim(self.kind.out_dim, 0).unflatten(0, (groups, -1))

    @contextmanager
    def serving(self, rows: Tensor | None = None) -> Iterator[Tensor]:
        """Puts the single weight of one output of each group, without a bias, in the place of the layer's own
        where its kind allows for that: a pass then costs as much less. Yields what is learned.

        Args:
            rows: ``[G, 1, ...]`` as of ``by_channel``, for all outputs alike; default: those of the first.
        """
        own, module = self.weights[0], self.module
        outputs = self.by_channel(own).shape[1]
        fewer = outputs if self.kind.narrow else 1
        shape = list(own.shape)
        shape[self.kind.out_dim] //= fewer
        with torch.no_grad():
            weight = own.new_empty(shape)
            first = self.by_channel(self.weight)[:, : outputs // fewer]
            self.by_channel(weight).copy_(first if rows is None else rows)
            if isinstance(module, PointConvolution) and module.precondition:
                weight = coordinates_of(module.preconditioner, weight)
        weight = nn.Parameter(weight)
        places: dict[int, nn.Parameter | None] = {id(own): weight, **{id(bias): None for bias in self.biases}}
        held = [(part._parameters, dict(part._parameters)) for part in module.modules()]
        try:
            for parameters, before in held:
                parameters.update({name: places.get(id(p), p) for name, p in before.items()})
            yield weight
        finally:
            for parameters, before in held:
                parameters.update(before)

    @property
    def channels(self) -> float:
        """How many output channels the single weight has; infinitely many, if there is none."""
        weight = self.weights[0]
        if len(self.weights) != 1 or weight.dim() < 2:
            return float("inf")
        return math.prod(self.by_channel(weight).shape[:2])

    @property
    def groups(self) -> int:
        return int(getattr(self.module, "groups", 1))

    def bias_of(self, channels: int) -> Tensor | None:
        """The bias with a number for each of so many channels, if there is one: the last, if several."""
        return next((b for b in reversed(self.biases) if b.numel() == channels and b.requires_grad), None)

    @property
    def adds_nothing(self) -> bool:
        """Whether the output is known to be linear in the weights, as they stand with the biases."""
        known = self.kind.second_moment is not None and not self.kind.late
        return known and not any(bool(bias.any()) for bias in self.biases)

    @torch.no_grad()
    def zero_bias(self) -> None:
        for bias in self.biases:
            if bias.requires_grad:
                bias.zero_()


def fill_normal(weight: Tensor, generator: torch.Generator | None) -> None:
    """Fills a tensor from the unit Gaussian; a generator may live on another device."""
    check_generator(generator)
    if generator is None or generator.device == weight.device:
        weight.normal_(generator=generator)  # in place: large weights cost more to copy than to draw
    else:
        weight.copy_(torch.randn(weight.shape, generator=generator, device=generator.device))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


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
    layers: list[Layer] = []
    left: dict[str, str] = {}
    claims = Claims()
    for layer in candidates(model, select, left):
        twin = claims.claim(layer)
        if twin is None:
            layers.append(layer)
        else:
            left[layer.name] = twin
    return layers, left


def candidates(model: nn.Module, select: Select, left: dict[str, str], unknown: bool = False) -> list[Layer]:
    """Layers that can be set, also those that share a weight; ``left`` is told what cannot, and why.

    With ``unknown`` there are also modules for which there is no rule, and that may turn out to be linear.
    """
    chosen = predicate(select)
    layers = []
    for name, module, kind in outermost(model):
        rule: Kind | str = f"no rule for {type(module).__name__}" if kind is None else kind
        if kind is None and unknown and not is_norm(module):
            rule = unknown_kind(module)
        if isinstance(rule, str):
            left[name] = rule
            continue
        kind = rule
        layer = Layer(name, module, kind)
        obstacle = layer.obstacle() if chosen(layer.name, module) else "not selected"
        if obstacle is None:
            layers.append(layer)
            left.update({n: f"the rule for {type(module).__name__} does not name it" for n in layer.unnamed})
        else:
            left[layer.name] = obstacle
    return layers


class Claims:
    """Whose weights are whose: a weight that layers share belongs to the first that claims it."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def claim(self, layer: Layer) -> str | None:
        """Takes the weights for a layer; or says who has them already."""
        owner = next((self._owners[id(w)] for w in layer.weights if id(w) in self._owners), None)
        if owner is not None:
            return f"shares its weight with {owner}"
        self._owners.update((id(w), layer.name) for w in layer.weights)
        return None


_NORM = re.compile(r"(?<!^No)Norm([123]d)?$")


def is_norm(module: nn.Module) -> bool:
    """By the names of types that normalise, of any library: BatchNorm2d, GraphNorm; not our NoNorm."""
    return any(_NORM.search(ancestor.__name__) for ancestor in type(module).__mro__)


def check_model(model: nn.Module) -> None:
    """Refuses what is no module, and modules that are lazy: they take their shape from the first pass, which
    nothing can undo, so that it is the user's to make."""
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"model must be a torch.nn.Module, got {kind}")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} is lazy, without a shape as yet: run the model once on a batch before")


def uncompiled(model: nn.Module) -> nn.Module:
    """Of a compiled model, the one that it was made of: hooks can be put on that, and names are its own."""
    return getattr(model, "_orig_mod", model)


def outermost(model: nn.Module) -> Iterator[tuple[str, nn.Module, Kind | None]]:
    """Registered modules, and others that have parameters of their own; nothing inside a registered one."""
    check_model(model)
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
    options = tuple(select) if isinstance(select, Sequence) else ()
    if options and all(isinstance(o, type) for o in options):
        types: Any = options
        return lambda name, module: isinstance(module, types)
    if options and all(isinstance(o, str) for o in options):
        patterns: Any = options
        return lambda name, module: _matches(name, patterns)
    raise TypeError(f"layers must be types, name patterns or a predicate, got {select!r}")


def channels_last(module: nn.Module, output: Tensor) -> Tensor:
    """A layer's output as rows of channels, ``[..., O]``; image convolutions have their channels before."""
    if isinstance(module, nn.modules.conv._ConvNd):
        output = output.movedim(-len(module.kernel_size) - 1, -1)
    return output.reshape(-1, output.shape[-1] if output.dim() else 1)


def nothing_to_set(model: nn.Module, left_alone: dict[str, str]) -> ValueError:
    why = left_alone or "it has no parameters"
    return ValueError(f"{type(model).__name__} has no layer that could be initialised: {why}")
