"""Numbers of any shape: what is a curve is drawn, what is a table is set as one, and nothing is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pointvar.report.cells import is_cell, show_cells
from pointvar.report.page import Report, is_number

ALONG = ("epoch", "step", "depth", "layer", "distance", "x")
"""Names of columns that other columns are drawn over."""


def show_json(report: Report, content: Any) -> None:
    """An initialisation, variances by layer, or whatever a file of results holds."""
    if isinstance(content, Mapping) and {"layers", "left_alone", "method"} <= content.keys():
        show_init(report, content)
    elif isinstance(content, Mapping) and {"layers", "verdict"} <= content.keys():
        show_variance(report, content)
    elif isinstance(content, list) and content and all(isinstance(row, Mapping) for row in content):
        show_rows(report, content)
    elif isinstance(content, Mapping):
        _show_object(report, content)
    else:
        _show_value(report, "values", content)


def show_init(report: Report, init: Mapping[str, Any]) -> None:
    """What an initialisation did, as ``InitReport.to_dict()`` tells it."""
    layers = init["layers"]
    facts = {"initialisation": init["method"], "layers set": len(layers)}
    for key in ("batches", "clouds", "points", "passes"):
        if init.get(key):
            facts[key] = init[key]
    if init.get("seconds"):
        facts["time"] = f"{init['seconds']:.2f} s"
    report.facts(facts)
    curves = {
        "Z of the input": [layer.get("second_moment") for layer in layers],
        "variance of the weights": [layer.get("variance") for layer in layers],
    }
    known = {name: values for name, values in curves.items() if any(v is not None for v in values)}
    if len(layers) > 1:
        report.curves(known, title="Initialisation by layer", xlabel="layer", log=True)
    headings = {
        "name": "layer",
        "kind": "type",
        "second_moment": "Z",
        "variance": "Var[w]",
        "target": "target",
        "depth": "depth",
        "calls": "calls",
        "note": "note",
    }
    report.table(layers, _used(layers, headings), title="Layers that were set")
    if init["left_alone"]:
        rows = [{"module": name, "why": why} for name, why in init["left_alone"].items()]
        report.table(rows, title="Left alone")


def show_variance(report: Report, variance: Mapping[str, Any]) -> None:
    """Variances by layer, as ``VarianceReport.to_dict()`` tells them."""
    verdict, layers = variance["verdict"], variance["layers"]
    report.text(f"Variance by layer: {verdict}.", kind="good" if verdict == "healthy" else "bad")
    headings = {
        "variance": "output",
        "spatial": "output, over points",
        "activation_gradient": "gradient of output",
        "weight_gradient": "gradient of weights",
    }
    curves = {text: [layer.get(key) for layer in layers] for key, text in headings.items()}
    known = {text: values for text, values in curves.items() if any(v is not None for v in values)}
    report.curves(
        known, title="Variance by depth", xlabel="layer", ylabel="second moment", log=True, reference=1.0
    )
    first = {"name": "layer", "kind": "type", "mean": "mean"}
    report.table(layers, _used(layers, {**first, **headings, "dead": "dead channels", "verdict": "verdict"}))


def show_rows(report: Report, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of a record or of a grid: curves if they go along epochs, steps or layers, and a table."""
    if not rows:
        report.text("No rows.")
        return
    if all(is_cell(row) for row in rows):
        show_cells(report, rows)
        return
    flat = [_flat(row) for row in rows]
    along = next((name for name in ALONG if _ascends([row.get(name) for row in flat])), None)
    if along is not None:
        columns = list(dict.fromkeys(key for row in flat for key in row))
        numeric = [c for c in columns if c != along and _is_measured([row.get(c) for row in flat])]
        panels = {name: {name: [row.get(name) for row in flat]} for name in numeric}
        if panels:
            report.panels(panels, [row[along] for row in flat], xlabel=along)
    report.table(flat)


def _show_object(report: Report, content: Mapping[str, Any]) -> None:
    facts = {key: value for key, value in content.items() if not isinstance(value, (Mapping, list))}
    if facts:
        report.facts(facts)
    rest = {key: value for key, value in content.items() if key not in facts}
    curves = {key: value for key, value in rest.items() if _is_curve(value)}
    if _along(curves) is not None:
        _show_curves(report, curves)
        rest = {key: value for key, value in rest.items() if key not in curves}
    rows = {key: value for key, value in rest.items() if isinstance(value, Mapping) and _is_flat(value)}
    if len(rows) > 1 and len({tuple(row) for row in rows.values()}) == 1:
        _show_value(report, "", rows)
        rest = {key: value for key, value in rest.items() if key not in rows}
    for key, value in rest.items():
        _show_value(report, key, value)


def _show_value(report: Report, name: str, value: Any) -> None:
    title = name.replace("_", " ")
    if _is_curve(value):
        _show_curves(report, {title: value}, title)
    elif _is_curves(value):
        _show_curves(report, value, title)
    elif isinstance(value, Mapping) and value and all(_is_curves(item) for item in value.values()):
        report.heading(title)
        if any(_along(item) is not None for item in value.values()):
            for key, item in value.items():
                _show_curves(report, item, key)
        else:
            report.panels(value, log=None)
    elif isinstance(value, Mapping) and value and all(_is_row(item) for item in value.values()):
        report.table([{"": key, **_flat(item)} for key, item in value.items()], title=title)
    elif isinstance(value, list) and value and all(_is_row(item) for item in value):
        report.table([_flat(item) for item in value], title=title)
    elif isinstance(value, Mapping) and value:
        report.heading(title)
        _show_object(report, value)
    else:
        report.code(json.dumps(value, indent=1, ensure_ascii=False), title)


def _show_curves(report: Report, curves: Mapping[str, Any], title: str = "") -> None:
    along = _along(curves)
    rest = {name: values for name, values in curves.items() if name != along}
    report.curves(rest, None if along is None else curves[along], title=title, xlabel=along or "", log=None)


def _along(curves: Mapping[str, Any]) -> str | None:
    """Which of some curves the others, all as long, are drawn over."""
    lengths = {len(values[0] if isinstance(values[0], list) else values) for values in curves.values()}
    if len(curves) < 2 or len(lengths) > 1:
        return None
    return next((name for name in ALONG if name in curves and _ascends(curves[name])), None)


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A nested row as one of plain cells, with names such as ``init seconds``."""
    cells: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            cells.update(_flat(value, f"{name} "))
        else:
            cells[name] = value
    return cells


def _used(rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> dict[str, str]:
    """Columns in which the rows differ from having nothing to say."""
    idle = {"calls": 1, "note": ""}
    return {
        key: text
        for key, text in headings.items()
        if any(row.get(key) is not None and row.get(key) != idle.get(key) for row in rows)
    }


def _is_curve(value: Any) -> bool:
    """Three numbers or more, or several draws of them."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(draw, list) for draw in value):
        return len({len(draw) for draw in value}) == 1 and all(_is_curve(draw) for draw in value)
    return (
        len(value) > 2 and all(v is None or is_number(v) for v in value) and any(is_number(v) for v in value)
    )


def _is_curves(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(_is_curve(item) for item in value.values())


def _is_row(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    cells = _flat(value).values()
    return not any(isinstance(v, list) and len(v) > 3 and not _is_curve(v) for v in cells)


def _is_flat(row: Mapping[str, Any]) -> bool:
    return bool(row) and not any(isinstance(value, (Mapping, list)) for value in row.values())


def _ascends(values: Sequence[Any]) -> bool:
    return len(values) > 1 and all(map(is_number, values)) and all(a < b for a, b in pairwise(values))


def _is_measured(values: Sequence[Any]) -> bool:
    return all(v is None or is_number(v) for v in values) and sum(v is not None for v in values) > 1
