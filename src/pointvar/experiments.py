"""The experiments have moved to the folder ``experiments`` of a checkout. This old name will be removed."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    text = "pointvar.experiments has moved: import experiments, the folder at the top of a checkout"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return getattr(import_module("experiments"), name)
