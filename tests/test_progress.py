"""How far long work has come, on a terminal and in a log."""

import sys

import pytest

from pointvar import progress

SECONDS = 20.0


@pytest.fixture
def clock(monkeypatch):
    """Time passes only where a test says so."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def work(items, clock, **options):
    for item in progress.track(items, "cells", **options):
        clock[0] += SECONDS
        yield item


def test_a_log_has_a_line_per_tenth(clock, capsys):
    assert list(work(range(40), clock)) == list(range(40))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "cells: 1/40, 20 s so far, 13:00 min left"
    assert lines[1:3] == [
        "cells: 4/40, 1:20 min so far, 12:00 min left",
        "cells: 8/40, 2:40 min so far, 10:40 min left",
    ]
    assert lines[-1] == "cells: 40/40, 13:20 min so far, 0 s left"
    assert len(lines) == 11


def test_a_terminal_shows_a_bar_before_the_first_item_is_done(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cells = work(range(2), clock)
    next(cells)
    assert capsys.readouterr().err == f"\rcells [{' ' * 20}] 0/2   "
    list(cells)
    shown = capsys.readouterr().err.split("\r")[1:]
    assert shown[0].strip() == f"cells [{'#' * 10:<20}] 1/2, 20 s so far, 20 s left"
    assert shown[1] == f"cells [{'#' * 20}] 2/2, 40 s so far, 0 s left   \n"


def test_no_time_left_is_told_where_nothing_is_known_of_it(clock, capsys):
    """As when another process has done the first cells of a table."""
    list(progress.track(range(2), "cells"))
    assert capsys.readouterr().err.splitlines() == ["cells: 1/2", "cells: 2/2"]


@pytest.mark.parametrize("items", [[], iter([1, 2])], ids=["empty", "without a length"])
def test_without_a_total_nothing_is_shown(items, capsys):
    list(progress.track(items, "cells"))
    assert capsys.readouterr().err == ""


def test_a_total_of_ones_own(clock, capsys):
    list(work(iter([1, 2]), clock, total=2))
    assert capsys.readouterr().err.splitlines()[-1] == "cells: 2/2, 40 s so far, 0 s left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (185, "3:05 min"), (3750, "1:02:30 h")],
)
def test_spans(seconds, text):
    assert progress.span(seconds) == text
