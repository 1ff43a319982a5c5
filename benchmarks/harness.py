"""Timing side by side, facts about the machine, tables: what every benchmark here shares."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import pointvar

Task = Callable[[], Any]


def say(text: str) -> None:
    """Progress, beside the results."""
    print(text, file=sys.stderr, flush=True)


def once(task: Task) -> float:
    """Milliseconds of one call, its result freed outside the measured time."""
    time.sleep(0.01)  # the threads of the task before stop waiting for more work
    start = time.perf_counter()
    result = task()
    elapsed = time.perf_counter() - start
    del result
    return 1000 * elapsed


def interleaved(tasks: dict[str, Task], repeats: int, budget: float) -> dict[str, float]:
    """Median milliseconds of each task after one warm-up, taking turns in the same run.

    Drifts of the machine (clock, other load) then hit all sides alike. A task is repeated at most
    ``repeats`` times and no longer than ``budget`` seconds, but at least three times.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    warm = {name: once(task) for name, task in tasks.items()}
    rounds = {name: max(3, min(repeats, int(1000 * budget / warm[name]))) for name in tasks}
    for turn in range(max(rounds.values())):
        for name, task in tasks.items():
            if turn < rounds[name]:
                times[name].append(once(task))
    return {name: median(values) for name, values in times.items()}


def use_threads(threads: int) -> None:
    """For torch and pointvar, and through the environment for peers that are imported after this."""
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


def busy() -> float:
    """The load of the machine before a measurement; with other work beside it, numbers mean little."""
    load = round(os.getloadavg()[0], 2)
    if load > 0.5:
        say(f"warning: the machine is busy (load {load}); the numbers will not be reliable")
    return load


def machine() -> dict[str, Any]:
    """What a reader needs to judge the numbers; nothing that names the machine or its user."""
    native = pointvar.native_info()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pointvar": pointvar.__version__,
        "backend": native["backend"],
        "instruction_set": native["instruction_set"],
        "threads": torch.get_num_threads(),
        "date": datetime.date.today().isoformat(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """Markdown; ``columns`` maps the keys of a row to headings. Numbers stand to the right."""
    numeric = {key: all(isinstance(row[key], int | float | None) for row in rows) for key in columns}
    lines = ["| " + " | ".join(columns.values()) + " |"]
    lines.append("|" + "|".join("---:" if numeric[key] else "---" for key in columns) + "|")
    lines += ["| " + " | ".join(_cell(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def save(results: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    say(f"saved {path.name}")


def fill(document: Path, name: str, text: str) -> None:
    """Replaces what stands between ``<!-- name -->`` and ``<!-- /name -->``."""
    before, rest = document.read_text().split(f"<!-- {name} -->\n", 1)
    _, after = rest.split(f"<!-- /{name} -->", 1)
    document.write_text(f"{before}<!-- {name} -->\n{text}\n<!-- /{name} -->{after}")
