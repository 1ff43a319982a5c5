"""Many tensors as a few: what travels between processes and devices does so in flat buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Slot(NamedTuple):
    """The place of a tensor in one of several flat buffers."""

    buffer: int
    start: int
    shape: tuple[int, ...]

    def of(self, buffers: Sequence[Tensor]) -> Tensor:
        return buffers[self.buffer].narrow(0, self.start, prod(self.shape)).view(self.shape)


def pack(tree: Any, buffers: Sequence[Tensor] = ()) -> tuple[Any, list[Tensor]]:
    """The tree with a ``Slot`` in place of each tensor, and the buffers that these name.

    Tensors that are parts of the given buffers stay where they are; the others are joined, one buffer per
    dtype.
    """
    given = {buffer.untyped_storage()._cdata: number for number, buffer in enumerate(buffers)}
    loose: dict[torch.dtype, list[Tensor]] = {}
    sizes: dict[torch.dtype, int] = {}

    def place(tensor: Tensor) -> Slot:
        shape, number = tuple(tensor.shape), given.get(tensor.untyped_storage()._cdata)
        if number is not None and tensor.is_contiguous() and tensor.dtype == buffers[number].dtype:
            return Slot(number, int(tensor.storage_offset()), shape)
        parts = loose.setdefault(tensor.dtype, [])
        start = sizes.get(tensor.dtype, 0)
        parts.append(tensor.reshape(-1))
        sizes[tensor.dtype] = start + tensor.numel()
        return Slot(len(buffers) + list(loose).index(tensor.dtype), start, shape)

    packed = replaced(tree, Tensor, place)
    return packed, [*buffers, *(torch.cat(parts) for parts in loose.values())]


def unpack(tree: Any, buffers: Sequence[Tensor]) -> Any:
    """The tree with the tensors again."""
    return replaced(tree, Slot, lambda slot: slot.of(buffers))


def replaced(tree: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """A copy of nested tuples, lists and dicts with other values in place of those of a kind."""
    if isinstance(tree, kind):
        return by(tree)
    if isinstance(tree, dict):
        return {key: replaced(value, kind, by) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(replaced(value, kind, by) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(replaced(value, kind, by) for value in tree)
    return tree
