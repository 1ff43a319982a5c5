"""What every experiment is told, and how it keeps what it found."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def data_folder() -> Path | None:
    """Where real data lie: $POINTVAR_DATA, or the folder ``shared/data`` beside the project, if it exists."""
    given = os.environ.get("POINTVAR_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[4] / "shared" / "data"
    return folder if folder.is_dir() else None


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
        if self.data is not None and not Path(self.data).is_dir():
            raise ValueError(f"there is no data folder {self.data}")
        if self.limit_minutes is not None and self.limit_minutes < 0:
            raise ValueError(f"limit_minutes must not be negative, got {self.limit_minutes}")
        self.output.mkdir(parents=True, exist_ok=True)

    def time_is_up(self) -> bool:
        """Whether the limit is reached."""
        return self.limit_minutes is not None and time.monotonic() - self.begin >= 60 * self.limit_minutes

    def save(self, name: str, figure: Any, numbers: dict[str, Any]) -> None:
        """Writes NAME.png, NAME.svg and NAME.json, and says so."""
        path = self.output / name
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        path.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")
        print(f"{path}.png, .svg, .json")


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, without a window. Needs matplotlib: ``pip install 'pointvar[report]'``."""
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'pointvar[report]'") from error
    rcParams["svg.hashsalt"] = "pointvar"  # the same picture gives the same file
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)
