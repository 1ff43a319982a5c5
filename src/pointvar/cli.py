"""The ``pointvar`` command. Each subcommand is a file in ``commands``, imported only when it is asked for."""

from __future__ import annotations

import dis
import errno
import os
import sys
import warnings
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from jsonargparse import ArgumentParser

from pointvar import __version__
from pointvar.commands import COMMANDS, parser_of
from pointvar.registry import did_you_mean, explained

_python_format = warnings.formatwarning


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand. An error that is meant for users ends in one line, any other in a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] not in COMMANDS and (hint := did_you_mean(arguments[0], COMMANDS)):
        print(f"pointvar: there is no command {arguments[0]}{hint}", file=sys.stderr)
        return 2
    if not arguments or arguments[0] not in COMMANDS:
        _overview().parse_args(arguments)  # ends here: with help, the version, or an error
    command, *rest = arguments
    debug, as_before = "--debug" in rest, warnings.formatwarning
    warnings.formatwarning = _format_warning
    try:
        module, parser = import_module(f"pointvar.commands.{command}"), parser_of(command)
        settings = getattr(module, "TAKES_SETTINGS", False)
        # Settings have other sources too: only those that are given here go over them, no defaults.
        try:
            given = parser.parse_args(rest, defaults=not settings)
        except ArgumentError as error:
            raise ArgumentError(None, explained(str(error), parser._option_string_actions)) from error
        given.pop("debug", None)
        code = module.run(given) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads has seen enough, such as head
        with suppress(OSError):  # what is left goes nowhere when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"pointvar {command}: the output was closed before its end", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\npointvar {command}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if debug or not is_for_users(error):
            raise
        print(f"pointvar {command}: {told(error)}", file=sys.stderr)
        return 2
    finally:
        warnings.formatwarning = as_before


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What we tell users, without the line of code; any other warning as Python shows it."""
    if category is UserWarning and Path(filename).is_relative_to(Path(__file__).parent):
        return f"pointvar: warning: {message}\n"
    return _python_format(message, category, filename, lineno, line)


def is_for_users(error: Exception) -> bool:
    """Whether an error says what a user can mend, and not that there is a bug.

    It is about the command line or names a file, or one of our own ``raise`` statements has raised it:
    whatever fails inside an operation or another library was not foreseen.
    """
    if isinstance(error, ArgumentError) or (isinstance(error, OSError) and error.filename is not None):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    frame = trace.tb_frame
    ours = frame.f_globals.get("__name__", "").split(".")[0] in ("pointvar", "experiments")
    raised = frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return ours and raised and isinstance(error, (ValueError, TypeError, ImportError, OSError))


def told(error: Exception) -> str:
    """An error in words: which file it is about, and what to do."""
    if isinstance(error, ArgumentError):
        return str(error)
    if not isinstance(error, OSError) or error.filename is None:
        return getattr(error, "strerror", None) or str(error)  # without the number of the system's error
    path = Path(os.fsdecode(error.filename))
    if error.errno == errno.ENOSPC:
        return f"{path}: the disk is full; make room, then give the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        wanted = "read it" if path.is_file() and not os.access(path, os.R_OK) else "write there"
        return f"{path}: you may not {wanted}; change its permissions, or choose another place"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        file = next((part for part in (path, *path.parents) if part.is_file()), path)
        return f"{path}: {file} is a file where a folder is needed; choose another place"
    if error.errno == errno.EISDIR:
        return f"{path} is a folder where a file is needed; give the name of a file"
    if error.errno == errno.ENOENT:
        return f"{path}: there is no such file or folder"
    return f"{path}: {error.strerror}"


def _overview() -> ArgumentParser:
    width = max(map(len, COMMANDS))
    parser = ArgumentParser(
        prog="pointvar",
        usage="pointvar COMMAND ... [--debug]",
        description="Point convolutions whose features keep their variance through any depth.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
        + "\n\npointvar COMMAND --help explains a command and its options."
        + "\n\nexit codes: 0 success; 1 the training diverged, or doctor found a fault;\n"
        + "2 wrong input or a broken file, in one line; 130 interrupted. A bug ends with a traceback.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pointvar {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    return parser


if __name__ == "__main__":
    sys.exit(main())
