"""What a run leaves in its directory."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO

import pointvar
from pointvar.atomic import write_atomically
from pointvar.models import save
from pointvar.models.storage import can_save
from pointvar.train.config import Config
from pointvar.train.sources import Data

if TYPE_CHECKING:
    from pointvar.train.fit import Result

LAST = "last.ckpt"


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints that replace the one before in one step, so that there is a whole one at any moment.

    (Lightning writes a temporary file elsewhere and moves it, which is a copy from one disk to another.)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(path, buffer.getvalue())


def make_logger(name: str, folder: Path) -> Logger | bool:
    """Lightning's logger of this name; ``metrics.jsonl`` is written besides."""
    if name == "wandb":
        return WandbLogger(folder.name, save_dir=folder, project="pointvar")
    if name == "mlflow":
        return MLFlowLogger("pointvar", run_name=folder.name)
    if name == "tensorboard":
        return TensorBoardLogger(folder, name="", version="tensorboard", default_hp_metric=False)
    return False


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
