"""Make a figure or table of the paper, or one beyond it. The experiments are run from a checkout."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

MISSING = (
    "pointvar reproduce: the experiments are not part of the installed package; "
    "run this in a checkout of the repository, beside its folder experiments"
)


def configure(parser: argparse.ArgumentParser) -> None:
    _experiments().configure(parser)


def run(arguments: argparse.Namespace) -> None:
    _experiments().run(arguments)


def _experiments() -> ModuleType:
    """The command of the folder ``experiments``: here, or wherever Python finds it."""
    here = str(Path.cwd())
    if Path("experiments", "__main__.py").is_file() and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module("experiments.__main__")
    except ModuleNotFoundError as error:
        if error.name not in ("experiments", "experiments.__main__"):
            raise
        raise SystemExit(MISSING) from None
