"""The ``pointvar`` command. Each subcommand is a file in ``commands``, imported only when it is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "demo": "train a small network in five ways, and write a report: minutes, no data needed",
    "train": "train a network",
    "evaluate": "evaluate the network of a run",
    "predict": "label point clouds by the network of a run",
    "tables": "measure tables of z, from which weights can be transferred without data",
    "reproduce": "make a figure or table of the paper",
    "report": "write runs, results and clouds as one HTML page",
    "doctor": "check this installation, and say what to do",
}
"""Name -> what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; errors of the user end in one line, not in a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="pointvar",
        description="Point convolutions whose features keep their variance through any depth.",
    )
    from pointvar import __version__

    parser.add_argument("--version", action="version", version=f"pointvar {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name, text in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == chosen:
            module = import_module(f"pointvar.commands.{name}")
            subparser.description = module.__doc__
            module.configure(subparser)
            subparser.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    try:
        return parsed.run(parsed) or 0
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        print(f"pointvar {chosen}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\npointvar {chosen}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
