"""Names that have moved: the old import works for one more version, and says where to look."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved(module: str, names: Mapping[str, str], otherwise: Callable[[str], Any]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that knows where ``names`` have gone; ``otherwise`` knows all others."""

    def find(name: str) -> Any:
        if name not in names:
            return otherwise(name)
        text = f"{module}.{name} has moved to {names[name]}.{name}; the old name goes with the next version"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(import_module(names[name]), name)

    return find
