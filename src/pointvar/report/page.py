"""`Report`: one HTML file with text, tables, curves, pictures and clouds that needs nothing but a browser."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike

from pointvar.report.charts import MINUS, chart, curve_legend, data_script, plain, sparkline, suits_log
from pointvar.report.clouds import payload

IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
# A browser that honours this asks the network for nothing, whatever a report holds.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Quantity(str):
    """Text that begins with a number, such as "61.2 ± 0.3": it is aligned and sorted as that number."""

    @property
    def number(self) -> str:
        found = re.match(r"[-+\N{MINUS SIGN}]?\d+(\.\d+)?(e[-+]?\d+)?", self.replace(",", ""))
        return found[0].replace(MINUS, "-") if found else ""


class Report:
    """A page that is filled from top to bottom, and saved as one file.

    Example::

        report = Report("Shapes")
        report.section("Training")
        report.curves({"loss": [2.1, 1.3, 0.9]}, xlabel="epoch", log=True)
        report.table([{"class": "cone", "accuracy": 0.91}])
        report.cloud(points, labels=labels, predictions=predictions, classes=["floor", "chair"])
        report.save("report.html")
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self._parts: list[str] = []
        self._sections: list[tuple[str, str]] = []

    def section(self, title: str) -> None:
        """Begins a section, which the contents of the page list."""
        anchor = f"s{len(self._sections) + 1}"
        self._sections.append((anchor, title))
        self._parts.append(f'<h2 id="{anchor}">{escape(title)}</h2>')

    def heading(self, title: str) -> None:
        """A heading within a section."""
        self._parts.append(f"<h3>{escape(title)}</h3>")

    def text(self, text: str, kind: str = "") -> None:
        """Paragraphs, with empty lines between them; ``kind`` "good" or "bad" makes a notice of them."""
        if kind not in ("", "good", "bad"):
            raise ValueError(f"kind must be '', 'good' or 'bad', got {kind!r}")
        style = f' class="notice {kind}"' if kind else ""
        paragraphs = [p.strip() for p in re.split(r"\n\s*\n", text) if p.strip()]
        self._parts += [f"<p{style}>{escape(paragraph)}</p>" for paragraph in paragraphs]

    def items(self, items: Sequence[str]) -> None:
        """A list."""
        self._parts.append(f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>")

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Names and what they are, such as the settings of a run. Lists are written out, not drawn."""
        items = ""
        for name, fact in facts.items():
            value = _unwrapped(fact)
            texts = map(_cell, value) if isinstance(value, (list, tuple)) else [_cell(value)]
            items += f"<div><dt>{escape(str(name))}</dt><dd>{', '.join(texts)}</dd></div>"
        self._parts.append(f'<dl class="facts">{items}</dl>')

    def code(self, text: str, title: str) -> None:
        """Text as it stands, such as a configuration, folded away under its title."""
        self._parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>")

    def table(
        self,
        rows: Sequence[Mapping[str, Any] | Sequence[Any]],
        columns: Sequence[str] | Mapping[str, str] | None = None,
        title: str = "",
    ) -> None:
        """A table that can be sorted by a click on a heading.

        Args:
            rows: dictionaries, or sequences in the order of the columns. Lists of numbers are drawn.
            columns: keys of the rows, in order, or a dictionary from keys to headings; default: all keys.
            title: stands above it.
        """
        if columns is None:
            if not all(isinstance(row, Mapping) for row in rows):
                raise ValueError("rows without names need columns")
            columns = list(dict.fromkeys(key for row in rows for key in row))
        headings = dict(columns) if isinstance(columns, Mapping) else {c: c for c in columns}
        cells = []
        for row in rows:
            if not isinstance(row, Mapping) and len(row) != len(headings):
                raise ValueError(f"a row has {len(row)} cells for {len(headings)} columns")
            chosen = [row.get(key) for key in headings] if isinstance(row, Mapping) else row
            cells.append([_unwrapped(value) for value in chosen])
        styles = [_column_format([row[i] for row in cells]) for i in range(len(headings))]
        head = "".join(
            f'<th scope="col"{" class=n" if style is not None else ""}>'
            f'<button type="button">{escape(str(name))}</button></th>'
            for name, style in zip(headings.values(), styles, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(_table_cell(v, s) for v, s in zip(row, styles, strict=True)) + "</tr>"
            for row in cells
        )
        caption = f"<figcaption>{escape(title)}</figcaption>" if title else ""
        self._parts.append(
            f'<figure class="table">{caption}<div class="scroll" tabindex="0"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>"
        )

    def curves(
        self,
        series: Mapping[str, Any],
        x: Sequence[float] | None = None,
        *,
        title: str = "",
        xlabel: str = "",
        ylabel: str = "",
        log: bool | None = False,
        reference: float | None = None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        """Curves with a legend and the values under the pointer.

        Args:
            series: by name, the numbers of a curve, or several draws of it as a list of lists: then their
                mean is drawn (on a logarithmic axis the geometric one) with their range. ``None`` is passed
                over, NaN breaks the line.
            x: where the values are; default: 1, 2, 3, ...
            title, xlabel, ylabel: what is written around it.
            log: a logarithmic axis; ``None``: if the values are positive and span two orders of magnitude.
            reference: a value to compare with, drawn as a line across.
            limits: of the vertical axis; values beyond stay at its edge.
        """
        self._parts.append(
            chart(
                series,
                x,
                title=title,
                xlabel=xlabel,
                ylabel=ylabel,
                log=log,
                reference=reference,
                limits=limits,
            )
        )

    def panels(
        self,
        panels: Mapping[str, Mapping[str, Any]],
        x: Sequence[float] | None = None,
        *,
        log: bool | None = False,
        **options: Any,
    ) -> None:
        """Several charts side by side, by title; with one legend if all have the same curves.

        The other arguments are those of ``curves``.
        """
        if log is None:
            log = any(suits_log(series) for series in panels.values())
        names = {tuple(series) for series in panels.values()}
        shared = len(names) == 1 and len(next(iter(names))) > 1
        charts = "".join(
            chart(series, x, title=title, log=log, legend=not shared, **options)
            for title, series in panels.items()
        )
        legend = curve_legend(next(iter(names))) if shared else ""
        self._parts.append(f'<div class="panels">{legend}<div class="grid">{charts}</div></div>')

    def cloud(
        self,
        points: ArrayLike | torch.Tensor,
        labels: ArrayLike | torch.Tensor | None = None,
        predictions: ArrayLike | torch.Tensor | None = None,
        classes: Sequence[str] | None = None,
        *,
        colors: ArrayLike | torch.Tensor | None = None,
        values: Mapping[str, ArrayLike] | None = None,
        title: str = "",
        max_points: int = 200_000,
        generator: torch.Generator | None = None,
    ) -> None:
        """A cloud that can be turned, moved and zoomed, coloured by labels, predictions, errors or values.

        Args:
            points: ``[N, D]`` with D = 1, 2 or 3; the third coordinate points up.
            labels, predictions: ``[N]``, classes from 0; -1 is no label. With both, errors can be shown.
            classes: names of the classes.
            colors: ``[N, 3]``, uint8 or 0..1.
            values: numbers per point by name, such as a density.
            title: stands above it.
            max_points: of a larger cloud so many are shown, chosen at random, and the page says so.
            generator: of that choice; default: the same in each report.
        """
        data = payload(points, labels, predictions, colors, classes, values, max_points, generator)
        count = f"{data['count']:,}"
        if data["count"] < data["total"]:
            count += f" of {data['total']:,} points, chosen at random"
        else:
            count += " points" if data["total"] > 1 else " point"
        name = escape(title or "cloud", quote=True)
        self._parts.append(
            f'<figure class="cloud"><figcaption>{escape(title)} <small>{count}</small></figcaption>'
            '<div class="modes" role="group" aria-label="Colour by"></div>'
            f'<div class="stage"><canvas tabindex="0" role="img" aria-label="{name}, '
            'drag to turn"></canvas><noscript>The view of the cloud needs JavaScript.</noscript></div>'
            f'<div class="legend"></div>{data_script(data)}</figure>'
        )

    def image(self, path: str | Path, title: str = "") -> None:
        """A picture (SVG, PNG, JPEG), which becomes part of the file."""
        path = Path(path)
        kind = IMAGES.get(path.suffix.lower())
        if kind is None:
            raise ValueError(f"{path}: a picture ends in {', '.join(IMAGES)}")
        text = base64.b64encode(path.read_bytes()).decode("ascii")
        caption = f"<figcaption>{escape(title)}</figcaption>" if title else ""
        name = escape(title or path.stem, quote=True)
        self._parts.append(
            f'<figure class="image">{caption}<img alt="{name}" src="data:{kind};base64,{text}"></figure>'
        )

    def html(self) -> str:
        """The page."""
        from pointvar import __version__

        made = f"pointvar {__version__}, {datetime.now():%-d %B %Y, %H:%M}"
        subtitle = f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else ""
        links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title in self._sections)
        kind = ' class="many"' if len(self._sections) > 8 else ""
        contents = f'<nav{kind} aria-label="Contents">{links}</nav>' if len(self._sections) > 1 else ""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>{escape(self.title)}</title>\n<link rel="icon" href="data:,">\n'
            f"<style>\n{_asset('style.css')}</style>\n</head>\n<body>\n"
            f'<header><div><h1>{escape(self.title)}</h1>{subtitle}<p class="made">{escape(made)}</p></div>'
            '<button type="button" id="theme" aria-label="Light or dark" title="Light or dark"></button>'
            "</header>\n"
            + contents
            + "\n<main>\n"
            + "\n".join(self._parts)
            + f"\n</main>\n<script>\n{_asset('page.js')}</script>\n<script>\n{_asset('viewer.js')}</script>\n"
            "</body>\n</html>\n"
        )

    def save(self, path: str | Path) -> Path:
        """Writes the page, and gives where it is."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")
        return path


def _asset(name: str) -> str:
    return files("pointvar.report").joinpath(name).read_text(encoding="utf-8")


def is_number(value: Any) -> bool:
    """Whether a value is a number, which True is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unwrapped(value: Any) -> Any:
    """Tensors and arrays as numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_curve(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple)) and len(value) > 2 and all(v is None or is_number(v) for v in value)
    )


def _column_format(values: Sequence[Any]) -> str | None:
    """The format of a column of numbers, with their points below each other; None: the column has text."""
    known = [v for v in values if v is not None]
    if not known or not all(is_number(v) or _is_curve(v) or isinstance(v, Quantity) for v in known):
        return None
    numbers = [abs(v) for v in known if isinstance(v, float) and math.isfinite(v) and v]
    if not numbers or max(numbers) >= 1e6:
        return ""
    decimals = min(max(3 - math.floor(math.log10(max(numbers))), 0), 4)
    return f",.{decimals}f" if min(numbers) >= 10.0**-decimals else ""


def _table_cell(value: Any, style: str | None) -> str:
    if is_number(value):
        fixed = style if isinstance(value, float) and math.isfinite(value) else None
        text = format(value, fixed).replace("-", MINUS) if fixed else plain(value)
        key = f' data-key="{value!r}"'
    else:
        text, key = _cell(value), ""
        if isinstance(value, Quantity):
            key = f' data-key="{value.number}"'
        elif _is_curve(value):
            key = f' data-key="{next((v for v in reversed(value) if v is not None), "")}"'
    name = (
        " class=n"
        if style is not None
        else " class=long"
        if isinstance(value, str) and len(value) > 40
        else ""
    )
    return f"<td{name}{key}>{text}</td>"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or is_number(value):
        return plain(value)
    if _is_curve(value):
        return sparkline(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(str(k))} {_cell(v)}" for k, v in value.items())
    return escape(str(value))
