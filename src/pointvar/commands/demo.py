"""Shows on built-in shapes what variance-aware weights do, in minutes: a table and an HTML report.

Variance over 25 layers, and one small network trained at batch size 2 with standard weights, batch norm,
group norm, variance-aware weights and the norm-free recipe. Stopped, the same command goes on; finished, it
shows what there is.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder to write to (demo)")
    parser.add_argument("--fresh", action="store_true", help="start over, whatever is there")


def run(arguments: argparse.Namespace) -> None:
    from pointvar.experiments import Options
    from pointvar.experiments.demo import run as demonstrate

    demonstrate(Options(arguments.output), arguments.fresh)
