"""Training from a configuration: one function, from data to a result."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.loggers import Logger
from torch import nn

from pointvar.data import class_weights, label_counts
from pointvar.data.transforms import mixed, seeded
from pointvar.layers import restored
from pointvar.train.build import Data, build_model, load_data
from pointvar.train.callbacks import Best, Checkpoints, History, Interrupted, ProgressBar, Stopping
from pointvar.train.config import Config
from pointvar.train.divergence import DivergedError
from pointvar.train.initialise import VarianceInit, forward
from pointvar.train.loader import INIT, WEIGHTS, Loader, loaders
from pointvar.train.module import ClassificationModule, SegmentationModule
from pointvar.train.output import LAST_NETWORK, AtomicCheckpoints, Resumed, RunFolder, make_logger
from pointvar.train.voting import evaluate


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
    best: dict[str, Any] | None = None
    """With a part for validation: the epoch of the network that is kept, and its metrics there."""
    init: dict[str, Any] | None = field(default=None, repr=False)
    changed: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Settings that resumes have changed: step, setting, before, after."""

    @property
    def accuracy(self) -> list[float]:
        """Accuracy after each evaluated epoch, on the part for validation if there is one, else on the test
        data."""
        return [row["accuracy"] for row in self.history if "accuracy" in row]


def fit(
    config: Config,
    data: Data | None = None,
    *,
    model: nn.Module | None = None,
    resume: bool = False,
    callbacks: Sequence[lightning.Callback] = (),
    logger: Logger | Sequence[Logger] | None = None,
    verbose: bool | None = None,
) -> Result:
    """Trains a network and evaluates it.

    Args:
        config: the run; ``load_config("shapes")`` is one.
        data: data sets of your own, or loaded once for many runs by ``load_data(config.data)``.
        model: a network of your own instead of that of ``config.model``: ``model(features, levels)``, with a
            method ``hierarchy(cloud, generator=)`` that makes the levels.
        resume: goes on from the checkpoint in ``config.output``, if there is one. Settings that would need a
            new run must be those of the checkpoint.
        callbacks: more callbacks for Lightning's trainer.
        logger: one or more of Lightning's loggers, as you have set them up, instead of ``config.logger``.
        verbose: prints a line per epoch; default: if there is an output directory.

    A run that diverges gives a result that says so; it does not raise. With a part for validation, the
    network of the best evaluation is kept, and the test data are used once, at the end.

    Example::

        result = fit(load_config("shapes", overrides=["--epochs=5"]))
        print(result.accuracy)
    """
    verbose = config.output is not None if verbose is None else verbose
    with _surroundings(config.threads):
        init = VarianceInit.from_settings(config.init, mixed(config.seed, INIT))
        history = History(config, init, verbose)
        trainer = _trainer(config, [init, history, *callbacks], logger, verbose)
        folder = None if config.output is None else RunFolder(config.output, trainer.is_global_zero)
        with nullcontext() if folder is None else folder.held():
            last = None if folder is None else folder.checkpoint(config, resume)
            data = data or load_data(config.data)
            if config.early_stopping is not None and data.validation is None:
                raise ValueError(
                    "early_stopping needs a part for validation, such as data.validation=0.1: "
                    "by the test data a training must not be ended"
                )
            if model is None:
                model = build_model(config.model, data, seeded(config.seed, WEIGHTS))
            return _train(config, data, model, trainer, history, folder, last)


def _train(
    config: Config,
    data: Data,
    network: nn.Module,
    trainer: lightning.Trainer,
    history: History,
    folder: RunFolder | None,
    last: Resumed | None,
) -> Result:
    kind = ClassificationModule if data.task == "classification" else SegmentationModule
    weights = class_weights(label_counts(data.train)) if config.optimizer.class_weights else None
    train, test = loaders(config, data, network, trainer.global_rank, trainer.world_size)
    steps = config.epochs * math.ceil(len(train) / config.optimizer.accumulate)
    module = kind(network, data.classes, config.optimizer, weights, steps)
    check_single_clouds(network, train)
    if folder is not None and folder.writes:
        folder.begin(config)
    history.changed = [] if last is None else last.changed
    best = Best()
    if data.validation is not None:
        stopping = [] if config.early_stopping is None else [Stopping(config.early_stopping)]
        trainer.callbacks.extend([best, *stopping])  # type: ignore[attr-defined]
    result = Result([], {}, 0.0, 0, model=network, changed=history.changed)
    try:
        trainer.fit(module, train, test, ckpt_path=None if last is None else last.path, weights_only=True)
    except DivergedError as error:
        result.diverged = str(error)
    except Interrupted:
        result.interrupted = True
    except SystemExit as error:  # Lightning would end the process at a second Ctrl-C
        raise KeyboardInterrupt from error
    result.history, result.seconds, result.steps = history.rows, history.seconds, trainer.global_step
    result.init = history.init
    if result.interrupted or not trainer.is_global_zero:
        return result
    if best.row is not None:
        if folder is not None:
            folder.save(LAST_NETWORK, config, data, network)
        network.load_state_dict(best.weights)
        result.best = best.row
    if result.diverged is None:
        metrics = module.metrics if config.epochs % config.evaluate_every == 0 else None
        # Else the last epoch's evaluation was the same.
        if config.votes > 1 or metrics is None or data.validation is not None:
            metrics = evaluate(network, data, config.data, config.votes, config.seed)
        result.metrics = asdict(metrics)
    if folder is not None:
        folder.finish(config, data, result)
    return result


def _trainer(
    config: Config,
    callbacks: list[lightning.Callback],
    logger: Logger | Sequence[Logger] | bool | None,
    verbose: bool,
) -> lightning.Trainer:
    if config.output is not None:
        folder = Path(config.output)
        logger = make_logger(config.logger, folder) if logger is None else logger
        callbacks.append(Checkpoints(folder, config.checkpoint_steps))
    bar = verbose and sys.stdout.isatty()
    return lightning.Trainer(
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
        logger=False if logger is None else logger,
        log_every_n_steps=1,
        plugins=AtomicCheckpoints(),
        enable_checkpointing=config.output is not None,
        enable_progress_bar=bar,
        enable_model_summary=False,
        callbacks=[*callbacks, *([ProgressBar()] if bar else [])],
    )


def check_single_clouds(model: nn.Module, loader: Loader) -> None:
    """Raises before the first step if a batch of one cloud is to come that the network cannot train on."""
    batches = loader.batches
    single = [index for index in batches.plan() if len(index.items) == 1]  # of any rank: all stop, or none
    if not single:
        return
    batch = loader.preparation[single[0]]
    try:
        with torch.no_grad(), restored(model, "train"):
            forward(model, batch)
    except ValueError as error:
        rest = batches.batch_size > 1
        advice = "; or leave out the smaller last batch: data.drop_last=true" if rest else ""
        raise ValueError(f"a batch of one cloud is to come: {error}{advice}") from error


@contextmanager
def _surroundings(threads: int | None) -> Iterator[None]:
    """As many threads as asked for, the random state of the caller kept, and without Lightning's
    advertisements and advice, and its use of what torch has deprecated."""
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level, torch.get_num_threads()
    logger.setLevel(logging.WARNING)
    torch.set_num_threads(before[1] if threads is None else threads)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", ".* does not have many workers")
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
            yield
    finally:
        logger.setLevel(before[0])
        torch.set_num_threads(before[1])
