"""Where results are kept: lines of JSON, which several processes may add to."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import pointvar
from pointvar.train import Config

if TYPE_CHECKING:
    from pointvar.experiments.grid import Cell, Table


class Store:
    """Lines of JSON, one per cell that is done."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; what a killed process left of a last one is not counted."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf8").split("\n")[:-1]  # behind the last line break is nothing whole
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"{self.path} is damaged: {error}; move it away to begin anew") from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a line, and waits until it is on the disk."""
        text = json.dumps(_finite(record), allow_nan=False) + "\n"
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: two processes may share a table
            file.seek(0)
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)  # half a line of a killed process
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def done(self, table: Table) -> tuple[list[dict[str, Any]], int]:
        """The last record of each cell of a table, and how many others were made by another recipe."""
        wanted = {cell_key(cell): fingerprint(table.config(cell)) for cell in table.cells()}
        every = {cell_key(record["cell"]): record for record in self.read()}
        known = {key: record for key, record in every.items() if key in wanted}
        same = [record for key, record in known.items() if record["recipe"] == wanted[key]]
        return same, len(known) - len(same)

    def has(self, cell: Cell, recipe: str) -> bool:
        """Whether a cell was made by a recipe."""
        return any((record["cell"], record["recipe"]) == (cell, recipe) for record in self.read())

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Whether a cell is ours, no other process being at it; what ends a process ends its claim."""
        with self.path.with_suffix(".lock").open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)  # a byte for each cell
            except (BlockingIOError, PermissionError):
                yield False
            else:
                yield True


def cell_key(cell: Cell) -> str:
    """A cell as a key of dictionaries."""
    return json.dumps(cell, sort_keys=True)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: None stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def fingerprint(config: Config) -> str:
    """Tells recipes apart, whatever folder or machine they run in."""
    content = asdict(config)
    for name in ("output", "logger", "threads", "accelerator", "checkpoint_steps"):
        del content[name]
    for name in ("path", "scenes", "workers", "cache"):
        del content["data"][name]
    if not content["model"]["orthonormal"]:
        del content["model"]["orthonormal"]  # so that what was run before there was a choice still counts
    content["init"]["table"] = Path(content["init"]["table"]).stem
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def circumstances() -> dict[str, Any]:
    """When and with what a cell was made."""
    return {
        "versions": {
            "pointvar": pointvar.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "hardware": {"cpu": _processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
