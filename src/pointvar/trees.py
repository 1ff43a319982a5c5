"""Classes as trees of tensors, for all in torch that takes its inputs apart (``torch.utils._pytree``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils import _pytree


def register(
    kind: type,
    parts: Callable[[Any], tuple[dict[str, Any], Any]],
    make: Callable[[dict[str, Any], Any], Any],
) -> None:
    """Makes a class known as a tree, also to files that ``torch.export.save`` writes.

    Args:
        kind: the class.
        parts: its tensors and trees by name, and the rest, as JSON has it.
        make: the same again of parts and rest; whatever stands in the place of the tensors.
    """

    def flatten(value: Any) -> tuple[list[Any], Any]:
        named, rest = parts(value)
        return list(named.values()), [list(named), rest]

    def flatten_with_keys(value: Any) -> tuple[list[Any], Any]:
        named, rest = parts(value)
        return [(_pytree.GetAttrKey(name), part) for name, part in named.items()], [list(named), rest]

    def unflatten(values: Iterable[Any], context: Any) -> Any:
        names, rest = context
        return make(dict(zip(names, values, strict=True)), rest)

    _pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"pointvar.{kind.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
