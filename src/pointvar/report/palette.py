"""The colours of the project, for curves, classes and figures."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable

COLORS: tuple[str, ...] = ("#4c78d8", "#e4793c", "#3fa56b", "#c8508f", "#c9a227")
COLORS += ("#7b61d1", "#2ba6b8", "#d64550", "#8a9a2f", "#8b6b57")
"""Colours that can be told apart on light and on dark ground."""
NONE, RIGHT, WRONG = "#9aa0a8", "#b4bfcb", "#d6293e"
"""What has no label, and what was predicted right and wrong."""
RAMP = ("#441e6e", "#3a529b", "#21918c", "#5ec962", "#f0de3c")
"""From low to high values."""


def color(number: int) -> str:
    """A colour for any number: of the palette, a lighter one of it, and then hues at golden steps."""
    if number < len(COLORS):
        return COLORS[number]
    if number < 2 * len(COLORS):
        return mixed(COLORS[number - len(COLORS)], "#ffffff", 0.45)
    parts = colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.55 + 0.15 * (number % 3), 0.85)
    return _hex(255 * part for part in parts)


def mixed(first: str, second: str, share: float) -> str:
    """A colour between two others; ``share`` is how much of the second it has."""
    pairs = ((int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5))
    return _hex(a + (b - a) * share for a, b in pairs)


def ramp(count: int) -> list[str]:
    """So many colours from low to high."""
    places = [i / max(count - 1, 1) * (len(RAMP) - 1) for i in range(count)]
    return [mixed(RAMP[int(p)], RAMP[min(int(p) + 1, len(RAMP) - 1)], p % 1) for p in places]


def _hex(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
