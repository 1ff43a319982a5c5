"""What is said about a table, checked: which of two selections of cells is ahead.

Numbers come as a frame of pandas: a row per cell without its seed, a column per axis, and ``mean``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

Group = Mapping[str, Any]
"""Part of a cell."""


@cache
def _paper() -> pd.DataFrame:
    return pd.read_csv(Path(__file__).with_name("paper.csv"))


def published(table: str) -> pd.DataFrame:
    """The paper's numbers for a table, and what data they were measured on; empty if it has none."""
    rows = _paper().query("table == @table").dropna(axis="columns").drop(columns="table")
    return rows.assign(mean=rows.pop("percent") / 100).reset_index(drop=True)


def summarise(
    records: Sequence[Mapping[str, Any]], axes: Sequence[str], measures: Mapping[str, str]
) -> pd.DataFrame:
    """Over the seeds of each cell: ``mean``, ``std`` (not a number of one), ``count`` and ``diverged``.

    ``measures`` says for each data set which number counts.
    """
    rows = [
        {
            **record["cell"],
            "value": record["result"][measures[record["cell"]["data"]]],
            "diverged": record["result"].get("diverged") is not None,
        }
        for record in records
    ]
    frame = pd.DataFrame(rows, columns=[*axes, "value", "diverged"])
    values = frame.astype(dict.fromkeys(axes, object) | {"value": float}).groupby([*axes], sort=False)
    return values.agg(
        mean=("value", "mean"), std=("value", "std"), count=("value", "size"), diverged=("diverged", "sum")
    ).reset_index()


def where(frame: pd.DataFrame, part: Group) -> pd.DataFrame:
    """The rows that agree with a part of a cell."""
    for key, value in part.items():
        frame = frame[frame[key] == value] if key in frame else frame.iloc[:0]
    return frame


@dataclass(frozen=True)
class Claim:
    """Cells of one selection are ahead of those of another: ``better >= factor * than + margin``.

    A selection is the name of a column, or a part of a cell. Cells are compared that agree in everything
    which the selections do not name.
    """

    better: str | Group
    than: str | Group
    at: Group = field(default_factory=dict)
    """What both selections have in common."""
    factor: float = 1.0
    margin: float = 0.0
    most: bool = False
    """More than half of the comparisons are enough; else all are needed."""

    def sides(self) -> tuple[Group, Group]:
        """The two selections, as parts of cells."""
        first, second = (
            {**self.at, **({"column": side} if isinstance(side, str) else side)}
            for side in (self.better, self.than)
        )
        return first, second

    def check(self, numbers: pd.DataFrame) -> str:
        """ "holds (5 of 5)", "does not hold (2 of 5)" or "not tested"."""
        better, than = self.sides()
        named = {*better, *than, "mean", "std", "count", "diverged"}
        shared = [name for name in numbers if name not in named]
        pairs = where(numbers, better).merge(where(numbers, than), on=shared)
        if pairs.empty:
            return "not tested"
        hits = int((pairs["mean_x"] >= self.factor * pairs["mean_y"] + self.margin).sum())
        holds = 2 * hits > len(pairs) if self.most else hits == len(pairs)
        return f"{'holds' if holds else 'does not hold'} ({hits} of {len(pairs)})"


BATCH_NORM_FAILS = {
    "batch norm fails at batch 2: direct has at least twice its accuracy": Claim(
        "direct", "BN", {"batch": 2}, factor=2
    )
}
