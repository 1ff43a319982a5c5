"""What is said about a table, checked: means over seeds, and which of two selections of cells is ahead."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Group = Mapping[str, Any]
"""A cell without its seed."""
Published = Sequence[tuple[Group, float]]
"""Numbers of the paper, with the part of a cell that they are of."""


@dataclass(frozen=True)
class Summary:
    """Cells that differ in their seed alone."""

    group: Group
    values: tuple[float, ...]
    diverged: int = 0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; none of one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def summarise(records: Sequence[Mapping[str, Any]], measure: Mapping[str, str]) -> list[Summary]:
    """One summary per cell without its seed. ``measure`` says for each data set which number counts."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        group = tuple((k, v) for k, v in record["cell"].items() if k != "seed")
        groups.setdefault(group, []).append(record["result"])
    return [
        Summary(
            dict(group),
            tuple(float(result[measure[dict(group)["data"]]]) for result in results),
            sum(result.get("diverged") is not None for result in results),
        )
        for group, results in groups.items()
    ]


@dataclass(frozen=True)
class Claim:
    """Cells of one selection are ahead of those of another: ``better >= factor * than + margin``.

    Cells are compared that agree in everything which the selections do not name.
    """

    text: str
    better: Group
    than: Group
    factor: float = 1.0
    margin: float = 0.0
    most: bool = False
    """More than half of the comparisons are enough; else all are needed."""

    def check(self, summaries: Sequence[Summary]) -> str:
        """ "holds (5 of 5)", "does not hold (2 of 5)" or "not tested"."""
        left, right = self._pick(summaries, self.better), self._pick(summaries, self.than)
        pairs = [(left[key], right[key]) for key in left if key in right]
        if not pairs:
            return "not tested"
        hits = sum(a >= self.factor * b + self.margin for a, b in pairs)
        holds = 2 * hits > len(pairs) if self.most else hits == len(pairs)
        return f"{'holds' if holds else 'does not hold'} ({hits} of {len(pairs)})"

    def _pick(self, summaries: Sequence[Summary], wanted: Group) -> dict[tuple[Any, ...], float]:
        named = set(self.better) | set(self.than)
        return {
            tuple((k, v) for k, v in summary.group.items() if k not in named): summary.mean
            for summary in summaries
            if all(summary.group.get(k) == v for k, v in wanted.items())
        }


BATCH_NORM_FAILS = Claim(
    "batch norm fails at batch 2: direct has at least twice its accuracy",
    {"column": "direct", "batch": 2},
    {"column": "BN", "batch": 2},
    factor=2,
)


def as_summaries(published: Published, scale: float = 0.01) -> list[Summary]:
    """The paper's numbers in the form of ours, so that its claims can be checked on them, too."""
    return [Summary(group, (value * scale,)) for group, value in published]


def numbers(
    columns: Sequence[Group], rows: Mapping[str, Sequence[float | None]], axis: str = "method"
) -> Published:
    """The paper's numbers from rows as they are printed."""
    return [
        ({axis: row, **column}, value)
        for row, values in rows.items()
        for column, value in zip(columns, values, strict=True)
        if value is not None
    ]
