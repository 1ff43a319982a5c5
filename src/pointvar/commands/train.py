"""Train a network from recipes and configuration files.

    pointvar train shapes --output=runs/shapes --epochs=10

Later sources override earlier ones, and single settings override all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from pointvar.recipes import RECIPES
from pointvar.train.config import Config, add_settings, load_config

TAKES_SETTINGS = True


def configure(parser: ArgumentParser) -> None:
    parser.usage = "pointvar train SOURCE [SOURCE ...] [--recipe NAME] [--SETTING=VALUE ...]"
    known = f"recipes ({', '.join(RECIPES)}) and YAML files; later ones override earlier ones"
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=known)
    parser.add_argument(
        "--recipe", metavar="NAME", help="a recipe over the sources: published gives the paper's training"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in the output folder")
    parser.add_argument("--print", action="store_true", help="print the settings as YAML, and do not train")
    parser.add_argument("--settings", action="help", help="explain all settings, as --help does")
    add_settings(parser)


def run(given: Namespace) -> int:
    """Trains as recipes, files and settings say."""
    settings = given.as_dict()
    recipe = settings.pop("recipe", None)
    sources = settings.pop("sources") + ([recipe] if recipe else [])
    resume, show = settings.pop("resume", False), settings.pop("print", False)
    config = read_settings(*sources, settings)
    if show:
        print(config.to_yaml(), end="")
        return 0
    from pointvar.train import fit

    if config.output is None:
        names = [Path(source).stem for source in sources]
        config.output = str(Path("runs") / "-".join([*names, config.model.method, str(config.seed)]))
    moved = [Path(source).parent for source in sources if Path(source).name == "config.yaml"]
    if resume and "output" not in settings and moved and (moved[-1] / "last.ckpt").exists():
        config.output = str(moved[-1])  # wherever it was when its config.yaml was written
    print(f"run: {config.output}")
    result = fit(config, resume=resume, verbose=True)
    if result.diverged is not None:
        print(f"diverged: {result.diverged}", file=sys.stderr)
        return 1
    if result.interrupted:
        print(
            f"stopped; go on with: pointvar train {quote(str(Path(config.output) / 'config.yaml'))} --resume"
        )
        return 130
    if result.metrics:  # of several processes, the first has them
        if result.best is not None:
            print(f"best of the validation: epoch {result.best['epoch']} of {len(result.history)}")
        accuracy, iou = result.metrics["accuracy"], result.metrics["mean_iou"]
        classes = f"over {result.metrics['classes']} of {len(result.metrics['iou'])} classes"
        scores = f"accuracy {accuracy:.4f}, mean IoU {iou:.4f} {classes}"
        print(f"{scores}; {config.output}/summary.json has more")
    return 0


def read_settings(*sources: Any) -> Config:
    """`load_config`; where the ``config.yaml`` of a run is damaged, the error says how to write it anew."""
    try:
        return load_config(*sources)
    except ValueError as error:
        for path in (Path(source) for source in sources if isinstance(source, (str, Path))):
            if str(error).startswith(str(path)) and list(path.parent.glob("*.ckpt")):
                how = f"the command that started the run, with --resume --output={path.parent}"
                raise ValueError(f"{error}; mend it, or write it anew by {how}") from error
        raise
