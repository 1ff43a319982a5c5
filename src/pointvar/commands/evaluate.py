"""Evaluate the network of a run on its test data.

Writes evaluation.json into the run. Settings such as --votes=10 or --data.path=... go over those of the run.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from pointvar.atomic import write_atomically
from pointvar.commands.train import read_settings
from pointvar.train.config import add_settings

TAKES_SETTINGS = True


def configure(parser: ArgumentParser) -> None:
    parser.usage = "pointvar evaluate RUN [--SETTING=VALUE ...]"
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    add_settings(parser)


def run(given: Namespace) -> int:
    """Evaluates, with as many votes as the run's configuration or ``--votes`` says."""
    from pointvar.train import Data, evaluate
    from pointvar.train.build import load_split

    folder = Path(given.pop("run"))
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run: it has no config.yaml")
    config = read_settings(folder / "config.yaml", given.as_dict())
    model, notes = network_of(folder)
    test = load_split(config.data, "test", notes["classes"])
    data = Data(test, test, test.classes, test.num_features, test.task)
    metrics = evaluate(model, data, config.data, config.votes, config.seed)
    print(metrics)
    result = {"votes": config.votes, "seed": config.seed, **asdict(metrics)}
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    return 0


def network_of(path: Path) -> tuple[Any, dict[str, Any]]:
    """The network of a run's folder or of a file, and what is known of its data: classes, task, settings."""
    from pointvar.models import load, read_notes

    again = f"pointvar train {quote(str(path / 'config.yaml'))} --resume" if path.is_dir() else ""
    file = path / "model.safetensors" if path.is_dir() else path
    if again and not file.is_file():
        if not (path / "config.yaml").is_file():
            raise ValueError(f"{path} is not a run: it has neither config.yaml nor model.safetensors")
        raise ValueError(f"{path} has no model.safetensors: the run has not ended. Go on with it: {again}")
    try:
        model, notes = load(file), read_notes(file)
    except ValueError as error:
        raise ValueError(f"{error}{f'; write it anew: {again}' if again else ''}") from error
    if not {"classes", "task", "data"} <= notes.keys():
        raise ValueError(f"{file} does not say what its classes are: use a network that a run has saved")
    return model, notes
