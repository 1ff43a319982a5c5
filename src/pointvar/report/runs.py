"""Runs of training: what was run, how it went, what came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pointvar.data.formats import read_points
from pointvar.progress import span
from pointvar.report.page import Report
from pointvar.report.results import SCORES, columns, read, show_init

NUMBER = (int, float)
NUMBERS = dict.fromkeys(SCORES, NUMBER)
BY_CLASS = dict.fromkeys(("precision", "recall", "labels", "confusion"), dict)
WORST = 20
"""Files that a report lists."""
FILES: dict[str, dict[str, Any]] = {
    "config.yaml": dict.fromkeys(("data", "model", "init", "optimizer"), dict),
    "metrics.jsonl": {**dict.fromkeys(("epoch", "seconds", "rate", "train_loss"), NUMBER), **NUMBERS},
    "versions.json": {},
    "summary.json": {"metrics": {"iou": dict, **BY_CLASS, **NUMBERS}, "seconds": NUMBER, "init": dict},
    "evaluation.json": {"iou": dict, "votes": int, "files": list, "maps": dict, **BY_CLASS, **NUMBERS},
}
"""What a report reads of a run, and what it takes to be there of which kind, if it is."""
CHECKPOINTS = {"last.ckpt", "previous.ckpt", "damaged.ckpt"}
IN_A_RUN = {*FILES, *CHECKPOINTS, "model.safetensors", "tensorboard", "running.json", "evaluation"}
"""What the directory of a run holds besides what a user has put there."""
SETTINGS = {
    "data": ("data", "name"),
    "network": ("model", "network"),
    "method": ("model", "method"),
    "norm": ("model", "norm"),
    "initialisation": ("init", "method"),
    "batch": ("data", "batch_size"),
    "rate": ("optimizer", "rate"),
}


def is_run(folder: Path) -> bool:
    """Whether a folder is the directory of a run."""
    return (folder / "config.yaml").is_file() or (folder / "metrics.jsonl").is_file()


@dataclass
class Run:
    """What the directory of a run tells; a run that goes on has no summary yet."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        found = [_read(self.folder / name, shape) for name, shape in FILES.items()]
        self.config, self.rows = found[0] or {}, found[1] or []
        self.versions, self.summary, self.evaluation = (part or {} for part in found[2:])
        self.metrics = self.evaluation or self.summary.get("metrics") or {}

    def scores(self) -> dict[str, Any]:
        """Of the last evaluation: with votes, at the end, or of the last epoch that was evaluated."""
        evaluated = [row for row in self.rows if "accuracy" in row]
        found = self.metrics or (evaluated[-1] if evaluated else {})
        return {text: found[key] for key, text in SCORES.items() if key in found}

    def facts(self) -> dict[str, Any]:
        """What was run, in short."""
        model, summary, done = self.config.get("model") or {}, self.summary, len(self.rows)
        state = "not finished" if not summary else "diverged" if summary.get("diverged") else "finished"
        facts: dict[str, Any] = {"state": state}
        facts |= {name: (self.config.get(part) or {}).get(key) for name, (part, key) in SETTINGS.items()}
        if model.get("basis"):
            facts["method"] = f"{model['basis']} x {model['estimator']}"
        seconds = summary.get("seconds") or (self.rows[-1].get("seconds") if self.rows else None)
        facts |= {
            "seed": self.config.get("seed"),
            "epochs": f"{done} of {self.config['epochs']}" if "epochs" in self.config else done,
            "steps": summary.get("steps"),
            "parameters": summary.get("parameters"),
            "time": None if seconds is None else span(seconds),
        }
        return {name: value for name, value in facts.items() if value is not None}


def _read(path: Path, shape: dict[str, Any]) -> Any:
    """What a file of a run holds, if it is there. One that is damaged is an error that names it."""
    if not path.is_file():
        return None
    try:
        content = read(path)
        for row in content if path.suffix == ".jsonl" else [content]:
            _check(str(path), row, shape)
        if path.name == "summary.json" and content.get("init"):
            _check(f"{path}: init", content["init"], {"left_alone": dict, "layers": list}, complete=True)
    except ValueError as error:
        advice = "mend the file or remove it, a report can do without"
        raise ValueError(f"{' '.join(str(error).split())}; {advice}") from error
    return content


def _check(where: str, content: Any, shape: dict[str, Any], complete: bool = False) -> None:
    """Raises where values are not of the kind that they should be."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected names and values, got {type(content).__name__}")
    for name, kind in shape.items():
        value = content.get(name)
        if value is None and not complete:
            continue
        if isinstance(kind, dict):
            _check(f"{where}: {name}", value, kind)
        elif not isinstance(value, kind):
            raise ValueError(f"{where}: {name} cannot be {value!r}")


def compare(report: Report, runs: Sequence[Run]) -> None:
    """What the runs share, a table of what they differ in, and their curves on top of each other."""
    report.section("Comparison")
    facts = [run.facts() for run in runs]
    same = {k: v for k, v in facts[0].items() if all(k in each and each[k] == v for each in facts)}
    if same:
        report.facts(same)
    differing = [{k: v for k, v in each.items() if k not in same} for each in facts]
    report.table([{"run": r.name, **r.scores(), **rest} for r, rest in zip(runs, differing, strict=True)])
    epochs = sorted({row["epoch"] for run in runs for row in run.rows if "epoch" in row})
    panels: dict[str, dict[str, Any]] = {}
    for run in runs:
        by_epoch = {row.get("epoch"): row for row in run.rows}
        names = {"train_loss": "training loss", "accuracy": "accuracy", "mean_iou": "mean IoU"}
        for title, values in columns([by_epoch.get(epoch, {}) for epoch in epochs], names).items():
            panels.setdefault(title, {})[run.name] = values
    if panels:
        report.panels(panels, epochs, xlabel="epoch")


def show_evaluation(report: Report, run: Run) -> None:
    """Scores by class, what is taken for what, the worst files, and where they are wrong."""
    metrics, count = run.metrics, run.evaluation.get("votes")
    votes = f", {count} vote{'s' * (count != 1)}" if count else ""
    names = {"iou": "IoU", "precision": "precision", "recall": "recall", "labels": "labels"}
    rows = [
        {"class": c, **{text: metrics[key].get(c) for key, text in names.items() if key in metrics}}
        for c in metrics["iou"]
    ]
    over = f", means over {metrics['classes']} of {len(rows)}" if "classes" in metrics else ""
    report.table(rows, title=f"Scores by class{over}{votes}")
    confusion = metrics.get("confusion")
    if confusion:
        report.matrix(confusion, "Confusion matrix: what labels were predicted as, in %")
    files = run.evaluation.get("files")
    if files:
        most = f", {WORST} of {len(files)}" if len(files) > WORST else ""
        report.table(files[:WORST], title=f"Worst files{most}")
    maps = {name: run.folder / file for name, file in (run.evaluation.get("maps") or {}).items()}
    for name, path in maps.items():
        if path.is_file():
            arrays = read_points(path)
            points, label, prediction = (arrays[part] for part in ("points", "label", "prediction"))
            report.map(points, label, prediction, list(metrics["iou"]), title=f"Errors in {name}, from above")


def show_run(report: Report, run: Run) -> None:
    """Everything of one run."""
    report.section(run.name)
    if run.summary.get("diverged"):
        report.text(f"The run diverged: {run.summary['diverged']}", kind="bad")
    report.facts({**run.facts(), **run.scores()})
    groups = {
        "Loss": {"train_loss": "training"},
        "Scores": {"train_accuracy": "accuracy, training", **SCORES},
        "Learning rate": {"rate": "rate"},
    }
    panels = {title: curves for title, names in groups.items() if (curves := columns(run.rows, names))}
    if panels and len(run.rows) > 1:
        report.panels(panels, [row.get("epoch", n) for n, row in enumerate(run.rows, 1)], xlabel="epoch")
    if run.metrics.get("iou"):
        show_evaluation(report, run)
    if run.summary.get("init"):
        report.heading("Initialisation")
        show_init(report, run.summary["init"])
    if run.config:
        report.code((run.folder / "config.yaml").read_text(encoding="utf-8"), "Configuration")
    if run.versions:
        report.code(json.dumps(run.versions, indent=1), "Versions")
