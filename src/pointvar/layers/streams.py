"""How a pass goes through the layers of any model: their order, and where branches come back to a stream.

A residual network adds what a branch makes of a stream to that stream, ``x + f(x)``. Such sums are found by
watching the additions of one pass, and by asking the graph of gradients which layers each of the two summands
depends on.
"""

from __future__ import annotations

from collections.abc import Callable
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
    depth: int = 0
    """How many calls of layers there are one behind the other, on the longest way."""
    functions: dict[str, int] = field(default_factory=dict)
    """Calls of ``batch_norm`` that normalise, without a module that could be replaced: name -> how many."""


def find_streams(
    model: nn.Module, layers: list[Layer], batch: Any, forward: Forward | None = None
) -> Streams:
    """Runs one pass. Nothing of the model changes."""
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
    behind = _Ancestors(nodes)
    result.depth = max((behind.depth(node) for node in nodes), default=0)
    for one, other in sums.pairs:
        branch = _branch(behind(one.node), behind(other.node))
        if branch is not None:
            which, last = branch
            name = result.order[last]
            result.branches[name] = result.branches.get(name, True) and (one, other)[which].zero
    for node, size in sums.identities:
        if places := behind(node):
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


class _Ancestors:
    """Which layers a node of the graph of gradients comes from."""

    def __init__(self, nodes: dict[Any, int]) -> None:
        self._nodes, self._found, self._depth = nodes, dict[Any, frozenset[int]](), dict[Any, int]()

    def depth(self, node: Any) -> int:
        """How many layers there are on the longest way to a node."""
        self(node)
        return self._depth[node]

    def __call__(self, node: Any) -> frozenset[int]:
        stack = [node]
        while stack:  # a graph may be deeper than Python's recursion
            top = stack[-1]
            inputs = [x for x, _ in top.next_functions if x is not None]
            missing = [x for x in inputs if x not in self._found]
            if top not in self._found and missing:
                stack.extend(missing)
                continue
            stack.pop()
            own = {self._nodes[top]} if top in self._nodes else set()
            self._found.setdefault(top, frozenset(own).union(*(self._found[x] for x in inputs)))
            self._depth[top] = len(own) + max((self._depth[x] for x in inputs), default=0)
        return self._found[node]


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
        self.pairs: list[tuple[_Summand, _Summand]] = []
        self.identities: list[tuple[Any, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.NAMES:
            terms = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
            if len(terms) == 2:
                self._see(*terms)
        if func is functional.batch_norm and kwargs.get("training"):
            self.functions[func.__name__] = self.functions.get(func.__name__, 0) + 1
        return func(*args, **kwargs)

    def _see(self, one: Tensor, other: Tensor) -> None:
        if one.grad_fn is not None and other.grad_fn is not None and one.shape == other.shape:
            self.pairs.append((_summand(one), _summand(other)))
            return
        for value, constant in ((one, other), (other, one)):
            if value.grad_fn is not None and not constant.requires_grad:
                size = identity_size(constant)
                if size is not None:
                    self.identities.append((value.grad_fn, size))


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
