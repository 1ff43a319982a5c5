"""Train a network from recipes and configuration files.

    pointvar train shapes norm-free --output=runs/shapes --epochs=10

Recipes: scanobjectnn, modelnet40, scannet; shapes and rooms, on data made on the spot; norm-free, which goes
with any of them. What comes later goes over what came earlier, and single settings over all.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="+", help="recipes and YAML files, the later ones over the earlier")
    parser.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        help="--resume: go on with the run in the output directory; --print: show the configuration; "
        "--settings: explain all settings; or any setting, such as --optimizer.rate=0.01",
    )


def _options(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of the command itself, and the settings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--resume", "--print", "--settings"):
        parser.add_argument(name, action="store_true")
    return parser.parse_known_args(given)


def run(arguments: argparse.Namespace) -> int:
    """Trains as recipes, files and settings say."""
    from pointvar.train.config import load_config

    options, settings = _options(arguments.options)
    config = load_config(*arguments.config, overrides=["--help"] if options.settings else settings)
    if options.print:
        print(config.to_yaml(), end="")
        return 0
    from pointvar.train import fit

    if config.output is None:
        names = [Path(source).stem for source in arguments.config]
        config.output = str(Path("runs") / "-".join([*names, config.model.method, str(config.seed)]))
    print(f"run: {config.output}")
    result = fit(config, resume=options.resume, verbose=True)
    if result.diverged is not None:
        print(f"diverged: {result.diverged}", file=sys.stderr)
        return 1
    if result.interrupted:
        print(f"stopped; go on with: pointvar train {Path(config.output) / 'config.yaml'} --resume")
        return 130
    if result.metrics:  # of several processes, the first has them
        accuracy, iou = result.metrics["accuracy"], result.metrics["mean_iou"]
        print(f"accuracy {accuracy:.4f}, mean IoU {iou:.4f}; {config.output}/summary.json has more")
    return 0
