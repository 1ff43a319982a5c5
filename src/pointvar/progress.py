"""A progress bar with the time left, on the terminal's error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Goes through items and shows how far it has come: a live bar on a terminal, else a line per tenth."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    begin, shown = time.monotonic(), -1
    live = sys.stderr.isatty()
    for done, item in enumerate(items, 1):
        yield item
        if not total:
            continue
        elapsed = time.monotonic() - begin
        left = elapsed / done * (total - done)
        if live:
            bar = "#" * (20 * done // total)
            end = "\n" if done == total else ""
            text = f"\r{label} [{bar:<20}] {done}/{total}, {span(elapsed)} so far, {span(left)} left   {end}"
            print(text, end="", file=sys.stderr, flush=True)
        elif 10 * done // total > shown:
            shown = 10 * done // total
            print(f"{label}: {done}/{total}, {span(elapsed)} so far, {span(left)} left", file=sys.stderr)


def span(seconds: float) -> str:
    """A time span as people write it: 7 s, 3:05 min, 1:02:30 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
