"""What happens around the steps beyond what Lightning does: a row per epoch, exact resuming."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar

from pointvar.atomic import names_file, write_atomically
from pointvar.progress import span
from pointvar.train.config import Config
from pointvar.train.initialise import VarianceInit
from pointvar.train.module import SCORE
from pointvar.train.output import LAST, plain_settings


class Interrupted(BaseException):
    """The run was asked to stop, and has saved its state."""


class History(lightning.Callback):
    """A row of numbers per epoch: given to the loggers, written to ``metrics.jsonl``, part of the checkpoint.

    The rows come back with a checkpoint, and the file is then written anew: epochs after the checkpoint are
    done again. (Lightning's ``CSVLogger`` would begin with an empty file.) So does what else a run is to
    remember: its settings, which of them were changed, and what the initialisation did.
    """

    def __init__(self, config: Config, init: VarianceInit, verbose: bool) -> None:
        self.config, self.verbose, self._initialisation = config, verbose, init
        self.path = None if config.output is None else Path(config.output) / "metrics.jsonl"
        self.rows: list[dict[str, Any]] = []
        self.init: dict[str, Any] | None = None
        self.changed: list[dict[str, Any]] = []
        self._before = self._epoch_begin = self._rate = 0.0
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        """Of training, with what was before a resume."""
        return self._before + (0.0 if self._begin is None else time.perf_counter() - self._begin)

    def state_dict(self) -> dict[str, Any]:
        # As JSON, since only plain values can be loaded again.
        init = None if self.init is None else json.dumps(self.init, default=float)
        settings = plain_settings(self.config)
        remembered = {"init": init, "settings": settings, "changed": self.changed}
        return {"rows": self.rows, "seconds": self.seconds, **remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self._before = list(state["rows"]), state["seconds"]
        init = state.get("init")  # not in checkpoints of older versions
        self.init = None if init is None else json.loads(init)

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._begin = self._epoch_begin = time.perf_counter()
        if self._initialisation.report is not None:
            self.init = self._initialisation.report.to_dict()
        for logger in trainer.loggers:
            logger.log_hyperparams(asdict(self.config))
        if self.path is not None and trainer.is_global_zero:
            write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._epoch_begin = time.perf_counter()

    def on_train_batch_start(self, trainer: lightning.Trainer, module: Any, batch: Any, number: int) -> None:
        # At the end of the epoch it is that of the next one.
        self._rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        loss, hits, count = module.epoch_totals().tolist()
        numbers = {
            "rate": self._rate,
            "train_loss": loss / max(count, 1),
            "train_accuracy": hits / max(count, 1),
        }
        epoch = trainer.current_epoch + 1
        every = trainer.check_val_every_n_epoch  # fit always gives one; Lightning's type allows None
        if every and epoch % every == 0:
            numbers |= module.metrics.scalars()
        numbers["seconds"] = round(self.seconds, 3)
        row = {"epoch": epoch, "step": trainer.global_step, **numbers}
        self.rows.append(row)
        for logger in trainer.loggers:
            logger.log_metrics(numbers, epoch)
            logger.save()
        if self.path is not None and trainer.is_global_zero:
            with names_file(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        if self.verbose:
            clouds = self.config.data.batch_size * int(trainer.num_training_batches) * trainer.world_size
            parts = [f"epoch {epoch}/{self.config.epochs}", f"loss {row['train_loss']:.4f}"]
            parts += [f"{n.replace('_', ' ')} {row[n]:.4f}" for n in ("accuracy", "mean_iou") if n in row]
            parts.append(f"{clouds / (time.perf_counter() - self._epoch_begin):.1f} clouds/s")
            left = row["seconds"] / epoch * (self.config.epochs - epoch)
            module.print("  ".join([*parts, f"{span(left)} left"]))


class Best(lightning.Callback):
    """Keeps the weights with the best score of all evaluations, of equal ones the first.

    They are in memory and part of each checkpoint, so that a run without a folder has them as well, and one
    whose folder was moved. (Lightning's ``ModelCheckpoint`` keeps the path of a file.)
    """

    def __init__(self) -> None:
        self.score = -math.inf
        self.row: dict[str, Any] | None = None
        self.weights: dict[str, Any] = {}

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: Any) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.check_val_every_n_epoch = 1  # the last network may be the best in any case

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        score = float(trainer.callback_metrics[SCORE])
        if score > self.score:
            self.score, self.row = score, {"epoch": trainer.current_epoch + 1, **module.metrics.scalars()}
            self.weights = {
                name: value.detach().to("cpu", copy=True) for name, value in module.model.state_dict().items()
            }

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score, "row": self.row, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.score, self.row, self.weights = state["score"], state["row"], state["weights"]


class Stopping(EarlyStopping):
    """Lightning's early stopping; a run that has stopped, and is resumed, has nothing more to do."""

    def __init__(self, patience: int) -> None:
        # Counted with the evaluation, so that the checkpoint at the end of the epoch knows of it.
        super().__init__(SCORE, patience=patience, mode="max", check_on_train_epoch_end=False)

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class Checkpoints(ModelCheckpoint):
    """Lightning's checkpoint of each epoch, and more of them, only where a run goes on from them to the bit.

    These are made after every so many steps, and when the run is asked to stop: Ctrl-C and SIGTERM let the
    present step end, save, and raise ``Interrupted``; a second Ctrl-C stops at once. (Lightning would stop
    between two steps of the optimiser, whose gradients no checkpoint holds.)
    """

    def __init__(self, folder: Path, steps: int | None = None) -> None:
        super().__init__(
            folder,
            Path(LAST).stem,
            every_n_epochs=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        self.path, self.steps = folder / LAST, steps
        self._asked = False

    def state_dict(self) -> dict[str, Any]:
        return {}  # there is one file, wherever the folder has been moved to

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        # In another thread than the main one, whoever runs this stops it in his own way. Lightning puts the
        # handlers back in the end.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, number: int
    ) -> None:
        # After the last batch the epoch is about to end, which saves as well.
        between = (number + 1) % trainer.accumulate_grad_batches != 0
        if between or number + 1 >= trainer.num_training_batches:
            return
        asked = self._asked_anywhere(trainer)
        if asked or (self.steps is not None and trainer.global_step % self.steps == 0):
            trainer.save_checkpoint(self.path)
        if asked:
            raise Interrupted

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        super().on_train_epoch_end(trainer, module)
        if self._asked_anywhere(trainer) and trainer.current_epoch + 1 < (trainer.max_epochs or 0):
            raise Interrupted

    def _asked_anywhere(self, trainer: lightning.Trainer) -> bool:
        return trainer.strategy.reduce_boolean_decision(self._asked, all=False)


class ProgressBar(TQDMProgressBar):
    """Lightning's bar, with epochs counted from one and the mean loss of the epoch so far."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")

    def get_metrics(self, trainer: lightning.Trainer, module: Any) -> dict[str, Any]:
        loss, _, count = module.totals.tolist()
        return {"loss": f"{loss / max(count, 1):.4f}"}
