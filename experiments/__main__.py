"""Makes a figure or table of the paper, or one beyond it.

Figures are written as pictures (PNG, SVG) and numbers (JSON). Tables are grids of training runs: each result
is kept in NAME.jsonl as it comes, the same command goes on where it was stopped, and NAME.md and NAME.html
say what came out. Real data are taken from the folder --data, or $POINTVAR_DATA; without them the built-in
synthetic data serve, and the output says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import EXPERIMENTS, FIGURES, TABLES, Options, load
from experiments import run as make

GROUPS = {"all": EXPERIMENTS, "figures": FIGURES, "tables": TABLES}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments; ``pointvar reproduce`` has the same."""
    width = max(map(len, EXPERIMENTS))
    parser.description = __doc__
    parser.epilog = "experiments:\n" + "\n".join(f"  {n:<{width}}  {text}" for n, text in EXPERIMENTS.items())
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="one or more of those below, or all, figures, tables"
    )
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder to write to (results)")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("POINTVAR_DATA") or None,
        help="folder with real data ($POINTVAR_DATA)",
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="use the built-in data even if real ones exist"
    )
    parser.add_argument("--preset", choices=("laptop", "paper"), default="laptop", help="how much (laptop)")
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--limit-minutes", type=float, metavar="M", help="begin no cell after so many minutes"
    )
    tables.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="only these cells, as in --only method=MCConv batch=2 batch=4 seed=0",
    )
    tables.add_argument("--report", action="store_true", help="only write the report of what there is")


def run(arguments: argparse.Namespace) -> None:
    """Makes what was asked for, one after the other."""
    names = [name for given in arguments.names for name in GROUPS.get(given, [given])]
    for name in names:
        load(name)  # all are known before the first begins
    given = {key: value for key, value in vars(arguments).items() if key in Options.__dataclass_fields__}
    options = Options(**given | ({"data": None} if arguments.synthetic else {}))
    for name in names:
        make(name, options)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``python -m experiments``."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    configure(parser)
    try:
        run(parser.parse_args(arguments))
    except (ValueError, ImportError, FileNotFoundError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: interrupted\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
