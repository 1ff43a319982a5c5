"""Values as text: numbers as people write them, columns with their points below each other, small curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MINUS, DASH, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"


@dataclass
class Cell:
    """What a cell shows: a text, a curve the size of a word before it, and what it is sorted by."""

    text: str
    path: str = ""
    key: float | str | None = None


def table(
    rows: Sequence[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] | Mapping[str, str] | None
) -> dict[str, Any]:
    """Headings, cells, and which columns are numbers; the arguments are those of ``Report.table``."""
    if columns is None:
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError("rows without names need columns")
        columns = list(dict.fromkeys(key for row in rows for key in row))
    headings = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    values = []
    for row in rows:
        if not isinstance(row, Mapping) and len(row) != len(headings):
            raise ValueError(f"a row has {len(row)} cells for {len(headings)} columns")
        chosen = [row.get(key) for key in headings] if isinstance(row, Mapping) else row
        values.append([unwrapped(value) for value in chosen])
    styles = [_style([row[i] for row in values]) for i in range(len(headings))]
    cells = [[_cell(value, style) for value, style in zip(row, styles, strict=True)] for row in values]
    return {"headings": list(headings.values()), "numeric": [s is not None for s in styles], "rows": cells}


def written(value: Any) -> str:
    """Any value as text."""
    value = unwrapped(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or is_number(value):
        return plain(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(written, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(item)}" for key, item in value.items())
    return str(value)


def plain(value: float | None) -> str:
    """A number in four digits, as people write it."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{MINUS}∞" if value < 0 else "∞"
    size = abs(value)
    style = ".4g" if 1e-3 <= size < 1e4 else ",.0f" if 1e4 <= size < 1e7 else ".3g"
    style = "," if isinstance(value, int) else style
    mantissa, _, power = format(value, style).partition("e")
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return mantissa.replace("-", MINUS) + (f"{TIMES}10{str(int(power)).translate(digits)}" if power else "")


def is_number(value: Any) -> bool:
    """Whether a value is a number, which True is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def unwrapped(value: Any) -> Any:
    """Tensors and arrays as numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_curve(value: Any) -> bool:
    several = isinstance(value, (list, tuple)) and len(value) > 2
    return several and all(v is None or is_number(v) for v in value)


def _style(values: Sequence[Any]) -> str | None:
    """The format of a column of numbers, with their points below each other; None: the column has text."""
    known = [v for v in values if v is not None]
    if not known or not all(is_number(v) or _is_curve(v) for v in known):
        return None
    sizes = [abs(v) for v in known if isinstance(v, float) and math.isfinite(v) and v]
    if not sizes or max(sizes) >= 1e6:
        return ""
    decimals = min(max(3 - math.floor(math.log10(max(sizes))), 0), 4)
    return f",.{decimals}f" if min(sizes) >= 10.0**-decimals else ""


def _cell(value: Any, style: str | None) -> Cell:
    if _is_curve(value):
        last = next((v for v in reversed(value) if v is not None), None)
        return Cell(plain(last), _path(value), last)
    if not is_number(value):
        return Cell(written(value))
    fixed = style and isinstance(value, float) and math.isfinite(value)
    return Cell(format(value, style or "").replace("-", MINUS) if fixed else plain(value), key=value)


def _path(values: Sequence[float | None]) -> str:
    """A line through a box of 60 times 16, if there is one to draw."""
    known = [(i, v) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    if len(known) < 2:
        return ""
    low, high = min(v for _, v in known), max(v for _, v in known)
    step, scale = 60 / (len(values) - 1), 14 / ((high - low) or 1)
    return "M" + "L".join(f"{i * step:.1f} {15 - (v - low) * scale:.1f}" for i, v in known)
