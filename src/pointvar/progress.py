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
    if not total:
        yield from items
        return
    live, begin, shown = sys.stderr.isatty(), time.monotonic(), -1
    if live:
        _draw(label, 0, total, 0.0)  # the first item may take minutes
    for done, item in enumerate(items, 1):
        yield item
        elapsed = time.monotonic() - begin
        if live:
            _draw(label, done, total, elapsed)
        elif 10 * done // total > shown:
            shown = 10 * done // total
            print(f"{label}: {_state(done, total, elapsed)}", file=sys.stderr)


def _draw(label: str, done: int, total: int, elapsed: float) -> None:
    bar, end = "#" * (20 * done // total), "\n" if done == total else ""
    text = f"\r{label} [{bar:<20}] {_state(done, total, elapsed)}   {end}"
    print(text, end="", file=sys.stderr, flush=True)


def _state(done: int, total: int, elapsed: float) -> str:
    """How far; the time left only when there is something to judge it by."""
    state = f"{done}/{total}"
    if elapsed >= 1:
        state += f", {span(elapsed)} so far, {span(elapsed / max(done, 1) * (total - done))} left"
    return state


def span(seconds: float) -> str:
    """A time span as people write it: 7 s, 3:05 min, 1:02:30 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
