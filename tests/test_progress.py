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
    assert lines[:3] == [
        "cells: 1/40, 00:20 so far, 13:00 left",
        "cells: 4/40, 01:20 so far, 12:00 left",
        "cells: 8/40, 02:40 so far, 10:40 left",
    ]
    assert lines[-1] == "cells: 40/40, 13:20 so far, 00:00 left"
    assert len(lines) == 11


def test_a_terminal_shows_a_bar_before_the_first_item_is_done(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cells = progress.track(range(2), "cells")
    assert next(cells) == 0
    assert "cells:   0%" in capsys.readouterr().err
    assert list(cells) == [1]
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("items", [[], iter([1, 2])], ids=["empty", "without a length"])
@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_total_nothing_is_shown(items, terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    list(progress.track(items, "cells"))
    assert capsys.readouterr().err == ""


def test_a_total_of_ones_own(clock, capsys):
    assert list(work(iter([1, 2]), clock, total=2)) == [1, 2]
    assert capsys.readouterr().err.splitlines()[-1] == "cells: 2/2, 00:40 so far, 00:00 left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (185, "3:05 min"), (3750, "1:02:30 h")],
)
def test_spans(seconds, text):
    assert progress.span(seconds) == text


def test_a_large_item_counts_for_more(clock, capsys, monkeypatch):
    sizes = {"total": 8, "size": lambda item: item}
    assert list(work([2, 6], clock, **sizes)) == [2, 6]
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["cells: 2/8, 00:20 so far, 01:00 left", "cells: 8/8, 00:40 so far, 00:00 left"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(work([2, 6], clock, **sizes)) == [2, 6]
    assert "| 8/8 [" in capsys.readouterr().err
