"""Training from a configuration: one function, from data to a result."""

from __future__ import annotations

import json
import logging
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

import pointvar
from pointvar.data import CropSampler, SphereCrops, class_weights, count_labels
from pointvar.data.crops import Place
from pointvar.layers import restored
from pointvar.models import save
from pointvar.models.storage import can_save
from pointvar.train.build import build_model
from pointvar.train.callbacks import (
    LAST,
    Checkpoints,
    Interrupted,
    Progress,
    Record,
    write_atomically,
)
from pointvar.train.config import Config
from pointvar.train.divergence import DivergedError
from pointvar.train.initialise import VarianceInit, forward
from pointvar.train.loader import (
    INIT,
    ORDER,
    TEST,
    TRAIN,
    WEIGHTS,
    Fixed,
    Loader,
    Planned,
    Preparation,
    Shuffled,
    generator,
)
from pointvar.train.module import ClassificationModule, SegmentationModule
from pointvar.train.sources import Data, load_data, transform_of
from pointvar.train.voting import covering, evaluate

KEPT_POINTS = 500_000
"""Test sets of at most so many points keep their prepared batches from one evaluation to the next."""


@dataclass
class Result:
    """What came out of a run."""

    history: list[dict[str, Any]]
    """A row per epoch: train_loss, train_accuracy, accuracy, mean_accuracy, mean_iou, rate, seconds, ..."""
    metrics: dict[str, Any]
    """Of the final evaluation; empty if there was none."""
    seconds: float
    """Of training, evaluations between epochs included."""
    steps: int
    diverged: str | None = None
    """Why the run could not go on, if so."""
    interrupted: bool = False
    """It was asked to stop; ``fit(config, resume=True)`` goes on."""
    model: nn.Module | None = field(default=None, repr=False)
    init: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def accuracy(self) -> list[float]:
        """Accuracy on the test data after each evaluated epoch."""
        return [row["accuracy"] for row in self.history if "accuracy" in row]


def fit(
    config: Config,
    data: Data | None = None,
    *,
    model: nn.Module | None = None,
    resume: bool = False,
    callbacks: Sequence[lightning.Callback] = (),
    verbose: bool | None = None,
) -> Result:
    """Trains a network and evaluates it.

    Args:
        config: the run; ``load_config("shapes")`` is one.
        data: data sets of your own, or loaded once for many runs by ``load_data(config.data)``.
        model: a network of your own instead of that of ``config.model``: ``model(features, levels)``, with a
            method ``hierarchy(cloud, generator=)`` that makes the levels.
        resume: goes on from the checkpoint in ``config.output``, if there is one.
        callbacks: more callbacks for Lightning's trainer.
        verbose: prints a line per epoch; default: if there is an output directory.

    A run that diverges gives a result that says so; it does not raise.

    Example::

        result = fit(load_config("shapes", "norm-free", overrides=["--epochs=5"]))
        print(result.accuracy)
    """
    verbose = config.output is not None if verbose is None else verbose
    with _threads(config.threads), _quiet(), torch.random.fork_rng(devices=[]):
        return _Run(config, data or load_data(config.data), verbose, model).train(resume, callbacks)


class _Run:
    def __init__(self, config: Config, data: Data, verbose: bool, model: nn.Module | None) -> None:
        self.config, self.data, self.verbose = config, data, verbose
        random = generator(config.seed, WEIGHTS)
        self.model = build_model(config.model, data, random) if model is None else model
        kind = ClassificationModule if data.task == "classification" else SegmentationModule
        weights = None
        if config.optimizer.class_weights:
            labels = (data.train[index].label for index in range(len(data.train)))
            weights = class_weights(count_labels(labels, len(data.classes)))
        self.module = kind(self.model, data.classes, config.optimizer, weights)
        self.train_loader, self.test_loader = self._loader(TRAIN), self._loader(TEST)

    def _loader(self, stream: int) -> Loader:
        config, seed, train = self.config.data, self.config.seed, stream == TRAIN
        samples: Any = self.data.train if train else self.data.test
        order: Shuffled | Planned | Fixed
        if self.data.task == "segmentation":
            order = self._planned(samples) if train else Fixed(self._covering(samples))
            keep = False
            samples = SphereCrops(samples, config.radius, config.context)
        else:
            order = Shuffled(len(samples), seed) if train else Fixed(range(len(samples)))
            keep = config.cache and not train and len(samples) * len(samples[0]) <= KEPT_POINTS
        transform = transform_of(config, self.data.task, augment=train)
        return Loader(
            Preparation(samples, self.model, transform, seed, stream),
            order,
            config.batch_size if train or self.data.task == "segmentation" else max(config.batch_size, 8),
            training=train,
            drop_last=config.drop_last and train,
            workers=0 if keep else config.workers,
            pin=torch.cuda.is_available(),
            keep=keep,
        )

    def _planned(self, scenes: Any) -> Planned:
        config = self.config.data
        length = len(scenes) if config.crops is None else config.crops
        return Planned(
            lambda: CropSampler(scenes, config.radius, length, generator(self.config.seed, TRAIN, ORDER))
        )

    def _covering(self, scenes: Any) -> list[Place]:
        """Places whose spheres cover the test scenes, the same in each evaluation."""
        config, places = self.config.data, list[Place]()
        for index in range(len(scenes)):
            random = generator(self.config.seed, TEST, ORDER, index)
            centres = covering(scenes[index], config.radius, random)
            places += [Place(index, centre, len(places) + n) for n, centre in enumerate(centres)]
        return places

    def train(self, resume: bool, callbacks: Sequence[lightning.Callback]) -> Result:
        config, data = self.config, self.data
        folder = None if config.output is None else Path(config.output)
        last = folder / LAST if folder is not None and resume and (folder / LAST).exists() else None
        check_single_clouds(self.model, self.train_loader)
        init = VarianceInit.from_settings(config.init, generator(config.seed, INIT).initial_seed())
        record = Record(config, print if self.verbose else None)
        chosen: list[lightning.Callback] = [_Ranks(self), init, record, *callbacks]
        if folder is not None:
            if not rank_zero_only.rank:  # type: ignore[attr-defined]  # known before processes are joined
                write_run(folder, config, resume=last is not None)
            chosen.append(Checkpoints(folder, config.checkpoint_steps))
        if self.verbose and sys.stderr.isatty():
            chosen.append(Progress())
        trainer = lightning.Trainer(
            max_epochs=config.epochs,
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.nodes,
            strategy="ddp" if config.devices * config.nodes > 1 else "auto",
            precision="bf16-mixed" if config.bf16 else "32-true",
            accumulate_grad_batches=config.optimizer.accumulate,
            check_val_every_n_epoch=config.evaluate_every,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=folder is not None,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=chosen,
        )
        result = Result(record.rows, {}, 0.0, 0, model=self.model)
        try:
            trainer.fit(self.module, self.train_loader, self.test_loader, ckpt_path=last, weights_only=True)
        except DivergedError as error:
            result.diverged = str(error)
        except Interrupted:
            result.interrupted = True
        finally:
            self.train_loader.close()
            self.test_loader.close()
        result.history, result.seconds, result.steps = record.rows, record.seconds, trainer.global_step
        result.init = None if init.report is None else init.report.to_dict()
        if not result.interrupted and result.diverged is None and trainer.is_global_zero:
            metrics = self.module.final if config.epochs % config.evaluate_every == 0 else None
            if config.votes > 1 or data.task == "segmentation" or metrics is None:
                metrics = evaluate(self.model, data, config.data, config.votes, config.seed)
            result.metrics = asdict(metrics)
        if folder is not None and not result.interrupted and trainer.is_global_zero:
            write_summary(folder, config, data, result)
        return result


class _Ranks(lightning.Callback):
    """Tells the loaders which share of the batches is theirs."""

    def __init__(self, run: _Run) -> None:
        self.loaders = [run.train_loader, run.test_loader]

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        for loader in self.loaders:
            loader.set_rank(trainer.global_rank, trainer.world_size)


def check_single_clouds(model: nn.Module, loader: Loader) -> None:
    """Raises before the first step if a batch of one cloud is to come that the network cannot train on."""
    single = [task for task in loader.tasks(0) if len(task.items) == 1]
    if not single:
        return
    batch = loader.preparation[single[0]]
    try:
        with torch.no_grad(), restored(model, "train"):
            forward(model, batch)
    except ValueError as error:
        rest = len(loader.order) % loader.batch_size == 1 and loader.batch_size > 1
        advice = "; or leave out the smaller last batch: data.drop_last=true" if rest else ""
        raise ValueError(f"a batch of one cloud is to come: {error}{advice}") from error


def write_run(folder: Path, config: Config, resume: bool) -> None:
    """What a run is, in its directory: configuration, seed, versions."""
    folder.mkdir(parents=True, exist_ok=True)
    if not resume and (folder / LAST).exists():
        raise ValueError(f"{folder} holds a run already: resume it, or choose another output directory")
    write_atomically(folder / "config.yaml", config.to_yaml())
    versions = {
        "pointvar": pointvar.__version__,
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "native": pointvar.native_info(),
        "seed": config.seed,
    }
    write_atomically(folder / "versions.json", json.dumps(versions, indent=1) + "\n")


def write_summary(folder: Path, config: Config, data: Data, result: Result) -> None:
    """What came out, in the directory of the run: the network and a summary."""
    assert result.model is not None
    notes = {"classes": data.classes, "task": data.task, "data": asdict(config.data)}
    if can_save(result.model):  # one of the user's own need not be
        save(result.model, folder / "model.safetensors", **notes)
    summary = {
        "metrics": result.metrics,
        "diverged": result.diverged,
        "epochs": len(result.history),
        "steps": result.steps,
        "seconds": round(result.seconds, 3),
        "parameters": sum(p.numel() for p in result.model.parameters()),
        "init": result.init,
        "last_epoch": result.history[-1] if result.history else None,
    }
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's advertisements, and its use of what torch has deprecated."""
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec", FutureWarning)
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
