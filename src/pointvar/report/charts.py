"""Curves as inline SVG that takes its colours from CSS.

The lines are drawn in a square of 1000 units that is stretched to the width of the page; strokes keep their
width, and labels are HTML beside it, so that text has the same size on a phone and on a desk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

COLORS = 10
"""How many colours the style sheet has for curves; the next ones are dashed."""
EDGE = 1e20
"""A logarithmic axis shows 1 / EDGE to EDGE; what is beyond, or 0, stays at its edge."""

MINUS, DASH, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"

Number = float | int | None


@dataclass
class Curve:
    """A line, and the range of the draws that it is the mean of, where there are several."""

    name: str
    values: list[Number]
    low: list[Number] | None = None
    high: list[Number] | None = None


def read_curves(series: Mapping[str, Any], log: bool = False) -> list[Curve]:
    """Curves by name: a sequence of numbers each, or several draws of it, of which the mean is shown.

    ``None`` is a value that was not measured, which the line passes over; at NaN the line is broken. On a
    logarithmic axis the mean is the geometric one.
    """
    curves = []
    for name, values in series.items():
        rows = values.tolist() if hasattr(values, "tolist") else list(values)
        draws = [list(row) for row in rows] if rows and _is_sequence(rows[0]) else [rows]
        for value in (v for draw in draws for v in draw):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise TypeError(f"curve {name!r} must hold numbers or None, got {value!r}")
        if len({len(draw) for draw in draws}) > 1:
            raise ValueError(f"all draws of curve {name!r} must be of one length")
        columns = [[v for v in column if v is not None] for column in zip(*draws, strict=True)]
        if len(draws) == 1:
            curves.append(Curve(str(name), draws[0]))
            continue
        mean = [_mean(column, log) for column in columns]
        low, high = ([f(c) if c else None for c in columns] for f in (min, max))
        curves.append(Curve(str(name), mean, low, high))
    return curves


def chart(
    series: Mapping[str, Any],
    x: Sequence[float] | None = None,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    log: bool | None = False,
    reference: float | None = None,
    limits: tuple[float, float] | None = None,
    legend: bool = True,
) -> str:
    """The HTML of one chart; the arguments are those of ``Report.curves``."""
    logarithmic = suits_log(series) if log is None else log
    curves = read_curves(series, logarithmic)
    longest = max((len(c.values) for c in curves), default=0)
    places = [float(v) for v in (range(1, longest + 1) if x is None else x)]
    if len(places) < longest:
        raise ValueError(f"a curve has {longest} values, but x has {len(places)}")
    if not all(map(math.isfinite, places)):
        raise ValueError("x must be finite")
    across = _Axis.over(places, False, margin=0.0)
    shown = [v for c in curves for part in (c.values, c.low, c.high) for v in part or []]
    up = _Axis.over([*shown, reference], logarithmic, limits)
    lines = [f'<line class="grid" x1="0" x2="1000" y1="{_y(up, t)}" y2="{_y(up, t)}"/>' for t in up.ticks()]
    if reference is not None:
        lines.append(
            f'<line class="reference" x1="0" x2="1000" y1="{_y(up, reference)}" y2="{_y(up, reference)}"/>'
        )
    for number, curve in enumerate(curves):
        band = _band(curve, places, across, up)
        path = _path(curve.values, places, across, up)
        lines.append(f'<g class="{_style(number)}" data-curve="{number}">{band}<path d="{path}"/></g>')
    labels = [f'<span class="y" style="bottom:{up.at(t):.2%}">{up.label(t)}</span>' for t in up.ticks()]
    labels += [
        f'<span class="x" style="left:{across.at(t):.2%}">{across.label(t)}</span>'
        for t in across.ticks(whole=all(v == round(v) for v in places))
    ]
    data = {
        "x": [_short(v) for v in places],
        "at": [round(across.at(v), 4) for v in places],
        "xlabel": xlabel,
        "curves": [
            {"name": c.name, "style": _style(n), "values": [_told(v) for v in c.values]}
            for n, c in enumerate(curves)
        ],
    }
    heading = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    spoken = escape(f"{title or ylabel or 'Curves'}: {', '.join(c.name for c in curves)}", quote=True)
    return (
        f'<figure class="chart">{heading}<div class="ylabel">{escape(ylabel)}</div><div class="plot">'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{spoken}">'
        f'{"".join(lines)}</svg>{"".join(labels)}</div><div class="xlabel">{escape(xlabel)}</div>'
        + (curve_legend([c.name for c in curves]) if legend and len(curves) > 1 else "")
        + f"{data_script(data)}</figure>"
    )


def curve_legend(names: Sequence[str]) -> str:
    """Names of curves with their colours."""
    items = (
        f'<button type="button" data-curve="{n}" class="{_style(n)}" aria-pressed="true">'
        f"{escape(name)}</button>"
        for n, name in enumerate(names)
    )
    return f'<div class="legend">{"".join(items)}</div>'


def sparkline(values: Sequence[Number]) -> str:
    """A curve the size of a word, and its last value."""
    known = [(i, v) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    last = next((v for v in reversed(values) if v is not None), None)
    if len(known) < 2:
        return plain(last)
    axis = _Axis.over([v for _, v in known], False)
    step = 60 / (len(values) - 1)
    path = "M" + "L".join(f"{i * step:.1f} {16 - 16 * axis.at(v):.1f}" for i, v in known)
    svg = f'<svg class="spark" viewBox="-1 -1 62 18" aria-hidden="true"><path d="{path}"/></svg>'
    return f"{svg} {plain(last)}"


def suits_log(series: Mapping[str, Any]) -> bool:
    """Whether the values are positive and span more than two orders of magnitude."""
    values = [v for c in read_curves(series) for part in (c.values, c.low, c.high) for v in part or []]
    known = [v for v in values if v is not None and math.isfinite(v)]
    return bool(known) and min(known) > 0 and max(known) > 100 * min(known)


def plain(value: Number) -> str:
    """A number in four digits, as people write it."""
    if value is None:
        return DASH
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else f"{MINUS}∞" if value < 0 else "∞"
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    size = abs(value)
    style = ".4g" if 1e-3 <= size < 1e4 else ",.0f" if 1e4 <= size < 1e7 else ".3g"
    text = format(value, style)
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa.replace("-", MINUS)
    return f"{mantissa}{TIMES}10{_superscript(int(exponent))}" if exponent else mantissa


def data_script(data: Any) -> str:
    """Data for a script of the page; nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


@dataclass
class _Axis:
    low: float
    high: float
    log: bool

    @staticmethod
    def over(
        values: Sequence[Number], log: bool, limits: tuple[float, float] | None = None, margin: float = 0.05
    ) -> _Axis:
        """An axis that holds all values, or just the limits."""
        if limits is not None:
            low, high = limits
            if not low < high or (log and low <= 0):
                raise ValueError(f"limits must ascend, and be positive on a logarithmic axis, got {limits}")
            return _Axis(math.log10(low), math.log10(high), log) if log else _Axis(low, high, log)
        known = [_log(v) if log else v for v in values if v is not None and (log or math.isfinite(v))]
        known = [v for v in known if not math.isnan(v)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        least = 1.0 if log else (abs(low) * 0.1 or 1.0) if low == high else 0.0  # an axis needs some length
        missing = max(0.0, least - (high - low)) / 2
        padding = margin * (high - low + 2 * missing)
        return _Axis(low - missing - padding, high + missing + padding, log)

    def at(self, value: float) -> float:
        """Where a value is, 0 to 1 if it is on the axis."""
        place = _log(value) if self.log else value
        return (min(max(place, self.low), self.high) - self.low) / (self.high - self.low)

    def ticks(self, whole: bool = False) -> list[float]:
        """Round numbers on the axis, some five of them."""
        if self.log:
            every = max(1, math.ceil((self.high - self.low) / 6))
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            found = [10.0**p for p in powers if p % every == 0]
            if len(found) > 2:
                return found
            between = (
                m * 10.0**p for p in range(math.floor(self.low), math.ceil(self.high)) for m in (1, 2, 5)
            )
            return [v for v in between if self.low <= math.log10(v) <= self.high]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
        if whole:
            step = max(1, math.ceil(step))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        found = [i * step for i in range(first, last + 1)]
        # Counts begin where they begin, mostly at 1.
        return [self.low, *(v for v in found if v > self.low + step / 3)] if whole else found

    def label(self, value: float) -> str:
        if self.log and not 1e-3 <= value <= 1e4:
            power = math.floor(math.log10(value) + 1e-9)
            factor = round(value / 10.0**power)
            return f"{'' if factor == 1 else f'{factor}·'}10{_superscript(power)}"
        return plain(round(value) if value == round(value) and abs(value) < 1e7 else float(f"{value:.6g}"))


def _log(value: float) -> float:
    if math.isnan(value):
        return math.nan
    return math.log10(min(max(value, 1 / EDGE), EDGE))


def _mean(column: list[Any], log: bool) -> Number:
    if not column:
        return None
    if log:
        return 10 ** (sum(_log(v) for v in column) / len(column))
    return sum(column) / len(column)


def _y(axis: _Axis, value: float) -> str:
    return f"{1000 * (1 - axis.at(value)):.1f}"


def _path(values: Sequence[Number], places: Sequence[float], across: _Axis, up: _Axis) -> str:
    parts, begun = [], False
    for place, value in zip(places, values, strict=False):
        if value is None:
            continue
        if math.isnan(value) or (math.isinf(value) and not up.log):
            begun = False
            continue
        point = f"{1000 * across.at(place):.1f} {_y(up, value)}"
        # A line of no length with round ends is a dot, which single values between gaps would not have.
        parts.append(f"L{point}" if begun else f"M{point}h0")
        begun = True
    return "".join(parts)


def _band(curve: Curve, places: Sequence[float], across: _Axis, up: _Axis) -> str:
    if curve.low is None or curve.high is None:
        return ""
    edges = [
        (f"{1000 * across.at(p):.1f}", low, high)
        for p, low, high in zip(places, curve.low, curve.high, strict=False)
        if low is not None and high is not None and not math.isnan(low) and not math.isnan(high)
    ]
    if not edges:
        return ""
    points = [f"{p} {_y(up, high)}" for p, _, high in edges]
    points += [f"{p} {_y(up, low)}" for p, low, _ in reversed(edges)]
    return f'<path class="band" d="M{"L".join(points)}Z"/>'


def _style(number: int) -> str:
    return f"c{number % COLORS}" + (" dashed" if number // COLORS % 2 else "")


def _short(value: Number) -> Number:
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")


def _told(value: Number) -> Number | str:
    """A value for a tooltip; JSON has no infinity."""
    return _short(value) if value is None or math.isfinite(value) else plain(value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
