"""Evaluate the network of a run on its test data.

Writes evaluation.json into the run. Settings such as --votes=10 or --data.path=... go over those of the run.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from pointvar.atomic import write_atomically
from pointvar.train.config import add_settings, load_config

TAKES_SETTINGS = True


def configure(parser: ArgumentParser) -> None:
    parser.usage = "pointvar evaluate RUN [--SETTING=VALUE ...]"
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    add_settings(parser)


def run(given: Namespace) -> int:
    """Evaluates, with as many votes as the run's configuration or ``--votes`` says."""
    from pointvar.models import load, read_notes
    from pointvar.train import Data, evaluate
    from pointvar.train.sources import load_split

    folder = Path(given.pop("run"))
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run: it has no config.yaml")
    config = load_config(folder / "config.yaml", given.as_dict())
    test = load_split(config.data, "test", read_notes(folder / "model.safetensors")["classes"])
    data = Data(test, test, test.classes, test.num_features, test.task)
    metrics = evaluate(load(folder / "model.safetensors"), data, config.data, config.votes, config.seed)
    print(metrics)
    result = {"votes": config.votes, "seed": config.seed, **asdict(metrics)}
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    return 0
