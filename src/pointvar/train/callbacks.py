"""What happens around the steps: a record, checkpoints, a line per epoch."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
from lightning.pytorch.callbacks import Checkpoint

from pointvar.train.config import Config

LAST = "last.ckpt"


class Interrupted(BaseException):
    """The run was asked to stop, and has saved its state."""


class Record(lightning.Callback):
    """A row of numbers per epoch: kept, part of the checkpoint, written as JSON lines and for TensorBoard."""

    def __init__(self, config: Config, say: Callable[[str], None] | None) -> None:
        self.config, self.say = config, say
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._begin = 0.0
        self._writer: Any = None

    @property
    def path(self) -> Path | None:
        return None if self.config.output is None else Path(self.config.output) / "metrics.jsonl"

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seconds": self.seconds + time.perf_counter() - self._begin}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.seconds = list(state["rows"]), state["seconds"]

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._begin = self._epoch_begin = time.perf_counter()
        if self.path is None or not trainer.is_global_zero:
            return
        from torch.utils.tensorboard import SummaryWriter

        # Rows after the checkpoint that is resumed are of steps that will be done again.
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        folder = str(self.path.parent / "tensorboard")
        self._writer = SummaryWriter(folder, purge_step=len(self.rows) + 1)

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._epoch_begin = time.perf_counter()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        loss, hits, count = module.epoch_totals().tolist()
        row: dict[str, Any] = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "rate": module.rate(trainer.current_epoch),
            "train_loss": loss / max(count, 1),
            "train_accuracy": hits / max(count, 1),
        }
        if module.metrics is not None:
            row |= module.metrics.scalars()
            module.metrics = None
        now = time.perf_counter()
        row["seconds"] = round(self.seconds + now - self._begin, 3)
        self.rows.append(row)
        if not trainer.is_global_zero:
            return
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            for name, value in row.items():
                if name not in ("epoch", "step"):
                    self._writer.add_scalar(name, value, row["epoch"])
            self._writer.flush()
        if self.say is not None:
            clouds = self.config.data.batch_size * int(trainer.num_training_batches)
            rate = clouds * trainer.world_size / max(now - self._epoch_begin, 1e-9)
            self.say(self._line(row, rate))

    def _line(self, row: dict[str, Any], rate: float) -> str:
        epochs = self.config.epochs
        left = row["seconds"] / row["epoch"] * (epochs - row["epoch"])
        parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['train_loss']:.4f}"]
        parts += [f"{n.replace('_', ' ')} {row[n]:.4f}" for n in ("accuracy", "mean_iou") if n in row]
        return "  ".join([*parts, f"{rate:.1f} clouds/s", f"{duration(left)} left"])

    def teardown(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        if self._begin:
            self.seconds += time.perf_counter() - self._begin
            self._begin = 0.0
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Checkpoints(Checkpoint):
    """Saves the state of a run after each epoch, after every so many steps, and when it is asked to stop.

    A checkpoint replaces the one before in one step of the file system, so that there is a whole one at any
    moment. Ctrl-C and SIGTERM let the present step end, save, and raise ``Interrupted``; a second Ctrl-C
    stops at once.
    """

    def __init__(self, folder: Path, steps: int | None = None) -> None:
        self.folder, self.steps = folder, steps
        self._asked = False
        self._saved_step = 0
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._saved_step = trainer.global_step
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._handlers[number] = signal.signal(number, self._ask)
            except ValueError:  # not the main thread: whoever runs this there stops it in his own way
                return

    def _ask(self, number: int, frame: Any) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, number: int
    ) -> None:
        step = trainer.global_step
        # Between two steps of the optimiser there are gradients, which a checkpoint does not hold; after the
        # last batch the epoch is about to end, which saves as well.
        between = (number + 1) % trainer.accumulate_grad_batches != 0
        if between or number + 1 >= trainer.num_training_batches:
            return
        asked = self._asked_anywhere(trainer)
        due = self.steps is not None and step % self.steps == 0 and step > self._saved_step
        if asked or due:
            self.save(trainer)
        if asked:
            raise Interrupted

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        self.save(trainer)
        if self._asked_anywhere(trainer) and trainer.current_epoch + 1 < (trainer.max_epochs or 0):
            raise Interrupted

    def _asked_anywhere(self, trainer: lightning.Trainer) -> bool:
        if trainer.world_size == 1:
            return self._asked
        return bool(trainer.strategy.reduce_boolean_decision(self._asked, all=False))

    def save(self, trainer: lightning.Trainer) -> None:
        """Writes the state of the run, whole or not at all."""
        temporary = self.folder / f".{LAST}.writing"
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, self.folder / LAST)
        self._saved_step = trainer.global_step

    def teardown(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


class Progress(lightning.Callback):
    """One line on a terminal that says how far the epoch and the run are."""

    def __init__(self, every: float = 0.5) -> None:
        self.every = every
        self._begin = self._last = 0.0
        self._first = 0

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._begin, self._first = time.perf_counter(), trainer.fit_loop.total_batch_idx + 1

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, number: int
    ) -> None:
        now = time.perf_counter()
        if now - self._last < self.every or not trainer.is_global_zero:
            return
        self._last = now
        batches = int(trainer.num_training_batches)
        done = trainer.current_epoch * batches + number + 1
        rate = (done - self._first) / max(now - self._begin, 1e-9)
        left = ((trainer.max_epochs or 0) * batches - done) / max(rate, 1e-9)
        loss, _, count = module.totals.tolist()
        text = (
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  batch {number + 1}/{batches}  "
            f"loss {loss / max(count, 1):.4f}  {rate:.1f} batches/s  {duration(left)} left"
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        sys.stderr.write("\r\x1b[K")


def duration(seconds: float) -> str:
    """h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def write_atomically(path: Path, text: str) -> None:
    """Writes a file that is whole or not there."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
