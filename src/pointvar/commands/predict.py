"""Label point clouds by the network of a run.

    pointvar predict runs/mine tiles/*.laz --output=labelled

A network that segments writes a copy of each file with the predicted classes: LAS and LAZ, PLY and npz stay
what they are and keep all else that is in them; other formats become PLY. LAS and LAZ may be of any size, and
files that border on each other are predicted as one survey. The same command goes on where it was stopped.
A network that classifies prints a line per file.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointvar.commands.workers import Job

MANIFEST, WORK = ".predictions.jsonl", ".predicting"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, help="directory of a run, a saved network, or the name of one: pointvar/aerial")
    add("files", type=Path, nargs="+", help="point clouds in any format that can be read, or folders of them")
    add("--output", type=Path, help="directory for labelled files (predictions), or for a table of classes")
    add("--probability", action="store_true", help="adds the dimension confidence to LAS and LAZ")
    add("--votes", type=int, default=1, help="augmented passes to sum over")
    add("--seed", type=int, default=0)
    add("--points", type=int, default=150_000, help="largest sphere, in points: memory")
    add("--halo", type=float, help="how far points of neighbouring LAS files count (as far as is seen)")
    add("--device", default="auto", help="cpu, cuda, cuda:1, ..., or auto for the best that is available")
    add(
        "--workers",
        type=int,
        help="processes that share the files (1), on a cluster: actors (as many as fit)",
    )
    add("--cluster", metavar="ADDRESS", help="address of a Ray cluster; auto finds the one that runs here")


def run(arguments: argparse.Namespace) -> int:
    """Predicts each of the files."""
    from pointvar.commands.evaluate import network_of

    arguments.files = [file for given in arguments.files for file in _files(given)]
    for name in ("votes", "points", "workers"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be positive, got {getattr(arguments, name)}")
    if arguments.halo is not None and not 0 <= arguments.halo < math.inf:
        raise ValueError(f"--halo must be 0 or more, got {arguments.halo}")
    model, notes = network_of(arguments.model)
    if notes["task"] == "classification":
        return _classify(model, notes, arguments)
    return _segment(notes, arguments)


def _files(given: Path) -> list[Path]:
    """The file, or of a folder all files below it that can be read."""
    from pointvar.data.folder import known_files

    if not given.exists():
        raise ValueError(f"{given}: there is no such file")
    if given.is_file():
        return [given]
    if not (found := known_files(given)):
        raise ValueError(f"{given}: there is no file in this folder that can be read")
    return found


def _classify(model: Any, notes: dict[str, Any], arguments: argparse.Namespace) -> int:
    import csv
    import io

    from pointvar.atomic import writable, write_atomically
    from pointvar.commands.workers import device_of
    from pointvar.data import BadFileError
    from pointvar.train import DataConfig, class_probabilities

    config, classes, files = DataConfig(**notes["data"]), notes["classes"], arguments.files
    model = model.to(device_of(arguments.device))
    table, failed = io.StringIO(), 0
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["file", "class", "probability"])
    for file in files:
        try:
            sample = read_sample(file, notes)
        except BadFileError as error:
            if len(files) == 1:
                raise
            failed += 1
            print(f"pointvar predict: {error}", file=sys.stderr)
            continue
        share = class_probabilities(model, [sample], config, arguments.votes, arguments.seed)[0]
        check_classes(share.numel(), classes, arguments.model)
        name, most = classes[int(share.argmax())], float(share.max())
        print(f"{file}\t{name}\t{most:.4f}", flush=True)
        rows.writerow([file, name, f"{most:.6f}"])
    if arguments.output is not None:
        write_atomically(writable(arguments.output) / "classes.csv", table.getvalue())
    if failed:
        print(f"{failed} of {len(files)} files failed", file=sys.stderr)
    return 2 if failed else 0


def check_classes(predicted: int, classes: Sequence[str], model: Path) -> None:
    """Raises if a network predicts other classes than its file names."""
    if predicted != len(classes):
        raise ValueError(
            f"{model} predicts {predicted} classes and names {len(classes)} ({', '.join(classes)}): save the "
            "network again, with the classes it was trained on"
        )


def read_sample(path: Path, notes: dict[str, Any]) -> Any:
    """A file as a network that classifies takes it; of a mesh, points on its surface, as in training."""
    import torch

    from pointvar.data import BadFileError, Sample, read_points
    from pointvar.data.features import scaled_features
    from pointvar.data.formats import mesh_points, sampled
    from pointvar.train.predict import feature_notes

    arrays = read_points(path)
    if len(arrays.get("faces", ())):
        arrays = sampled(arrays, mesh_points(notes["data"].get("num_points")), path)
    try:
        features = scaled_features(arrays, feature_notes(notes))
    except ValueError as error:
        raise BadFileError(f"{path}: {error}") from error
    near = torch.from_numpy((arrays["points"] - arrays["points"].min(0)).astype("float32"))
    return Sample(near, torch.from_numpy(features), -1, path.stem)


def _segment(notes: dict[str, Any], arguments: argparse.Namespace) -> int:
    from pointvar.atomic import writable, write_atomically
    from pointvar.commands.workers import Job, results
    from pointvar.models import locate
    from pointvar.train.predict import class_codes, survey_of

    shown = output = Path("predictions") if arguments.output is None else arguments.output
    files = list(dict.fromkeys(path.resolve() for path in arguments.files))
    check_targets(files, output)
    writable(output)
    output, codes = output.resolve(), class_codes(notes)
    job = Job(
        locate(arguments.model).resolve(),
        output,
        survey_of(files, notes, output / WORK, arguments.halo),
        arguments.votes,
        arguments.seed,
        arguments.points,
        arguments.probability,
        arguments.device,
        careful=len(files) > 1,
    )
    record = Record(job)
    waiting = [file for file in files if not record.holds(file)]
    if len(waiting) < len(files):
        print(f"{len(files) - len(waiting)} of {len(files)} files are finished already")
    write_atomically(
        output / "classes.txt",
        "".join(f"{code} {name}\n" for code, name in zip(codes, notes["classes"], strict=True)),
    )
    with Progress(waiting) as progress:
        failed = 0
        for result in results(job, waiting, arguments.workers, arguments.cluster, progress.part):
            progress.done(Path(result.file))
            if result.counts is None:
                failed += 1
                progress.tell(f"pointvar predict: {result.error}", sys.stderr)
                continue
            for warning in result.warnings:
                progress.tell(f"{result.file}: {warning}", sys.stderr)
            record.add(Path(result.file))
            target = shown / record.target(Path(result.file)).name
            progress.tell(summary(target, result.counts, notes["classes"]))
    shutil.rmtree(output / WORK, ignore_errors=True)
    if failed:
        print(f"{failed} of {len(waiting)} files failed; the same command tries them again", file=sys.stderr)
    return 2 if failed else 0


def check_targets(files: Sequence[Path], output: Path) -> None:
    """Raises if a copy would take the place of a file that is read, or of another copy."""
    from pointvar.data.relabel import copy_name

    taken: dict[Path, Path] = {}
    folder, given = output.resolve(), set(files)
    for file in files:
        target = folder / copy_name(file)
        if target in given:
            raise ValueError(f"{target} would be written over: choose another folder, --output=FOLDER")
        if target in taken:
            raise ValueError(
                f"{taken[target]} and {file} would both be written to {target}: rename one of them"
            )
        taken[target] = file


class Record:
    """Which files are finished by which network: a small file in the output folder, with a line for each.

    An entry holds as long as the network and the options are the same, the file and its neighbours have not
    been changed, and the copy is the one that was written.
    """

    def __init__(self, job: Job) -> None:
        import hashlib

        self.job, self.path = job, job.output / MANIFEST
        model = job.model / "model.safetensors" if job.model.is_dir() else job.model
        kept = asdict(replace(job, survey=None))  # type: ignore[arg-type]
        options = {name: kept[name] for name in ("votes", "seed", "points", "probability")}
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        self.made_by = {"network": digest, "halo": job.survey.halo, **options}
        self.files: dict[str, Any] = {}
        self.begun = False
        with suppress(OSError, ValueError, TypeError):  # there is none; the last line may not be whole
            first, *lines = self.path.read_text("utf8").splitlines()
            if json.loads(first) == self.made_by:
                for line in lines:
                    name, state = json.loads(line)
                    self.files[name] = state

    def target(self, file: Path) -> Path:
        from pointvar.data.relabel import copy_name

        return self.job.output / copy_name(file)

    def holds(self, file: Path) -> bool:
        target = self.target(file)
        return target.is_file() and self.files.get(target.name) == self._state(file)

    def add(self, file: Path) -> None:
        from pointvar.atomic import write_atomically

        name = self.target(file).name
        self.files[name] = self._state(file)
        if self.begun:  # a line more, for there may be thousands
            with self.path.open("a", encoding="utf8") as lines:
                lines.write(json.dumps([name, self.files[name]]) + "\n")
        else:
            content = [self.made_by, *self.files.items()]
            write_atomically(self.path, "".join(json.dumps(each) + "\n" for each in content))
            self.begun = True

    def _state(self, file: Path) -> list[list[Any]]:
        paths = [self.target(file), file, *sorted(self.job.survey.neighbors(file))]
        states = [(path, path.stat()) for path in paths]
        return [[str(path), status.st_size, status.st_mtime_ns] for path, status in states]


class Progress:
    """How far all files are: a bar on a terminal, and a line per file with the time that is left."""

    def __init__(self, files: Sequence[Path]) -> None:
        from tqdm import tqdm

        self.sizes = {file: file.stat().st_size for file in files}
        self.begin, self.finished, self.count = time.monotonic(), 0, 0
        self.bar: Any = tqdm(total=sum(self.sizes.values()), unit="B", unit_scale=True, disable=None)
        self._parts: dict[Path, float] = {}

    def part(self, file: Path, share: float) -> None:
        """A share of a file more is done."""
        self._parts[file] = self._parts.get(file, 0.0) + share
        self._show()

    def done(self, file: Path) -> None:
        self._parts.pop(file, None)
        self.finished += self.sizes[file]
        self.count += 1
        self._show()

    def _show(self) -> None:
        now = self.finished + sum(self.sizes[file] * share for file, share in self._parts.items())
        self.bar.update(int(now) - self.bar.n)

    def tell(self, text: str, where: Any = None) -> None:
        from pointvar.progress import span

        if where is None and len(self.sizes) > 1 and self.finished:
            left = (time.monotonic() - self.begin) * (sum(self.sizes.values()) / self.finished - 1)
            text += f" [{self.count}/{len(self.sizes)}{f', {span(left)} left' if left else ''}]"
        self.bar.write(text, sys.stdout if where is None else where)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()


def summary(target: Path, counts: Sequence[int], classes: Sequence[str]) -> str:
    """A line about a file: its points, and the shares of the most frequent classes."""
    total = sum(counts)
    most = sorted(range(len(counts)), key=lambda i: -counts[i])[:5]
    shares = ", ".join(f"{classes[i]} {counts[i] / max(total, 1):.1%}" for i in most if counts[i])
    return f"{target}: {total:,} points" + (f"; {shares}" if shares else "")
