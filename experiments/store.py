"""Where results are kept: lines of JSON, which several processes may add to."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import pointvar


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
        with _locked(self.path.with_name(f".{self.path.stem}.lock")), self.path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # half a line of a killed process
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Whether a cell is ours, no other process being at it; what ends a process ends its claim."""
        with _locked(self.path.with_name(f".{self.path.stem}-{number}.lock"), wait=False) as ours:
            yield ours


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Whether a lock is held, which is so if it is waited for. Its file is gone when it is given back."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # still held: who waits for this file sees that it is gone
        lock.release()


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: None stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


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
