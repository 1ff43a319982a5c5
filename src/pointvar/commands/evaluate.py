"""pointvar evaluate: how well the network of a run predicts the test data."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "evaluate",
        help="evaluate the network of a run",
        description="Evaluates the network of a run on its test data; writes evaluation.json into the run. "
        "Options such as --data.path=... change settings of the run.",
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="directory of a run")
    parser.add_argument("settings", nargs=argparse.REMAINDER, help="such as --votes=10")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Evaluates, with as many votes as the run's configuration or ``--votes`` says."""
    from pointvar.models import load
    from pointvar.train import Data, evaluate, load_config
    from pointvar.train.callbacks import write_atomically
    from pointvar.train.sources import load_split

    folder: Path = arguments.run_directory
    config = load_config(folder / "config.yaml", overrides=arguments.settings)
    test = load_split(config.data, "test")
    data = Data(test, test, test.classes, test.num_features, test.task)
    metrics = evaluate(load(folder / "model.safetensors"), data, config.data, config.votes, config.seed)
    print(metrics)
    result = {"votes": config.votes, "seed": config.seed, **asdict(metrics)}
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    return 0
