"""The folder of a run: who may write into it, what it holds, and where a run goes on.

=====================  =======================================================================
``config.yaml``        the settings
``versions.json``      versions and hardware
``metrics.jsonl``      a row per epoch
``last.ckpt``          the state after the last epoch, or after so many steps
``previous.ckpt``      the one before, in case the last cannot be read
``summary.json``       what came out
``model.safetensors``  the network: the best of the validation, if there is such a part, else the last
``last.safetensors``   with a part for validation: the last network
``running.json``       which process is at it; gone when it ends
=====================  =======================================================================
"""

from __future__ import annotations

import json
import os
import platform
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import torch
import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

import pointvar
from pointvar.atomic import names_file, write_atomically
from pointvar.models import save
from pointvar.models.storage import can_save
from pointvar.train.build import Data
from pointvar.train.config import Config, load_config

if TYPE_CHECKING:
    from pointvar.train.fit import Result

NETWORK, LAST_NETWORK = "model.safetensors", "last.safetensors"
LAST, PREVIOUS, DAMAGED = "last.ckpt", "previous.ckpt", "damaged.ckpt"
RUNNING, LOCK = "running.json", ".lock"
WRITTEN = (
    "config.yaml",
    "versions.json",
    "metrics.jsonl",
    LAST,
    "summary.json",
    NETWORK,
    LAST_NETWORK,
    RUNNING,
)

MAY_CHANGE = {
    "epochs": "how long the run goes on",
    "evaluate_every": "evaluations do not change the training",
    "votes": "of the final evaluation only",
    "output": "the folder may have been moved",
    "data.path": "the data may have been moved",
    "data.scenes": "the lists may have been moved",
    "data.workers": "the batches are the same",
    "data.cache": "the batches are the same",
    "model.recompute": "the gradients are the same",
    "logger": "where numbers are shown",
    "checkpoint_steps": "how often the state is saved",
    "threads": "the machine may be another",
    "accelerator": "the machine may be another",
    "devices": "the machine may be another; only between epochs, whose batches the processes share",
    "nodes": "as devices",
}
"""The settings that a resumed run may change, and why. A change of any other is refused: the weights so far,
the optimiser's state and the random numbers come from the value that the run was started with."""


class DamagedError(ValueError):
    """A checkpoint that is not what was written."""


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints with a checksum, of which the last and the one before are kept.

    The new file is whole before the others are renamed, so that there is a whole one at any moment. The
    checksum is the comment of the zip file that torch writes: any reader of torch's files still reads it.
    (Lightning writes a temporary file elsewhere and moves it, which is a copy from one disk to another.)
    """

    MARK = b"pointvar sha256 "
    COMMENT = len(MARK) + 32

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        buffer.seek(-2, os.SEEK_END)  # a zip file ends with the length of its comment
        buffer.write(self.COMMENT.to_bytes(2, "little"))
        digest = sha256(buffer.getbuffer()).digest()
        buffer.write(self.MARK + digest)
        write_atomically(path, buffer.getbuffer(), keep=Path(path).with_name(PREVIOUS))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """What a file holds: plain values and tensors on the CPU. Files without a checksum are older."""
        content, end = Path(path).read_bytes(), -self.COMMENT
        sealed = content[end:-32] == self.MARK
        if sealed and sha256(memoryview(content)[:end]).digest() != content[-32:]:
            raise DamagedError(f"{path} is damaged: it does not fit its checksum")
        try:
            checkpoint = torch.load(BytesIO(content), "cpu", weights_only=True)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            if sealed:
                raise ValueError(f"{path} cannot be loaded by this version: {reason}") from error
            raise DamagedError(f"{path} is damaged: {reason}") from error
        if not isinstance(checkpoint, dict) or not {"loops", "callbacks"} <= checkpoint.keys():
            raise DamagedError(f"{path} is not the checkpoint of a run")
        return checkpoint


@dataclass
class Resumed:
    """Where a run goes on."""

    path: Path
    changed: list[dict[str, Any]]
    """Settings that were changed by this resume or by one before."""


class RunFolder:
    """The folder of a run.

    Args:
        path: of the folder, which need not be there.
        writes: false in all processes of a run but the first, which only read.
    """

    def __init__(self, path: str | Path, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes

    @contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder and keeps other processes out of it, until the end of this one at the latest."""
        if not self.writes:
            yield
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"the output {self.path} is a file: choose a folder, --output=FOLDER")
        new, lock, running = not self.path.exists(), FileLock(self.path / LOCK), self.path / RUNNING
        with names_file(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire(lock)
        try:
            now = datetime.now().astimezone().isoformat(" ", "seconds")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
            write_atomically(running, json.dumps(holder) + "\n")
            yield
        finally:
            running.unlink(missing_ok=True)
            if new and {item.name for item in self.path.iterdir()} <= {LOCK}:  # it came to nothing
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()
            lock.release()

    def _acquire(self, lock: FileLock) -> None:
        holder = self._holder()
        here = holder.get("host") == socket.gethostname()
        try:
            # Workers of a process that was killed may still hold the lock, but end within seconds.
            lock.acquire(timeout=15 if here and not _is_alive(holder.get("pid")) else 0)
        except Timeout:
            who = "process {pid} on {host}, since {since}".format(**holder) if holder else "another process"
            advice = "wait for it, stop it, or choose another output folder"
            raise ValueError(f"{self.path} is in use by {who}: {advice}") from None

    def _holder(self) -> dict[str, Any]:
        try:
            holder = json.loads((self.path / RUNNING).read_text())
            return holder if {"pid", "host", "since"} <= holder.keys() else {}
        except (OSError, ValueError, AttributeError):
            return {}

    def checkpoint(self, config: Config, resume: bool) -> Resumed | None:
        """Where a run begins with a configuration; ``None``: at the beginning.

        Raises if a new run would overwrite another one, and if a resumed one would change what cannot be
        changed any more.
        """
        if not any((self.path / name).exists() for name in (LAST, PREVIOUS)):
            return None
        if not resume and self.writes:
            raise ValueError(
                f"{self.path} holds a run already: resume it, or choose another output directory"
            )
        return self._resumed(config, *self._newest()) if resume else None

    def _resumed(self, config: Config, path: Path, checkpoint: dict[str, Any]) -> Resumed:
        history = checkpoint["callbacks"].get("History", {})
        between = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"]
        # A checkpoint of an older version does not say how it was made; a newer setting had its default.
        before = _flat(asdict(Config())) | _flat(history.get("settings") or self._recorded())
        given = _flat(plain_settings(config))
        changes = {name: (before[name], value) for name, value in given.items() if value != before[name]}
        allowed = MAY_CHANGE.keys() - (set() if between else {"devices", "nodes"})
        if config.optimizer.schedule != "milestones":  # which is laid out for all steps
            allowed -= {"epochs", "devices", "nodes"}
        refused = [
            f"  {name}: {old} in the run, {new} given"
            for name, (old, new) in changes.items()
            if name not in allowed
        ]
        if refused:
            advice = "leave them as they were, or start another run in another output folder without --resume"
            text = f"{self.path} cannot go on with other settings than it was started with"
            raise ValueError("\n".join([f"{text}:", *refused, advice]))
        epoch = len(history.get("rows", [])) + (not between)
        if config.epochs < epoch:
            raise ValueError(f"{self.path} has come to epoch {epoch}: epochs={config.epochs} is too few")
        step = checkpoint["global_step"]
        new = [{"step": step, "setting": n, "before": a, "after": b} for n, (a, b) in changes.items()]
        return Resumed(path, [*history.get("changed", []), *new])

    def _recorded(self) -> dict[str, Any]:
        path = self.path / "config.yaml"
        if not path.is_file():
            raise ValueError(f"{path} is missing, which says how the run was started: put it back to resume")
        return plain_settings(load_config(path))

    def _newest(self) -> tuple[Path, dict[str, Any]]:
        """The last checkpoint, or the one before if the last is damaged, which is then set aside."""
        last, problems = self.path / LAST, list[str]()
        for path in (last, self.path / PREVIOUS):
            try:
                checkpoint = AtomicCheckpoints().load_checkpoint(path)
            except FileNotFoundError:
                problems.append(f"{path} is missing")
            except DamagedError as error:
                problems.append(str(error))
            else:
                break
        else:
            start = f"pointvar train {quote(str(self.path / 'config.yaml'))} --output=ANOTHER_FOLDER"
            raise ValueError(f"cannot resume: {'; '.join(problems)}. Start the run anew: {start}")
        if problems:
            aside = ""
            if self.writes and last.exists():  # or it would take the place of the good one
                os.replace(last, self.path / DAMAGED)
                aside = f"; the damaged file is now {DAMAGED}"
            step = checkpoint["global_step"]
            warnings.warn(f"{problems[0]}. The run goes on from {path}, step {step}{aside}", stacklevel=4)
        return path, checkpoint

    def begin(self, config: Config) -> None:
        """Writes what the run is: configuration, seed, versions."""
        for name in WRITTEN:  # what a process left that was killed while it wrote
            for path in self.path.glob(f".{name}.*.writing"):
                path.unlink(missing_ok=True)
        write_atomically(self.path / "config.yaml", config.to_yaml())
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
        write_atomically(self.path / "versions.json", json.dumps(versions, indent=1) + "\n")

    def save(self, name: str, config: Config, data: Data, network: nn.Module) -> None:
        """Writes a network with what is needed to use it; one of the user's own need not be known."""
        notes = {
            "classes": data.classes,
            "codes": data.codes,
            "task": data.task,
            "data": asdict(config.data),
            "features": data.features,
        }
        if can_save(network):
            save(network, self.path / name, **notes)

    def finish(self, config: Config, data: Data, result: Result) -> None:
        """Writes what came out: the network and a summary."""
        assert result.model is not None
        self.save(NETWORK, config, data, result.model)
        summary = {
            "metrics": result.metrics,
            "best": result.best,
            "diverged": result.diverged,
            "epochs": len(result.history),
            "steps": result.steps,
            "seconds": round(result.seconds, 3),
            "parameters": sum(p.numel() for p in result.model.parameters()),
            "init": result.init,
            "last_epoch": result.history[-1] if result.history else None,
            "changed": result.changed,
        }
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=1) + "\n")


def make_logger(name: str, folder: Path) -> Logger | bool:
    """Lightning's logger of this name; ``metrics.jsonl`` is written besides."""
    try:
        if name == "wandb":
            return WandbLogger(
                folder.name, save_dir=folder, project=os.environ.get("WANDB_PROJECT", "pointvar")
            )
        if name == "mlflow":
            return MLFlowLogger(os.environ.get("MLFLOW_EXPERIMENT_NAME", "pointvar"), run_name=folder.name)
    except ModuleNotFoundError as error:
        raise ImportError(f"logger={name} needs another package: pip install {name}") from error
    if name == "tensorboard":
        return TensorBoardLogger(folder, name="", version="tensorboard", default_hp_metric=False)
    return False


def plain_settings(config: Config) -> dict[str, Any]:
    """A configuration in plain values, as YAML has it."""
    return yaml.safe_load(config.to_yaml())


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        section = isinstance(value, dict)
        flat |= {f"{name}.{inner}": each for inner, each in value.items()} if section else {name: value}
    return flat


def _is_alive(pid: Any) -> bool:
    """Whether there is a process of this number on this machine."""
    if os.name != "posix" or not isinstance(pid, int):
        return True  # nobody knows
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return True
