"""Makes a figure or table of the paper, or one beyond it: pictures (PNG, SVG) and numbers (JSON).

Real data are taken from --data, from $POINTVAR_DATA, or from shared/data beside the project; without them the
built-in synthetic data serve, and the output says so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pointvar.experiments import EXPERIMENTS, Options, load
from pointvar.experiments.options import data_folder


def configure(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, EXPERIMENTS))
    parser.epilog = "experiments:\n" + "\n".join(f"  {n:<{width}}  {text}" for n, text in EXPERIMENTS.items())
    parser.add_argument("names", nargs="+", metavar="NAME", help="one or more of those below, or 'all'")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder to write to (results)")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder with real data")
    parser.add_argument(
        "--synthetic", action="store_true", help="use the built-in data even if real ones exist"
    )
    parser.add_argument("--preset", choices=("laptop", "paper"), default="laptop", help="how much (laptop)")


def run(arguments: argparse.Namespace) -> None:
    names = list(EXPERIMENTS) if arguments.names == ["all"] else arguments.names
    modules = [load(name) for name in names]  # all names are known before the first begins
    data = None if arguments.synthetic else arguments.data
    for module in modules:
        module.run(Options(arguments.output, data, arguments.preset))
