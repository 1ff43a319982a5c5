"""Grids of training runs, as `pointvar reproduce` records them: a line per cell, over several seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from pointvar.progress import span
from pointvar.report.page import Report, is_number

SCORES = {"accuracy": "accuracy", "mean_accuracy": "mean accuracy", "mean_iou": "mean IoU"}


def is_cell(row: Mapping[str, Any]) -> bool:
    """Whether a row is the record of a cell."""
    return isinstance(row.get("cell"), Mapping) and isinstance(row.get("result"), Mapping)


def show_cells(report: Report, rows: Sequence[Mapping[str, Any]]) -> None:
    """Means over the seeds, and every run. Of several records of a cell the last one counts."""
    last = {json.dumps(row["cell"], sort_keys=True): row for row in rows}
    records = list(last.values())
    seconds = sum(record["result"].get("seconds") or 0 for record in records)
    facts: dict[str, Any] = {"runs": len(records), "time of training": span(seconds)}
    for part in ("versions", "hardware"):
        facts |= records[-1].get(part) or {}
    dates = sorted(record["date"] for record in records if record.get("date"))
    if dates:
        first, last = (date[:16].replace("T", " ") for date in (dates[0], dates[-1]))
        facts |= {"first": first, "last": last}
    report.facts(facts)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        kind = {key: value for key, value in record["cell"].items() if key != "seed"}
        groups.setdefault(json.dumps(kind), []).append(record["result"])
    report.table(
        [{**json.loads(kind), **_mean(results)} for kind, results in groups.items()],
        title="Mean over the seeds",
    )
    report.table([{**record["cell"], **_single(record["result"])} for record in records], title="Every run")


def _mean(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"seeds": len(results)}
    for key, name in SCORES.items():
        known = [float(result[key]) for result in results if is_number(result.get(key))]
        if known:
            row[name] = fmean(known)
        if len(known) > 1:
            row[f"{name}, ±"] = stdev(known)
    row["diverged"] = sum(bool(result.get("diverged")) for result in results)
    return row


def _single(result: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words as they are, the history as a small curve of the accuracy."""
    row = {
        SCORES.get(key, key.replace("_", " ")): v
        for key, v in result.items()
        if not isinstance(v, (Mapping, list))
    }
    history = [epoch.get("accuracy") for epoch in result.get("history") or [] if isinstance(epoch, Mapping)]
    return {**row, "accuracy by epoch": history} if any(map(is_number, history)) else row
