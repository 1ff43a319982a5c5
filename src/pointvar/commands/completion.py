"""Print a script by which a shell completes commands and settings of pointvar.

    pointvar completion bash > ~/.local/share/bash-completion/completions/pointvar

It needs shtab: pip install shtab. The script is for this version; write it anew after an update.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from importlib.util import find_spec

SHELLS = ("bash", "zsh", "tcsh")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="whose script is printed")


def run(arguments: argparse.Namespace) -> None:
    from jsonargparse import ArgumentParser

    from pointvar.commands import COMMANDS, parser_of

    if find_spec("shtab") is None:
        raise ImportError("completion needs shtab: pip install shtab")
    parser = ArgumentParser(prog="pointvar")
    commands = parser.add_subcommands()
    for name, text in COMMANDS.items():
        with suppress(SystemExit):  # of reproduce, outside a checkout
            commands.add_subcommand(name, parser_of(name), help=text)
    print(parser.get_completion_script(f"shtab-{arguments.shell}"))
