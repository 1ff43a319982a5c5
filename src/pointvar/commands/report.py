"""Write results as one HTML page that needs no network: settings, tables, curves, and clouds in 3D.

    pointvar report runs/shapes results/ prediction.ply --output report.html

It takes folders of training runs (several are compared), what `pointvar reproduce` has written, reports of
initialisations and variances as JSON, tables as JSON lines or CSV, and clouds with labels or predictions.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="RUN_OR_RESULTS", help="runs, folders and files to show"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("report.html"), help="page to write (report.html)"
    )
    parser.add_argument("--title", help="title of the page (the names of what it shows)")


def run(arguments: argparse.Namespace) -> None:
    from pointvar.report import gather

    path = gather(arguments.paths, arguments.title).save(arguments.output)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
