"""How far long work has come: tqdm's bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
LINE = "{desc}: {n_fmt}/{total_fmt}, {elapsed} so far, {remaining} left"


def track(
    items: Iterable[T], label: str, total: int | None = None, size: Callable[[T], int] = lambda item: 1
) -> Iterator[T]:
    """Goes through items and shows how far it has come: a bar on a terminal, else a line per tenth.

    ``size`` says how much of the ``total`` an item is.
    """
    from tqdm import tqdm

    if total is None and isinstance(items, Sized):
        total = len(items)
    if not total or sys.stderr.isatty():
        with tqdm(desc=label, total=total, disable=not total) as bar:
            for item in items:
                yield item
                bar.update(size(item))
        return
    begin, done = time.monotonic(), 0
    for item in items:
        yield item
        before, done = done, done + size(item)
        if not before or 10 * done // total > 10 * before // total:
            elapsed = time.monotonic() - begin
            print(tqdm.format_meter(done, total, elapsed, prefix=label, bar_format=LINE), file=sys.stderr)


def span(seconds: float) -> str:
    """A time span as people write it: 7 s, 3:05 min, 1:02:30 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
