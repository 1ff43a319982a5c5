"""Label point clouds by the network of a run.

A network that segments writes a PLY per file, with label, confidence and a colour per class, and classes.txt;
one that classifies prints a line per file.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="directory of a run, or a saved network")
    parser.add_argument("files", type=Path, nargs="+", help="point clouds in any format that can be read")
    parser.add_argument("--output", type=Path, default=Path("predictions"), help="directory for PLY files")
    parser.add_argument("--votes", type=int, default=1, help="augmented passes to sum over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=150_000, help="largest sphere, in points: memory")


def run(arguments: argparse.Namespace) -> int:
    """Predicts each of the files."""
    from pointvar.commands.evaluate import network_of
    from pointvar.train import DataConfig

    for file in arguments.files:
        if file.is_dir():
            raise ValueError(f"{file} is a folder; give its files, such as {file}/*.ply")
        if not file.exists():
            raise ValueError(f"{file}: there is no such file")
    model, notes = network_of(arguments.model)
    config = DataConfig(**notes["data"])
    if notes["task"] == "classification":
        return _classify(model, notes["classes"], config, arguments)
    return _segment(model, notes["classes"], config, arguments)


def _classify(model: Any, classes: list[str], config: Any, arguments: argparse.Namespace) -> int:
    from pointvar.train import class_probabilities

    for file in arguments.files:
        sample, _ = read_sample(file, config)
        share = class_probabilities(model, [sample], config, arguments.votes, arguments.seed)[0]
        check_classes(share.numel(), classes, arguments.model)
        print(f"{file}\t{classes[int(share.argmax())]}\t{float(share.max()):.4f}")
    return 0


def _segment(model: Any, classes: list[str], config: Any, arguments: argparse.Namespace) -> int:
    import numpy as np
    from tqdm import tqdm

    from pointvar.atomic import writable
    from pointvar.data import write_ply
    from pointvar.report.palette import color
    from pointvar.train import predict_scene

    writable(arguments.output)
    palette = np.array([list(bytes.fromhex(color(i)[1:])) for i in range(len(classes))], np.uint8)
    for file in arguments.files:
        sample, points = read_sample(file, config)
        with tqdm(desc=str(file), total=len(sample), unit=" points", disable=None) as bar:
            labels, confidence = predict_scene(
                model,
                sample,
                config,
                arguments.votes,
                arguments.seed,
                sphere=arguments.points,
                progress=partial(_show, bar),
            )
        check_classes(int(labels.max()) + 1 if len(labels) else 0, classes, arguments.model, least=True)
        target = arguments.output / f"{file.stem}.ply"
        write_ply(
            target,
            points,
            colors=palette[labels.numpy()],
            label=labels.numpy().astype(np.int32),
            confidence=confidence.numpy(),
        )
        counts = np.bincount(labels.numpy(), minlength=len(classes))
        shares = ", ".join(f"{classes[i]} {counts[i] / len(labels):.1%}" for i in np.argsort(-counts)[:5])
        print(f"{target}: {len(labels):,} points; {shares}")
    names = "".join(f"{i} {c}\n" for i, c in enumerate(classes))
    (arguments.output / "classes.txt").write_text(names, encoding="utf-8")
    return 0


def check_classes(predicted: int, classes: list[str], model: Path, least: bool = False) -> None:
    """Raises if a network predicts other classes than its file names."""
    if predicted > len(classes) or (predicted < len(classes) and not least):
        raise ValueError(
            f"{model} predicts {predicted} classes and names {len(classes)} ({', '.join(classes)}): save the "
            "network again, with the classes it was trained on"
        )


def _show(bar: Any, done: int, total: int) -> None:
    bar.update(done - bar.n)


def read_sample(path: Path, config: Any) -> tuple[Any, NDArray[Any]]:
    """A file as a network takes it, and its points as they are in the file.

    Points are moved by whole units to begin near 0, since coordinates of maps do not fit float32.
    """
    import numpy as np
    import torch

    from pointvar.data import Sample, read_points

    arrays = read_points(path)
    points = arrays["points"]
    columns = {"scannet": ["colors"], "rooms": ["colors"]}.get(config.name, config.columns)
    if config.normals:
        columns = ["normals"]
    missing = [name for name in columns if name not in arrays]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}, which the network was trained with")
    parts = [np.asarray(arrays[name], np.float32).reshape(len(points), -1) for name in columns]
    features = np.concatenate(parts, 1) if parts else np.ones((len(points), 1), np.float32)
    near = (points - np.floor(points.min(0))).astype(np.float32)
    return Sample(torch.from_numpy(near), torch.from_numpy(features), -1, path.stem), points
