"""Evaluate the network of a run on its test data.

Writes evaluation.json into the run. Settings such as --votes=10 or --data.path=... go over those of the run.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="directory of a run")
    parser.add_argument("settings", nargs=argparse.REMAINDER, help="such as --votes=10")


def run(arguments: argparse.Namespace) -> int:
    """Evaluates, with as many votes as the run's configuration or ``--votes`` says."""
    from pointvar.atomic import write_atomically
    from pointvar.models import load, read_notes
    from pointvar.train import Data, evaluate, load_config
    from pointvar.train.sources import load_split

    folder: Path = arguments.run_directory
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run: it has no config.yaml")
    config = load_config(folder / "config.yaml", overrides=arguments.settings)
    test = load_split(config.data, "test", read_notes(folder / "model.safetensors")["classes"])
    data = Data(test, test, test.classes, test.num_features, test.task)
    metrics = evaluate(load(folder / "model.safetensors"), data, config.data, config.votes, config.seed)
    print(metrics)
    result = {"votes": config.votes, "seed": config.seed, **asdict(metrics)}
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    return 0
