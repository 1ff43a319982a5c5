"""What every experiment is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Options:
    """Where an experiment reads and writes, and how much it does."""

    output: Path = Path("results")
    """Folder for pictures and numbers."""
    data: Path | None = None
    """Folder with real data; ``None``: the built-in synthetic data are used."""
    preset: str = "laptop"
    """``"laptop"``: minutes on two cores; ``"paper"``: the published recipe."""
    limit_minutes: float | None = None
    """Of tables: no cell begins after so many minutes."""
    only: Sequence[str] = ()
    """Of tables: KEY=VALUE, the cells to run; several values of a key are alternatives."""
    report: bool = False
    """Of tables: only the report is written, from the results that there are."""
    begin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.preset not in ("laptop", "paper"):
            raise ValueError(f"preset must be 'laptop' or 'paper', got {self.preset!r}")
        if self.data is not None and not self.data.is_dir():
            raise ValueError(f"there is no data folder {self.data}")
        if self.limit_minutes is not None and self.limit_minutes < 0:
            raise ValueError(f"limit_minutes must not be negative, got {self.limit_minutes}")
        self.output.mkdir(parents=True, exist_ok=True)

    def file(self, name: str) -> Path | None:
        """A file of the data folder, if it is there."""
        path = None if self.data is None else self.data / name
        return path if path is not None and path.is_file() else None

    def time_is_up(self) -> bool:
        """Whether the limit is reached."""
        return self.limit_minutes is not None and time.monotonic() - self.begin >= 60 * self.limit_minutes
