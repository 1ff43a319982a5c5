"""The subcommands of ``pointvar``: each file has ``configure(parser)`` and ``run(arguments)``.

Both are light: what is slow to import, torch before all, is imported in ``run``, so that help comes at once.
``TAKES_SETTINGS`` marks those that take the settings of a run as options; they are told only what is given.
"""

from __future__ import annotations

import os
from argparse import RawDescriptionHelpFormatter
from importlib import import_module

from jsonargparse import ArgumentParser, DefaultHelpFormatter

COMMANDS = {
    "demo": "train networks with and without norms, and write a report (five minutes, no data needed)",
    "init": "inspect a folder of your own files, and write settings to train on it",
    "train": "train a network",
    "evaluate": "evaluate the network of a run",
    "predict": "label point clouds by the network of a run",
    "export": "write the network of a run as a graph that torch.export.load reads",
    "tables": "measure tables of z, from which weights can be transferred without data",
    "reproduce": "make a figure or table of the paper",
    "report": "write runs, results and clouds as one HTML page",
    "doctor": "check this installation, and say what to do",
    "completion": "print a script by which a shell completes commands and settings",
}
"""Name -> what it does."""


class _Formatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Help with type and default of each option, and the description as it is written."""


def parser_of(command: str) -> ArgumentParser:
    """The parser of a subcommand."""
    module = import_module(f"pointvar.commands.{command}")
    settings = getattr(module, "TAKES_SETTINGS", False)
    parser = ArgumentParser(
        prog=f"pointvar {command}",
        description=module.__doc__,
        formatter_class=_Formatter if settings else RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    module.configure(parser)
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    return parser


def usable_cores() -> int:
    """The cores that this process may use, where the system tells; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
