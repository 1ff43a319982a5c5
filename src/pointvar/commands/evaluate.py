"""Evaluate the network of a run on its test data.

Prints scores by class, and writes evaluation.json into the run: the scores, the confusion matrix, and the
files, the worst first. The worst scenes go to evaluation/, and `pointvar report` shows all of it.
Settings such as --votes=10 or --data.path=... go over those of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from pointvar.atomic import write_atomically
from pointvar.commands.train import read_settings
from pointvar.train.config import add_settings

TAKES_SETTINGS = True
SCENES, SHOWN = 3, 200_000
"""Scenes that are kept to be looked at, and points of each."""


def configure(parser: ArgumentParser) -> None:
    parser.usage = "pointvar evaluate RUN [--SETTING=VALUE ...]"
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    add_settings(parser)


def run(given: Namespace) -> int:
    """Evaluates, with as many votes as the run's configuration or ``--votes`` says."""
    from tqdm import tqdm

    from pointvar.train import Data, evaluate
    from pointvar.train.build import load_split

    folder = Path(given.pop("run"))
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run: it has no config.yaml")
    config = read_settings(folder / "config.yaml", given.as_dict())
    model, notes = network_of(folder)
    test = load_split(config.data, "test", notes["classes"], notes.get("features"))
    data = Data(test, test, test.classes, test.num_features, test.task)
    with tqdm(desc="files", total=len(test), disable=None) as bar:
        errors = Errors(test.classes, bar.update)
        metrics = evaluate(model, data, config.data, config.votes, config.seed, errors.add)
    maps = errors.save(folder)
    result = {"votes": config.votes, "seed": config.seed, **asdict(metrics)}
    result |= {"files": errors.worst_files(), "maps": maps}
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    print(metrics)
    return 0


class Errors:
    """What is wrong in which file. The scenes with most of it are kept, thinned where they are large.

    Args:
        classes: names of the classes.
        done: called after each file.
    """

    def __init__(self, classes: list[str], done: Callable[[], Any]) -> None:
        self.classes, self.done = classes, done
        self.rows: list[dict[str, Any]] = []
        self.scenes: list[tuple[float, str, dict[str, Any]]] = []

    def add(self, sample: Any, predicted: Any, confidence: Any) -> None:
        """The predictions of one more file."""
        import torch

        if not predicted.dim():
            if sample.label not in (-1, int(predicted)):
                names = (self.classes[int(each)] for each in (sample.label, predicted))
                row = dict(zip(("label", "prediction"), names, strict=True))
                self.rows.append({"file": sample.name, **row, "confidence": float(confidence)})
        elif len(known := (sample.label >= 0).nonzero().squeeze(1)):
            wrong = int((sample.label != predicted)[known].sum())
            accuracy = 1 - wrong / len(known)
            self.rows.append(
                {"file": sample.name, "accuracy": accuracy, "wrong": wrong, "labels": len(known)}
            )
            shown = torch.randperm(len(sample), generator=torch.Generator().manual_seed(0))[:SHOWN]
            arrays = {"points": sample.points, "label": sample.label, "prediction": predicted}
            scene = (accuracy, sample.name, {name: each[shown].numpy() for name, each in arrays.items()})
            self.scenes = sorted([*self.scenes, scene], key=itemgetter(0))[:SCENES]
        self.done()

    def worst_files(self) -> list[dict[str, Any]]:
        """Scenes by the share of wrong points; of objects, those that are wrong, the most confident first."""
        return sorted(self.rows, key=lambda row: row.get("accuracy", -row.get("confidence", 0.0)))

    def save(self, folder: Path) -> dict[str, str]:
        """Writes the worst scenes, and gives the file of each by its name."""
        import numpy as np

        files = {}
        for number, (_, name, arrays) in enumerate(self.scenes, 1):
            files[name] = f"evaluation/worst-{number}.npz"
            content = BytesIO()
            np.savez_compressed(content, **arrays)
            (folder / "evaluation").mkdir(exist_ok=True)
            write_atomically(folder / files[name], content.getvalue())
        for old in {*folder.glob("evaluation/worst-*.npz")} - {folder / file for file in files.values()}:
            old.unlink()
        return files


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
