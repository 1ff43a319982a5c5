"""Makes a figure or table of the paper, or one beyond it.

Figures are written as pictures (PNG, SVG) and numbers (JSON). Tables are grids of training runs: each result
is kept in NAME.jsonl as it comes, the same command goes on where it was stopped, and NAME.md and NAME.html
say what came out. Real data are taken from --data, from $POINTVAR_DATA, or from shared/data beside the
project; without them the built-in synthetic data serve, and the output says so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pointvar.experiments import EXPERIMENTS, FIGURES, TABLES, Options, load
from pointvar.experiments import run as run_experiment
from pointvar.experiments.options import data_folder

GROUPS = {"all": EXPERIMENTS, "figures": FIGURES, "tables": TABLES}


def configure(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, EXPERIMENTS))
    parser.epilog = "experiments:\n" + "\n".join(f"  {n:<{width}}  {text}" for n, text in EXPERIMENTS.items())
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="one or more of those below, or all, figures, tables"
    )
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder to write to (results)")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder with real data")
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
    names = [name for given in arguments.names for name in GROUPS.get(given, [given])]
    for name in names:
        load(name)  # all names are known before the first begins
    data = None if arguments.synthetic else arguments.data
    options = Options(
        arguments.output,
        data,
        arguments.preset,
        arguments.limit_minutes,
        arguments.only,
        arguments.report,
    )
    for name in names:
        if name in TABLES or not arguments.report:
            run_experiment(name, options)
