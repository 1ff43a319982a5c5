"""The trainings of the demonstration: two tasks, the same network in four ways, and one rule for the rates.

Every way is first trained at each of ``RATES``, for few epochs. The rate that does best on validation data,
which are neither trained nor tested on, is that of the whole trainings, one for each of ``SEEDS``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar.atomic import write_atomically
from pointvar.cloud import PointCloud
from pointvar.convolution import PointConvolution
from pointvar.data import Rooms, Sample, Shapes, collate
from pointvar.data.transforms import NormalizeBox, seeded
from pointvar.diagnose import variance_report
from pointvar.geometry import Hierarchy
from pointvar.init import standard_init, variance_init
from pointvar.models import PlainNet
from pointvar.nn import global_mean, linear
from pointvar.train import RECIPES, Config, Data, fit, load_config, predict_scene

STANDARD = {"method": "standard"}
WAYS: dict[str, dict[str, Any] | str] = {
    "batch norm": {"model": {"norm": "batch"}, "init": STANDARD},
    "group norm": {"model": {"norm": "group"}, "init": STANDARD},
    "as published": {"optimizer": {"name": RECIPES["published"]["optimizer"]["name"]}},
    "norm-free": "norm-free",
}
"""Settings over the recipe published and those of a task, or the recipe of that name."""
RATES = (0.01, 0.03, 0.1, 0.3)
"""Of SGD; AdamW has a tenth of each."""
SEEDS = (0, 1, 2)
SHARED: dict[str, Any] = {
    "optimizer": {name: RECIPES["norm-free"]["optimizer"][name] for name in ("name", "schedule", "warmup")},
    # Trainings this small gain nothing from a second thread: each has a process of its own.
    "threads": 1,
    "accelerator": "cpu",
}
METHOD = "KPConvN"


@dataclass(frozen=True)
class SegmentRooms:
    """A class for each point of small rooms: a U-Net that sees one sphere per step."""

    rooms: int = 64
    tests: int = 6
    points: int = 2048
    crops: int = 64
    epochs: int = 5
    few: int = 2

    name: ClassVar[str] = "rooms"
    kind: ClassVar[Literal["segmentation"]] = "segmentation"
    score: ClassVar[str] = "mean_iou"
    classes: ClassVar[tuple[str, ...]] = ("floor", "ceiling", "wall", "furniture")

    def settings(self) -> dict[str, Any]:
        sphere = {"radius": 1.5, "context": 2.0, "crops": self.crops, "batch_size": 1}
        model = {"method": METHOD, "channels": [16, 32, 64], "radii": [0.2, 0.4, 0.8], "first_reach": 1.5}
        return {
            "data": {"name": "rooms", **sphere},
            "model": {"network": "unet", "dropout": 0.0, **model},
            "optimizer": {"class_weights": True},
        }

    def samples(self, split: str) -> list[Sample]:
        size = self.rooms if split == "train" else self.tests
        rooms = Rooms(size, split, self.points, floor=(3.0, 4.0))
        kinds = {"door": "wall", "window": "wall"} | {name: name for name in self.classes}
        table = [self.classes.index(kinds.get(name, "furniture")) for name in rooms.classes]
        samples = (rooms[index] for index in range(size))
        return [replace(room, label=torch.tensor(table)[room.label]) for room in samples]

    def network(self, config: Config, generator: torch.Generator) -> nn.Module | None:
        return None  # the one of the settings


@dataclass(frozen=True)
class ClassifyShapes:
    """A class for each cloud of four easy ones: a plain network, without pooling or skips."""

    depth: int = 25
    channels: int = 16
    shapes: int = 200
    tests: int = 200
    points: int = 128
    epochs: int = 5
    few: int = 2

    name: ClassVar[str] = "shapes"
    kind: ClassVar[Literal["classification"]] = "classification"
    score: ClassVar[str] = "accuracy"
    classes: ClassVar[tuple[str, ...]] = ("ellipsoid", "torus", "table", "lamp")

    def settings(self) -> dict[str, Any]:
        return {
            "data": {"name": "shapes", "normals": True, "batch_size": 4},
            "model": {"method": METHOD, "radii": [0.2]},
        }

    def samples(self, split: str) -> list[Sample]:
        """Classes take turns."""
        size = self.shapes if split == "train" else self.tests
        own = len(self.classes)
        every = Shapes(0).classes
        shapes = Shapes(len(every) * size, split, self.points, partial=False, normals=True)
        places = [(i // own * len(every) + every.index(self.classes[i % own]), i % own) for i in range(size)]
        return [replace(shapes[place], label=label) for place, label in places]

    def network(self, config: Config, generator: torch.Generator) -> nn.Module | None:
        return DeepNet(self, config, generator)


Task = SegmentRooms | ClassifyShapes
TASKS: tuple[SegmentRooms, ClassifyShapes] = (SegmentRooms(), ClassifyShapes())


class DeepNet(nn.Module):
    """Convolutions one after the other on one level, the mean over each cloud, and a linear layer."""

    def __init__(self, task: ClassifyShapes, config: Config, generator: torch.Generator) -> None:
        super().__init__()
        model = config.model
        self.radius, self.max_neighbors = (model.radii or [])[0], model.max_neighbors
        chosen = {name: getattr(model, name) for name in ("method", "norm", "unit_response", "precondition")}
        self.features = PlainNet(
            task.depth, task.channels, 3, radius=3 * self.radius, generator=generator, **chosen
        )
        self.head = linear(task.channels, len(task.classes), generator)

    def hierarchy(self, cloud: PointCloud, generator: torch.Generator | None = None) -> Hierarchy:
        levels = Hierarchy(cloud, [self.radius], 3.0, self.max_neighbors, generator)
        levels.within(0)
        return levels

    def forward(self, features: Tensor, levels: Hierarchy) -> Tensor:
        hood = levels.within(0)
        features = self.features(features[levels.kept[0]], hood)
        return self.head(global_mean(functional.leaky_relu(features, 0.2), hood.queries))


@dataclass(frozen=True)
class Trial:
    """One training, kept in one file; without a seed it is one that chooses a rate."""

    task: Task
    way: str
    rate: float
    seed: int | None = None

    @property
    def name(self) -> str:
        kind = "rate" if self.seed is None else self.seed
        return f"{self.task.name} {self.way} {self.rate:g} {kind}".replace(" ", "-")

    @property
    def epochs(self) -> int:
        return self.task.few if self.seed is None else self.task.epochs

    def config(self) -> Config:
        return _config(self)

    def settings(self) -> str:
        """All that the result depends on."""
        return f"{self.task}\n{self.config().to_yaml()}"

    def stored(self, folder: Path) -> dict[str, Any] | None:
        """The result of an earlier run, unless it was made otherwise or is not whole."""
        try:
            result = json.loads((folder / f"{self.name}.json").read_text("utf-8"))
            return result if result["settings"] == self.settings() else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def run(self, folder: Path) -> dict[str, Any]:
        """Trains, tests, and writes what came out."""
        config, data = self.config(), data_of(self.task)[self.seed is None]
        network = self.task.network(config, torch.Generator().manual_seed(config.seed))
        result = fit(config, data, model=network, verbose=False)
        told: dict[str, Any] = {"settings": self.settings(), "history": result.history}
        told |= {"metrics": result.metrics, "diverged": None}
        if result.diverged is not None:
            told["diverged"] = result.diverged.splitlines()[0]
        elif data.task == "segmentation" and self.seed is not None:
            assert result.model is not None
            told["prediction"] = predict_scene(result.model, data.test[0], config.data)[0].tolist()
        write_atomically(folder / f"{self.name}.json", json.dumps(told) + "\n")
        return told


@cache  # reading settings takes as long as ten steps
def _config(trial: Trial) -> Config:
    seed = SEEDS[0] if trial.seed is None else trial.seed
    own = {"seed": seed, "epochs": trial.epochs, "evaluate_every": trial.epochs}
    config = load_config("published", SHARED, trial.task.settings(), WAYS[trial.way], own)
    config.optimizer.rate = trial.rate * (0.1 if config.optimizer.name == "adamw" else 1.0)
    return config


@cache
def data_of(task: Task) -> tuple[Data, Data]:
    """To train and test on, and to choose the rate on; made once in each process."""
    train, test, validation = (task.samples(split) for split in ("train", "test", "validation"))
    make = partial(Data, train, classes=list(task.classes), num_features=3, task=task.kind)
    return make(test), make(validation)


@dataclass
class Row:
    """A way at the rate that was chosen for it, with a result per seed."""

    task: Task
    way: str
    rate: float
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        """Of the seeds that did not diverge."""
        return [r["metrics"][self.task.score] for r in self.results if r["diverged"] is None]

    @property
    def diverged(self) -> int:
        return len(self.results) - len(self.scores)

    @property
    def middle(self) -> dict[str, Any]:
        """The result of the seed with the median score; of all that diverged, the first."""
        finished = [result for result in self.results if result["diverged"] is None]
        ordered = sorted(finished, key=lambda result: result["metrics"][self.task.score])
        return ordered[len(ordered) // 2] if ordered else self.results[0]


def run_all(folder: Path, processes: int) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Trains whatever is not stored in a folder, so many at a time, and gives each trial and its result."""
    # Tasks take turns, so that the time left is told well from the start.
    waiting = deque(Trial(task, way, rate) for way in WAYS for rate in RATES for task in TASKS)
    running: dict[Future[dict[str, Any]], Trial] = {}
    results: dict[Trial, dict[str, Any]] = {}
    with _Here() if processes == 1 else _Workers(processes) as workers:
        while waiting or running:
            while waiting and len(running) < processes:
                trial = waiting.popleft()
                ready = trial.stored(folder)
                running[_finished(ready) if ready else workers.submit(trial.run, folder)] = trial
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                results[trial] = future.result()
                yield trial, results[trial]
                found = validation(trial.task, trial.way, results)
                if trial.seed is None and len(found) == len(RATES):
                    rate = chosen_rate(found)
                    waiting.extend(Trial(trial.task, trial.way, rate, seed) for seed in SEEDS)


def validation(task: Task, way: str, results: Mapping[Trial, dict[str, Any]]) -> dict[float, float | None]:
    """The score on validation data at each rate that was tried, ``None`` where the training diverged."""
    told = {rate: results.get(Trial(task, way, rate)) for rate in RATES}
    return {
        rate: None if result["diverged"] else result["metrics"][task.score]
        for rate, result in told.items()
        if result is not None
    }


def chosen_rate(scores: Mapping[float, float | None]) -> float:
    """The best; if all have diverged, the smallest."""
    return max(sorted(scores), key=lambda rate: -1.0 if (score := scores[rate]) is None else score)


def rows(results: dict[Trial, dict[str, Any]]) -> list[Row]:
    """What came out: a row for each task and way."""
    found = []
    for task in TASKS:
        for way in WAYS:
            rate = chosen_rate(validation(task, way, results))
            found.append(Row(task, way, rate, [results[Trial(task, way, rate, seed)] for seed in SEEDS]))
    return found


def variance_by_depth(task: ClassifyShapes, clouds: int = 32) -> dict[str, dict[str, list[float]]]:
    """Without norms, before any training: the second moment of each layer's output, and the part of it that
    differs between points."""
    batch = collate(
        [NormalizeBox()(data_of(task)[0].train[i], seeded(0)) for i in range(min(clouds, task.shapes))]
    )
    panels: dict[str, dict[str, list[float]]] = {"second moment": {}, "part that differs between points": {}}
    plain = {way: set_by for way, set_by in WAYS.items() if load_config(set_by).model.norm == "none"}
    ways = {**dict(reversed(plain.items())), "weights as for images": {"init": STANDARD}}
    for name, way in ways.items():
        config = load_config("published", SHARED, task.settings(), way)
        network = DeepNet(task, config, seeded(0))
        levels = network.hierarchy(batch.cloud, seeded(0))
        inputs = batch.features, levels
        if config.init.method == "standard":
            standard_init(network, generator=seeded(0))
        else:
            variance_init(network, inputs, layers=PointConvolution, generator=seeded(0))
        report = variance_report(network, inputs, backward=False, layers=PointConvolution)
        for panel, measured in zip(panels.values(), ("variance", "spatial"), strict=True):
            panel[name] = [getattr(layer, measured) for layer in report.layers]
    return panels


def count() -> int:
    """Number of all trainings."""
    return len(TASKS) * len(WAYS) * (len(RATES) + len(SEEDS))


def epochs() -> int:
    """Of all trainings together."""
    return len(WAYS) * sum(len(RATES) * task.few + len(SEEDS) * task.epochs for task in TASKS)


def names() -> list[str]:
    """Of all trainings that there may be, whichever rates are chosen."""
    return [Trial(*each).name for each in product(TASKS, WAYS, RATES, (None, *SEEDS))]


def _finished(result: dict[str, Any]) -> Future[dict[str, Any]]:
    future: Future[dict[str, Any]] = Future()
    future.set_result(result)
    return future


class _Here(Executor):
    """Runs whatever it is given at once, in this process."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        return _finished(function(*arguments, **options))


class _Workers(ProcessPoolExecutor):
    """Processes that end as soon as this one is interrupted or gone."""

    def __init__(self, processes: int) -> None:
        # A forked process could not use the threads of this one.
        super().__init__(processes, multiprocessing.get_context("spawn"), _follow_parent)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            for child in multiprocessing.active_children():
                child.kill()  # Lightning would let a training go on after SIGTERM
        self.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """In a worker: Ctrl-C is the parent's to handle, and nobody waits for what is left without one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
