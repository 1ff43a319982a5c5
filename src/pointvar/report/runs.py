"""Runs of training: what was run, how it went, what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pointvar.progress import span
from pointvar.report.cells import SCORES
from pointvar.report.numbers import show_init
from pointvar.report.page import Report
from pointvar.report.read import read_json, read_lines, read_yaml

IN_A_RUN = {
    "config.yaml",
    "versions.json",
    "metrics.jsonl",
    "summary.json",
    "evaluation.json",
    "model.safetensors",
    "last.ckpt",
    "tensorboard",
}
"""What the directory of a run holds besides what a user has put there."""


def is_run(folder: Path) -> bool:
    """Whether a folder is the directory of a run."""
    return (folder / "config.yaml").is_file() or (folder / "metrics.jsonl").is_file()


@dataclass
class Run:
    """What the directory of a run tells; a run that goes on has no summary yet."""

    name: str
    settings: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None

    @staticmethod
    def read(folder: Path, name: str) -> Run:
        """Reads what there is."""
        run = Run(name)
        if (folder / "config.yaml").is_file():
            run.config = read_yaml(folder / "config.yaml")
            run.settings = (folder / "config.yaml").read_text(encoding="utf-8")
        if (folder / "metrics.jsonl").is_file():
            run.rows = read_lines(folder / "metrics.jsonl")
        found = {
            name: read_json(folder / f"{name}.json") if (folder / f"{name}.json").is_file() else None
            for name in ("versions", "summary", "evaluation")
        }
        run.versions, run.summary, run.evaluation = (
            found["versions"] or {},
            found["summary"],
            found["evaluation"],
        )
        return run

    @property
    def state(self) -> str:
        if self.summary is None:
            return "not finished"
        return "diverged" if self.summary.get("diverged") else "finished"

    @property
    def scores(self) -> dict[str, Any]:
        """Of the last evaluation: with votes, at the end, or of the last epoch that was evaluated."""
        evaluated = [row for row in self.rows if "accuracy" in row]
        found = self.evaluation or (self.summary or {}).get("metrics") or (evaluated[-1] if evaluated else {})
        return {text: found[key] for key, text in SCORES.items() if key in found}

    def facts(self) -> dict[str, Any]:
        """What was run, in short."""
        model, optimizer = self.config.get("model") or {}, self.config.get("optimizer") or {}
        data, init = self.config.get("data") or {}, self.config.get("init") or {}
        method = model.get("method")
        if model.get("basis"):
            method = f"{model['basis']} x {model['estimator']}"
        summary = self.summary or {}
        seconds = summary.get("seconds") or (self.rows[-1].get("seconds") if self.rows else None)
        facts = {
            "state": self.state,
            "data": data.get("name"),
            "network": model.get("network"),
            "method": method,
            "norm": model.get("norm"),
            "initialisation": init.get("method"),
            "batch": data.get("batch_size"),
            "rate": optimizer.get("rate"),
            "seed": self.config.get("seed"),
            "epochs": f"{len(self.rows)} of {self.config['epochs']}"
            if "epochs" in self.config
            else len(self.rows),
            "steps": summary.get("steps"),
            "parameters": summary.get("parameters"),
            "time": None if seconds is None else span(seconds),
        }
        return {name: value for name, value in facts.items() if value is not None}


def compare(report: Report, runs: Sequence[Run]) -> None:
    """What the runs share, a table of what they differ in, and their curves on top of each other."""
    report.section("Comparison")
    facts = [run.facts() for run in runs]
    names = dict.fromkeys(name for each in facts for name in each)
    same = {
        name: facts[0][name] for name in names if all(each.get(name) == facts[0].get(name) for each in facts)
    }
    if same:
        report.facts(same)
    report.table(
        [
            {"run": run.name, **run.scores, **{k: v for k, v in each.items() if k not in same}}
            for run, each in zip(runs, facts, strict=True)
        ]
    )
    epochs = sorted({row["epoch"] for run in runs for row in run.rows if "epoch" in row})
    panels = {}
    for key, title in {"train_loss": "training loss", "accuracy": "accuracy", "mean_iou": "mean IoU"}.items():
        series = {}
        for run in runs:
            by_epoch = {row.get("epoch"): row.get(key) for row in run.rows}
            if any(value is not None for value in by_epoch.values()):
                series[run.name] = [by_epoch.get(epoch) for epoch in epochs]
        if series:
            panels[title] = series
    if panels and epochs:
        report.panels(panels, epochs, xlabel="epoch")


def show_run(report: Report, run: Run) -> None:
    """Everything of one run."""
    report.section(run.name)
    summary = run.summary or {}
    if summary.get("diverged"):
        report.text(f"The run diverged: {summary['diverged']}", kind="bad")
    report.facts({**run.facts(), **run.scores})
    _show_curves(report, run.rows)
    metrics = run.evaluation or summary.get("metrics") or {}
    if metrics.get("iou"):
        rows = [{"class": name, "IoU": value} for name, value in metrics["iou"].items()]
        count = (run.evaluation or {}).get("votes")
        votes = f", {count} vote{'s' * (count != 1)}" if count else ""
        report.table(rows, title=f"Intersection over union by class{votes}")
    if summary.get("init"):
        report.heading("Initialisation")
        show_init(report, summary["init"])
    if run.settings:
        report.code(run.settings, "Configuration")
    if run.versions:
        report.code(json.dumps(run.versions, indent=1), "Versions")


def _show_curves(report: Report, rows: Sequence[Mapping[str, Any]]) -> None:
    if len(rows) < 2:
        return
    groups = {
        "Loss": {"train_loss": "training"},
        "Scores": {"train_accuracy": "accuracy, training", **SCORES},
        "Learning rate": {"rate": "rate"},
    }
    shown = {}
    for title, names in groups.items():
        series = {text: [row.get(key) for row in rows] for key, text in names.items()}
        series = {text: values for text, values in series.items() if any(v is not None for v in values)}
        if series:
            shown[title] = series
    if shown:
        report.panels(shown, [row.get("epoch", number) for number, row in enumerate(rows, 1)], xlabel="epoch")
