"""Timing side by side, facts about the machine, tables: what every benchmark here shares."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from statistics import median
from typing import Any

import torch

SOURCE = "POINTVAR_BENCHMARK_SOURCE"
"""The environment variable that names the folder to import pointvar from, for a process and its children."""


def import_from(folder: Path) -> None:
    """Imports pointvar from ``folder``, whatever is installed.

    An editable install puts a finder of its own before ``sys.path``, and so before ``PYTHONPATH``.
    """
    others = [finder for finder in sys.meta_path if finder is not PathFinder]
    for finder in others:
        if finder.find_spec("pointvar", None) is not None:
            sys.meta_path.remove(finder)
    sys.path.insert(0, str(folder))
    import pointvar

    if not Path(pointvar.__file__).resolve().is_relative_to(folder.resolve()):
        raise SystemExit(f"pointvar was to come from {folder}, and came from {pointvar.__file__}")


if SOURCE in os.environ:
    import_from(Path(os.environ[SOURCE]))

import pointvar  # noqa: E402 - from where the lines above say

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


# Two versions of pointvar


def in_turns() -> None:
    """Every measurement of this process waits until it is told to go, and tells when it is done."""
    global once
    alone = once

    def turn(task: Task) -> float:
        print("ready", flush=True)
        sys.stdin.readline()
        elapsed = alone(task)
        print("done", flush=True)
        return elapsed

    once = turn


def against(other: Path, script: str, options: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``script`` stores with this pointvar and with that of the folder ``other``, measured in turns.

    The script runs as two processes, which call ``in_turns`` on the option ``--in-turns``. None measures
    before both are ready for it.
    """
    if not (other / "pointvar").is_dir():
        raise SystemExit(f"{other} must be a folder that holds pointvar with its native modules")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "this.json"), Path(folder, "other.json")]
        workers = []
        for file, source in zip(files, ({}, {SOURCE: str(other.resolve())}), strict=True):
            command = [sys.executable, script, *options, "--in-turns", "--output", str(file)]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers.append(subprocess.Popen(command, env={**os.environ, **source}, **pipes))
        waiting: list[Any] = list(workers)
        while waiting:
            for worker in [worker for worker in waiting if worker.stdout.readline() != "ready\n"]:
                worker.communicate()  # no more measurements: what follows is the table
                waiting.remove(worker)
            for worker in waiting:
                worker.stdin.write("go\n")
                worker.stdin.flush()
                worker.stdout.readline()
        if any(worker.returncode for worker in workers):
            raise SystemExit("one side failed, see above")
        mine, theirs = (json.loads(file.read_text()) for file in files)
    return mine, theirs


def compared(
    this: list[dict[str, Any]],
    other: list[dict[str, Any]],
    identity: Sequence[str],
    measured: Sequence[str],
) -> list[dict[str, Any]]:
    """The ``measured`` numbers of both sides and their ratio; ``identity`` tells what a row is."""
    rows = []
    for a, b in zip(this, other, strict=True):
        names = [a[key] for key in identity if key in a]
        what = ", ".join(f"{name:,}" if isinstance(name, int) else name for name in names)
        for key in [key for key in measured if key in a]:
            rows.append({"what": what, "measured": key, "this": a[key], "other": b[key]})
            rows[-1]["ratio"] = a[key] / b[key]
    return rows


def same_kernels(this: dict[str, Any], other: dict[str, Any]) -> None:
    """Of two descriptions of the machine."""
    kernels = [[side[key] for key in ("backend", "instruction_set")] for side in (this, other)]
    if kernels[0] != kernels[1]:
        raise SystemExit(f"the two sides run on different kernels: {kernels[0]} and {kernels[1]}")


def show_ratios(rows: list[dict[str, Any]]) -> None:
    """The rows of ``compared``, and the median ratio of times and of memory."""
    print(table(rows, {key: key for key in rows[0]}))
    for kind, memory in {"times": False, "memory": True}.items():
        ratios = [row["ratio"] for row in rows if (row["measured"] == "mb") is memory]
        if ratios:
            print(f"{kind}: median ratio {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


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
