"""Train two networks with and without normalisation, on built-in data, and write a report with pictures.

A U-Net labels the points of rooms, and 25 plain layers classify shapes. Each is trained with batch norm, with
group norm, as published, and by the recipe norm-free. This takes at most five minutes on two cores. If it is
stopped, the same command continues; if it has finished, the same command shows the results again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pointvar.commands.trials import ClassifyShapes, Row, SegmentRooms, Trial
    from pointvar.report import Report

TITLE = "pointvar: a demonstration"
MEANING = {
    "batch norm": "batch normalisation, standard weights (as for images), AdamW",
    "group norm": "group normalisation, standard weights (as for images), AdamW",
    "as published": "no normalisation, direct weights as in the paper, SGD as in the paper",
    "norm-free": "no normalisation, pointvar's default: direct weights, unit response, preconditioned steps, "
    "clipped gradients, AdamW",
}
SCORES = {"mean_iou": "mean IoU", "accuracy": "accuracy"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder to write to (demo)")
    parser.add_argument(
        "--fresh", action="store_true", help="train again, also what is in the folder already"
    )


def run(arguments: argparse.Namespace) -> None:
    begin, output = time.monotonic(), arguments.output
    page, folder = output / "report.html", output / "trainings"
    output.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    if page.exists() and f"<title>{TITLE}</title>" not in page.read_text("utf-8", "replace"):
        raise ValueError(f"{page} exists and is not from a demonstration: choose another folder by --output")

    from pointvar.commands import trials, usable_cores
    from pointvar.progress import span, track

    if arguments.fresh:
        for name in trials.names():
            (folder / f"{name}.json").unlink(missing_ok=True)
    cores = min(usable_cores(), 8)
    at_once = f"{cores} at a time" if cores > 1 else "one after the other"
    print("Two networks, each trained with batch norm, with group norm, as published, and norm-free:")
    print(f"{trials.count()} short trainings, {at_once}, {span(480 / cores)} in all on free cores")
    before = _times(folder)
    try:
        run = trials.run_all(folder, cores)
        results = dict(track(run, "epochs of training", trials.epochs(), lambda done: done[0].epochs))
    except KeyboardInterrupt:
        print("\nstopped; the same command continues from here")
        raise
    rows = trials.rows(results)
    _report(rows, results, output).save(page)
    print("\n" + _table(rows) + "\n")
    if _times(folder) == before:
        again = f"pointvar demo --output {quote(str(output))} --fresh"
        print(f"All trainings were there already; to train again: {again}")
    print(f"Mean over {len(trials.SEEDS)} seeds, lowest and highest. Open this page in a browser:")
    print(f"report: {page} (after {span(time.monotonic() - begin)})")


def _times(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.iterdir()}


def _table(rows: Sequence[Row]) -> str:
    tasks = list(dict.fromkeys(row.task for row in rows))
    lines = ["".join([f"{'':14}", *(f"{_heading(task):>34}" for task in tasks)])]
    for way in dict.fromkeys(row.way for row in rows):
        cells = [f"{_told(row):>34}" for task in tasks for row in rows if (row.task, row.way) == (task, way)]
        lines.append("".join([f"{way:14}", *cells]))
    return "\n".join(lines)


def _heading(task: Any) -> str:
    return f"{task.name}, {SCORES[task.score]}"


def _told(row: Row) -> str:
    """The mean of a row over its seeds, and their range."""
    return " ".join(_lines(row)).replace("seeds ", "")


def _lines(row: Row) -> list[str]:
    scores, lost = [100 * score for score in row.scores], row.diverged
    if not scores:
        return ["diverged"]
    lines = [f"{sum(scores) / len(scores):.0f} %", f"(seeds {min(scores):.0f} to {max(scores):.0f})"]
    return lines + ([f"{lost} of {len(row.results)} diverged"] if lost else [])


def _report(rows: Sequence[Row], results: dict[Trial, dict[str, Any]], output: Path) -> Report:
    from pointvar.commands.trials import TASKS
    from pointvar.report import Report

    report = Report(TITLE, "The same network, data and steps, with and without normalisation")
    rooms, shapes = TASKS
    _show_rooms(report, rooms, [row for row in rows if row.task == rooms])
    _show_shapes(report, shapes, [row for row in rows if row.task == shapes])
    _show_conditions(report, rows, results, output)
    return report


def _show_rooms(report: Report, task: SegmentRooms, rows: Sequence[Row]) -> None:
    from pointvar.commands.trials import data_of

    room = data_of(task)[0].test[0]
    shown = _opened(room.points)
    nothing = [-1] * len(room.points)
    predictions = {row.way: row.middle.get("prediction", nothing) for row in rows}
    report.section("A U-Net that labels the points of a room")
    report.versions(
        room.points[shown],
        room.label[shown],
        {way: [found[i] for i in shown.tolist()] for way, found in predictions.items()},
        task.classes,
        {"truth": f"{SCORES[task.score]}\nof {task.tests} test rooms"}
        | {row.way: "\n".join(_lines(row)) for row in rows},
    )
    report.text(
        "Wrong labels are red. Drag a room to turn all five. Each training step sees one sphere of one room, "
        "as is usual for large scenes. The room is the first test room, without the ceiling and the two "
        "walls on your side. The labels are those of the median seed."
    )


def _opened(points: torch.Tensor) -> torch.Tensor:
    """Which points to show: not the ceiling, nor the two walls on the side of the viewer."""
    x, y, z = points.T
    return ((x < x.max() - 0.15) & (y > y.min() + 0.15) & (z < z.max() - 0.15)).nonzero().squeeze(1)


def _show_shapes(report: Report, task: ClassifyShapes, rows: Sequence[Row]) -> None:
    from pointvar.commands.trials import variance_by_depth

    report.section(f"{task.depth} plain layers that classify shapes")
    report.text(
        f"{task.depth} convolutions one after the other, without skip connections or pooling, learn to tell "
        f"{', '.join(task.classes[:-1])} and {task.classes[-1]} apart. Accuracy on {task.tests} test shapes, "
        "with the range over the seeds:"
    )
    report.facts({row.way: _told(row) for row in rows})
    # Those without norms first: they have the same colours in the charts below.
    histories = {row.way: [result["history"] for result in row.results] for row in reversed(rows)}
    steps = [e["step"] for e in max((h for way in histories.values() for h in way), key=len)]
    report.curves(
        {
            way: [_padded([epoch["train_accuracy"] for epoch in history], len(steps)) for history in found]
            for way, found in histories.items()
        },
        steps,
        limits=(0.0, 1.0),
        reference=1 / len(task.classes),
        xlabel="step",
        ylabel="accuracy in training: mean and range of the seeds; dotted: guessing",
    )
    report.heading("Features by depth, before the first step and without norms")
    report.panels(variance_by_depth(task), log=True, reference=1.0, xlabel="layer")
    report.text(
        "Direct weights keep the second moment of the features at 1 in every layer. With weights as for "
        "images it vanishes within a few layers, so those networks need a norm. Both ways without a norm "
        "have direct weights; norm-free also preconditions the steps and clips the gradients."
    )


def _padded(values: list[float], length: int) -> list[float | None]:
    """A training that has diverged has fewer epochs."""
    return [*values, *[None] * (length - len(values))]


def _show_conditions(
    report: Report, rows: Sequence[Row], results: dict[Trial, dict[str, Any]], output: Path
) -> None:
    from pointvar.commands.trials import METHOD, RATES, SEEDS, WAYS, Trial, validation

    report.section("What was run")
    report.table([(way, MEANING[way]) for way in WAYS], ["training", "what it is"])
    report.text(
        "The rule for the learning rate is the same for all: each way is first trained for a few epochs at "
        f"{len(RATES)} rates, and the rate with the best score on validation data is used for all seeds. "
        "Validation data are neither trained nor tested on. AdamW takes a tenth of the rates of SGD. "
        f"Schedule, steps, data and network ({METHOD}) are the same for all."
        "\n\n"
        "Classes and sizes were chosen with group norm and SGD, and the number of steps so that all of it "
        "takes five minutes. When each step saw a whole room in place of a sphere, batch norm was level with "
        "group norm."
    )
    table = []
    for row in rows:
        tried = validation(row.task, row.way, results)
        found = {f"{rate:g} / {rate / 10:g}": _percent(score) for rate, score in tried.items()}
        seeds = {
            f"seed {seed}": _percent(result["metrics"].get(row.task.score))
            for seed, result in zip(SEEDS, row.results, strict=True)
        }
        chosen = f"{Trial(row.task, row.way, row.rate, SEEDS[0]).config().optimizer.rate:g}"
        table.append({"task": row.task.name, "training": row.way, **found, "chosen": chosen, **seeds})
    title = "Validation score by rate of SGD / AdamW after few epochs, and test score by seed, in %"
    report.table(table, title=title)
    for row in rows:
        settings = Trial(row.task, row.way, row.rate, SEEDS[0]).config().to_yaml()
        report.code(settings, f"Settings: {row.task.name}, {row.way}")
    report.text(f"To repeat it: pointvar demo --output {quote(str(output))} --fresh")


def _percent(share: float | None) -> str:
    return "diverged" if share is None else f"{100 * share:.1f}"
