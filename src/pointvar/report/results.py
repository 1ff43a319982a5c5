"""Results of any shape: what is a curve is drawn, what is a table is set as one, and nothing is left out."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from pointvar.limits import check_yaml, parse_json
from pointvar.progress import span
from pointvar.report.page import Report
from pointvar.report.tables import is_number

Row = Mapping[str, Any]

ALONG = ("epoch", "step", "depth", "layer", "distance", "x")
"""Names of columns that other columns are drawn over."""
SCORES = {"accuracy": "accuracy", "mean_accuracy": "mean accuracy", "mean_iou": "mean IoU"}
VARIANCES = {
    "variance": "output",
    "spatial": "output, over points",
    "activation_gradient": "gradient of output",
    "weight_gradient": "gradient of weights",
}


def read(path: Path) -> Any:
    """The content of a file: names and values, rows, or text. What cannot be read is named."""
    try:
        text, suffix = path.read_text(encoding="utf-8"), path.suffix.lower()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text: {error}") from error
    if suffix == ".json":
        return _parsed(str(path), text)
    if suffix == ".jsonl":
        return _read_lines(path, text)
    if suffix == ".csv":
        return [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]
    if suffix == ".yaml":
        return _parsed(str(path), text, dict, "YAML")
    return text


def show(report: Report, content: Any, title: str = "") -> None:
    """An initialisation, variances by layer, rows, a grid of runs, or whatever a file of results holds."""
    named = content if isinstance(content, Mapping) else {}
    items = list(named.values()) or (content if isinstance(content, list) else [])
    if {"layers", "left_alone", "method"} <= named.keys():
        show_init(report, named)
    elif {"layers", "verdict"} <= named.keys():
        _show_variance(report, named)
    elif named and (not title or (all(map(_is_curves, items)) and any(map(_along, items)))):
        _show_mapping(report, named, title)
    elif _is_curve(content):
        report.curves({title: content}, title=title, log=None)
    elif _is_curves(named):
        _show_curves(report, named, title)
    elif named and all(map(_is_curves, items)):
        report.heading(title)
        report.panels(named, log=None)
    elif items and all(_is_row(item) if named else isinstance(item, Mapping) for item in items):
        _show_rows(report, _rows(named) or items, title)
    elif named:
        _show_mapping(report, named, title)
    elif content == []:
        report.text(f"{title}: no rows." if title else "No rows.")
    else:
        report.code(json.dumps(content, indent=1, ensure_ascii=False), title or "values")


def show_init(report: Report, init: Row) -> None:
    """What an initialisation did, as ``InitReport.to_dict()`` tells it."""
    layers, seconds = init["layers"], init.get("seconds")
    counts = {key: init[key] for key in ("batches", "clouds", "points", "passes") if init.get(key)}
    time = {"time": f"{seconds:.2f} s"} if seconds else {}
    report.facts({"initialisation": init["method"], "layers set": len(layers), **counts, **time})
    names = {"second_moment": "Z of the input", "variance": "variance of the weights"}
    if len(layers) > 1:
        report.curves(columns(layers, names), title="Initialisation by layer", xlabel="layer", log=True)
    report.table(_told(layers, {"second_moment": "Z", "variance": "Var[w]"}), title="Layers that were set")
    if init["left_alone"]:
        report.table(list(init["left_alone"].items()), ["module", "why"], title="Left alone")


def _show_variance(report: Report, variance: Row) -> None:
    """Variances by layer, as ``VarianceReport.to_dict()`` tells them."""
    verdict, layers = variance["verdict"], variance["layers"]
    reason = f": {variance['reason']}" if variance.get("reason") else ""
    report.text(f"Variance by layer: {verdict}{reason}.", kind="good" if verdict == "healthy" else "bad")
    curves = columns(layers, VARIANCES)
    report.curves(
        curves, title="Variance by depth", xlabel="layer", ylabel="second moment", log=True, reference=1
    )
    report.table(_told(layers, VARIANCES))


def _show_rows(report: Report, rows: Sequence[Row], title: str) -> None:
    """Rows of a record or of a grid: curves if they go along epochs, steps or layers, and a table."""
    if all(isinstance(row.get(key), Mapping) for row in rows for key in ("cell", "result")):
        _show_grid(report, rows)
        return
    flat = [_flat(row) for row in rows]
    found = columns(flat, {key: key for row in flat for key in row})
    along = next((name for name in ALONG if _ascends(found.get(name, []))), None)
    curves = {
        name: {name: values} for name, values in found.items() if _is_curve(values, 2) and name != along
    }
    if along and curves:
        report.panels(curves, found[along], xlabel=along)
    report.table(flat, title=title)


def _show_grid(report: Report, rows: Sequence[Row]) -> None:
    """A grid of experiments: means over the seeds, and every run. The last record of a cell counts."""
    records = list({json.dumps(row["cell"], sort_keys=True): row for row in rows}.values())
    seconds = sum(record["result"].get("seconds") or 0 for record in records)
    dates = sorted(record["date"][:16].replace("T", " ") for record in records if record.get("date"))
    facts = {"runs": len(records), "time of training": span(seconds)}
    facts |= {**(records[-1].get("versions") or {}), **(records[-1].get("hardware") or {})}
    report.facts({**facts, "first": dates[0], "last": dates[-1]} if dates else facts)
    groups: dict[str, list[Row]] = {}
    runs = []
    for record in records:
        cell, result = record["cell"], record["result"]
        groups.setdefault(json.dumps({k: v for k, v in cell.items() if k != "seed"}), []).append(result)
        history = columns(result.get("history") or [], {"accuracy": "accuracy by epoch"})
        single = {k: v for k, v in result.items() if _is_single(v)}
        runs.append({**cell, **{SCORES.get(k, k.replace("_", " ")): v for k, v in single.items()}, **history})
    means = [{**json.loads(kind), **_mean(results)} for kind, results in groups.items()]
    report.table(means, title="Mean over the seeds")
    report.table(runs, title="Every run")


def _mean(results: Sequence[Row]) -> dict[str, Any]:
    row: dict[str, Any] = {"seeds": len(results)}
    for name, values in columns(results, SCORES).items():
        known = [float(v) for v in values if v is not None]
        row |= {name: fmean(known), **({f"{name}, ±": stdev(known)} if len(known) > 1 else {})}
    return {**row, "diverged": sum(bool(result.get("diverged")) for result in results)}


def _show_mapping(report: Report, content: Row, title: str) -> None:
    """Single values first; then curves over a common column, and rows of the same names, together."""
    if title:
        report.heading(title)
    facts = {key: value for key, value in content.items() if _is_single(value)}
    curves = {key: value for key, value in content.items() if _is_curve(value)}
    rows = {k: v for k, v in content.items() if _is_row(v) and all(map(_is_single, v.values()))}
    curves = curves if _along(curves) else {}
    rows = rows if len(rows) > 1 and len(set(map(tuple, rows.values()))) == 1 else {}
    if facts:
        report.facts(facts)
    if curves:
        _show_curves(report, curves, "")
    if rows:
        _show_rows(report, _rows(rows), "")
    for key in content:
        if key not in {**facts, **curves, **rows}:
            show(report, content[key], key.replace("_", " "))


def _show_curves(report: Report, curves: Row, title: str) -> None:
    along = _along(curves) or ""
    rest = {name: values for name, values in curves.items() if name != along}
    report.curves(rest, curves.get(along), title=title, xlabel=along, log=None)


def _rows(named: Row) -> list[Row]:
    return [{"": name, **row} for name, row in named.items()]


def columns(rows: Sequence[Row], names: Mapping[str, str]) -> dict[str, list[Any]]:
    """Columns of rows, by what they are called; those without any value are left out."""
    found = {text: [row.get(key) for row in rows] for key, text in names.items()}
    return {text: values for text, values in found.items() if any(v is not None for v in values)}


def _told(rows: Sequence[Row], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with their names as people write them, without columns that say nothing."""
    keys = {key: names.get(key, key.replace("_", " ")) for row in rows for key in row}
    kept = {k: text for k, text in keys.items() if any(row.get(k) not in (None, "") for row in rows)}
    return [{text: row.get(key) for key, text in kept.items()} for row in rows]


def _along(curves: Row) -> str | None:
    """Which of some curves the others, all as long, are drawn over."""
    lengths = {len(values[0] if isinstance(values[0], list) else values) for values in curves.values()}
    if len(curves) < 2 or len(lengths) > 1:
        return None
    return next((name for name in ALONG if _ascends(curves.get(name, []))), None)


def _flat(row: Row, before: str = "") -> dict[str, Any]:
    """A nested row as one of plain cells, with names such as ``init seconds``."""
    cells: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{before}{key}".replace("_", " ")
        cells |= _flat(value, f"{name} ") if isinstance(value, Mapping) else {name: value}
    return cells


def _is_single(value: Any) -> bool:
    return not isinstance(value, (Mapping, list))


def _is_curve(value: Any, least: int = 3) -> bool:
    """So many numbers or more, with gaps (``None``) or without, or several draws of them."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(draw, list) for draw in value):
        return len(set(map(len, value))) == 1 and all(map(_is_curve, value))
    return (
        len(value) >= least and all(v is None or is_number(v) for v in value) and any(map(is_number, value))
    )


def _is_curves(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(map(_is_curve, value.values()))


def _is_row(value: Any) -> bool:
    cells = _flat(value).values() if isinstance(value, Mapping) else []
    return bool(cells) and not any(isinstance(v, list) and len(v) > 3 and not _is_curve(v) for v in cells)


def _ascends(values: Sequence[Any]) -> bool:
    return len(values) > 1 and all(map(is_number, values)) and all(a < b for a, b in pairwise(values))


def _read_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            rows += [_parsed(f"{path}, line {number}", line, dict)] if line.strip() else []
        except ValueError:
            if line.endswith("\n"):  # else it is the last one, and still being written
                raise
    return rows


def _parsed(where: str, text: str, kind: type = object, language: str = "JSON") -> Any:
    try:
        if language == "JSON":
            content = parse_json(text)
        else:
            check_yaml(text)
            content = yaml.safe_load(text)
    except Exception as error:  # YAML's errors are of its own kind
        raise ValueError(f"{where}: not {language}: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{where}: expected names and values, got {type(content).__name__}")
    return content


def _value(text: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            pass
    return text or None
