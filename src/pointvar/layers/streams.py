"""How a pass goes through the layers of any model: their order, and where branches come back to a stream.

A residual network adds what a branch makes of a stream to that stream, ``x + f(x)``. Such sums are found by
watching the additions of one pass, and by asking the graph of gradients which layers each of the two summands
depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pointvar.layers.find import Layer
from pointvar.layers.passes import Forward, feed, first_tensor, restored


@dataclass
class Streams:
    """What one pass shows."""

    order: list[str] = field(default_factory=list)
    """Layers by name, in the order of their first calls; the last one is the head."""
    branches: dict[str, bool] = field(default_factory=dict)
    """The last layer of each branch that is added to a stream, and whether the branch is 0 as it stands."""
    transforms: dict[str, int] = field(default_factory=dict)
    """The last layer of what is added to an identity matrix, and the size of the matrix."""
    depth: float = 0.0
    """How many calls of layers there are one behind the other, on the longest way to the end. The depth of a
    sum is the mean of its summands' depths, weighted by their second moments. What is added to an identity
    matrix does not count."""
    functions: dict[str, int] = field(default_factory=dict)
    """Calls of ``batch_norm`` that normalise, without a module that could be replaced: name -> how many."""


def find_streams(
    model: nn.Module,
    layers: list[Layer],
    batch: Any,
    forward: Forward | None = None,
    still: Collection[str] = (),
) -> Streams:
    """Runs one pass. Nothing of the model changes. Layers that are ``still`` pass nothing on: by name."""
    result = Streams()
    nodes: dict[Any, int] = {}  # what ends a layer in the graph -> its place in the order

    def watch(layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if layer.name not in result.order:
                result.order.append(layer.name)
            value = first_tensor(output)
            if value is not None and value.grad_fn is not None:
                # What only passes on the output of a layer inside it is not behind that layer.
                nodes.setdefault(value.grad_fn, result.order.index(layer.name))

        return hook

    handles = [layer.module.register_forward_hook(watch(layer)) for layer in layers]
    sums = _Sums(result.functions)
    try:
        with torch.enable_grad(), restored(model, "train", dropout=False), sums:
            (forward or feed)(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    behind = _Ancestors(nodes, sums, {i for i, name in enumerate(result.order) if name in still})
    calls = [behind(node) for node in nodes]
    ends = [call for call in calls if not any(call.layers < other.layers for other in reversed(calls))]
    result.depth = max((call.depth for call in ends), default=0.0)
    for one, other in sums.pairs.values():
        branch = _branch(behind(one.node).layers, behind(other.node).layers)
        if branch is not None:
            which, last = branch
            name = result.order[last]
            result.branches[name] = result.branches.get(name, True) and (one, other)[which].zero
    for node, size in sums.identities.values():
        if places := behind(node).layers:
            result.transforms[result.order[max(places)]] = size
    return result


def _branch(one: frozenset[int], other: frozenset[int]) -> tuple[int, int] | None:
    """Which of two summands is a branch, and its last layer, if the other is a stream that it comes from.

    The stream is what the branch has seen already, and perhaps one more layer, which fits it to the branch.
    """
    for which, (stream, branch) in enumerate(((other, one), (one, other))):
        own, shortcut = branch - stream, stream - branch
        if own and stream & branch and len(shortcut) < min(2, len(own)):
            return which, max(own)
    return None


@dataclass(frozen=True)
class _Behind:
    """What is behind a node of the graph of gradients."""

    layers: frozenset[int] = frozenset()
    depth: float = 0.0
    moment: float = 0.0
    """Second moment, if that of every layer is 1."""


class _Ancestors:
    """Which layers a node of the graph of gradients comes from, and how deep it lies."""

    def __init__(self, nodes: dict[Any, int], sums: _Sums, still: set[int]) -> None:
        self._nodes, self._sums, self._still = nodes, sums, still
        self._known: dict[Any, _Behind] = {}

    def __call__(self, node: Any) -> _Behind:
        stack = [node]
        while stack:  # a graph may be deeper than Python's recursion
            top = stack[-1]
            inputs = [x for x, _ in top.next_functions if x is not None]
            missing = [x for x in inputs if x not in self._known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if top not in self._known:
                self._known[top] = self._from(top, [self._known[x] for x in inputs])
        return self._known[node]

    def _from(self, node: Any, inputs: list[_Behind]) -> _Behind:
        layers = frozenset[int]().union(*(x.layers for x in inputs))
        deepest = max(inputs, key=lambda x: x.depth, default=_Behind())
        own = self._nodes.get(node)
        if own is not None:
            layers |= {own}
            return _Behind(layers) if own in self._still else _Behind(layers, deepest.depth + 1, 1.0)
        if node in self._sums.identities:
            return _Behind(layers)
        terms = [(self(x.node), not x.zero) for x in self._sums.pairs.get(node, ())]
        moment = sum(x.moment * counts for x, counts in terms)
        if not moment:
            return _Behind(layers, deepest.depth, deepest.moment)
        # What grows by g in a branch, beside a stream of second moment m, grows by (m + g) / (m + 1).
        return _Behind(layers, sum(x.moment * counts * x.depth for x, counts in terms) / moment, moment)


@dataclass
class _Summand:
    node: Any
    zero: bool


class _Sums(TorchFunctionMode):
    """Remembers what is added to what, and which functions are called that should be modules."""

    NAMES = frozenset(("add", "add_", "__add__", "__radd__", "__iadd__"))

    def __init__(self, functions: dict[str, int]) -> None:
        super().__init__()
        self.functions = functions
        self.pairs: dict[Any, tuple[_Summand, _Summand]] = {}
        """The node of a sum -> its summands."""
        self.identities: dict[Any, tuple[Any, int]] = {}
        """The node of a sum with an identity matrix -> what is added to it, and its size."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.NAMES:
            terms = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
            if len(terms) == 2:
                return self._add(terms, lambda: func(*args, **kwargs))
        if func is functional.batch_norm and kwargs.get("training"):
            self.functions[func.__name__] = self.functions.get(func.__name__, 0) + 1
        return func(*args, **kwargs)

    def _add(self, terms: list[Tensor], add: Callable[[], Any]) -> Any:
        one, other = terms
        if one.grad_fn is not None and other.grad_fn is not None and one.shape == other.shape:
            pair = _summand(one), _summand(other)  # as they are before one of them may be changed in place
            result = add()
            self.pairs[result.grad_fn] = pair
            return result
        found = None
        for value, constant in ((one, other), (other, one)):
            if value.grad_fn is not None and not constant.requires_grad:
                size = identity_size(constant)
                found = found if size is None else (value.grad_fn, size)
        result = add()
        if found is not None:
            self.identities[result.grad_fn] = found
        return result


def _summand(value: Tensor) -> _Summand:
    return _Summand(value.grad_fn, not bool(value.detach().any()))


def identity_size(value: Tensor) -> int | None:
    """k, if this is the identity matrix [k, k], k > 1, in any shape, once or for each of several clouds."""
    value = value.detach()
    width = value.shape[-1] if value.dim() else 0
    for size in {width, round(width**0.5)}:
        if size > 1 and width in (size, size**2) and value.numel() % size**2 == 0 and value.numel():
            matrices = value.reshape(-1, size, size)
            if bool((matrices == torch.eye(size, dtype=value.dtype, device=value.device)).all()):
                return size
    return None
