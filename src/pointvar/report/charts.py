"""Curves as numbers for the script that draws them: means and ranges of draws, axes, what has no place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pointvar.report.palette import COLORS, color
from pointvar.report.tables import plain

Column = list[float | None]


def chart(
    series: Mapping[str, Any],
    x: Sequence[float] | None = None,
    log: bool | None = False,
    reference: float | None = None,
    limits: tuple[float, float] | None = None,
    **labels: str,
) -> dict[str, Any]:
    """A chart for ``charts.js``; the arguments, with the labels around it, are those of ``Report.curves``."""
    draws = {str(name): _draws(str(name), values) for name, values in series.items()}
    logarithmic = suits_log(series) if log is None else log
    longest = max((len(rows[0]) for rows in draws.values()), default=0)
    places = [float(v) for v in (range(1, longest + 1) if x is None else x)]
    if len(places) < longest:
        raise ValueError(f"a curve has {longest} values, but x has {len(places)}")
    if not all(map(math.isfinite, places)):
        raise ValueError("x must be finite")
    if limits is not None and (not limits[0] < limits[1] or (logarithmic and limits[0] <= 0)):
        raise ValueError(f"limits must ascend, and be positive on a logarithmic axis, got {limits}")
    curves = [_curve(i, name, rows, logarithmic) for i, (name, rows) in enumerate(draws.items())]
    data = {"x": places, "curves": curves, "log": logarithmic, "reference": reference, "limits": limits}
    labels = {"title": "", "xlabel": "", "ylabel": "", **labels}
    return {**labels, "data": {**data, "xlabel": labels["xlabel"]}}


def suits_log(series: Mapping[str, Any]) -> bool:
    """Whether the values are positive and span more than two orders of magnitude."""
    rows = (row for name, values in series.items() for row in _draws(name, values))
    known = [v for row in rows for v in row if v is not None and math.isfinite(v)]
    return bool(known) and min(known) > 0 and max(known) > 100 * min(known)


def _draws(name: str, values: Any) -> list[Column]:
    """One or several draws of a curve, all of one length."""
    rows = values.tolist() if hasattr(values, "tolist") else list(values)
    draws = [list(row) for row in rows] if rows and isinstance(rows[0], (list, tuple)) else [rows]
    for value in (v for draw in draws for v in draw):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise TypeError(f"curve {name!r} must hold numbers or None, got {value!r}")
    if len({len(draw) for draw in draws}) > 1:
        raise ValueError(f"all draws of curve {name!r} must be of one length")
    return draws


def _curve(number: int, name: str, draws: list[Column], log: bool) -> dict[str, Any]:
    """The mean of the draws, and where there are several, their range."""
    columns = [[v for v in column if v is not None] for column in zip(*draws, strict=True)]
    curve = {"name": name, "color": color(number), "dashed": number >= len(COLORS)}
    ways = {"values": partial(_mean, log=log)} | ({"low": min, "high": max} if len(draws) > 1 else {})
    return {**curve, **{way: [_told(f(c)) if c else None for c in columns] for way, f in ways.items()}}


def _mean(column: Sequence[float], log: bool) -> float:
    if log and len(column) > 1:
        return 10 ** (sum(math.log10(min(max(v, 1e-20), 1e20)) for v in column) / len(column))
    return sum(column) / len(column) if len(column) > 1 else column[0]


def _told(value: float) -> float | str:
    """Five digits; JSON has no infinity and no NaN, which become words."""
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else plain(value)
