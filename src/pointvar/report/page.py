"""`Report`: one HTML file with text, tables, curves, pictures and clouds that needs nothing but a browser."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import ArrayLike

from pointvar.report.charts import chart, suits_log
from pointvar.report.clouds import MOST, cloud, errors_from_above, versions
from pointvar.report.markdown import render
from pointvar.report.tables import table, written

IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
TEMPLATES = Environment(
    loader=PackageLoader("pointvar.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


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
        self._parts: list[tuple[str, dict[str, Any]]] = []

    def _add(self, macro: str, **values: Any) -> None:
        self._parts.append((macro, values))

    def section(self, title: str) -> None:
        """Begins a section, which the contents of the page list."""
        number = sum(macro == "section" for macro, _ in self._parts) + 1
        self._add("section", title=title, anchor=f"s{number}")

    def heading(self, title: str) -> None:
        """A heading within a section."""
        self._add("heading", title=title)

    def text(self, text: str, kind: str = "") -> None:
        """Paragraphs, with empty lines between them; ``kind`` "good" or "bad" makes a notice of them."""
        if kind not in ("", "good", "bad"):
            raise ValueError(f"kind must be '', 'good' or 'bad', got {kind!r}")
        self._add("text", paragraphs=[p for p in re.split(r"\n\s*\n", text.strip()) if p], kind=kind)

    def items(self, items: Sequence[str]) -> None:
        """A list."""
        self._add("items", items=items)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Names and what they are, such as the settings of a run. Lists are written out, not drawn."""
        self._add("facts", facts={name: written(value) for name, value in facts.items()})

    def code(self, text: str, title: str) -> None:
        """Text as it stands, such as a configuration, folded away under its title."""
        self._add("code", text=text, title=title)

    def markdown(self, text: str) -> None:
        """A text in Markdown; a heading that repeats the title of the page is left out."""
        self._add("html", html=Markup(render(text, self.title)))

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
        self._add("table", title=title, **table(rows, columns))

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
        labels = {"title": title, "xlabel": xlabel, "ylabel": ylabel}
        self._add("chart", chart=chart(series, x, log=log, reference=reference, limits=limits, **labels))

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
        charts = [chart(series, x, title=title, log=log, **options) for title, series in panels.items()]
        self._add("panels", charts=charts, shared=len({tuple(series) for series in panels.values()}) == 1)

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
        max_points: int = MOST,
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
        data = cloud(points, labels, predictions, classes, colors, values or {}, max_points, generator)
        self._add("cloud", title=title, data=data)

    def map(
        self,
        points: ArrayLike | torch.Tensor,
        labels: ArrayLike | torch.Tensor,
        predictions: ArrayLike | torch.Tensor,
        classes: Sequence[str],
        *,
        title: str = "",
    ) -> None:
        """Where predictions are wrong, seen from above. Wrong points lie over all others.

        Args:
            points: ``[N, 2]``, or ``[N, 3]``, whose third coordinate points up.
            labels, predictions, classes: as for ``cloud``.
            title: stands above it.
        """
        self._add("cloud", title=title, data=errors_from_above(points, labels, predictions, classes))

    def matrix(self, counts: Mapping[str, Mapping[str, int]], title: str = "") -> None:
        """A confusion matrix: a row for each class of the labels, and how they were predicted, in %.

        Args:
            counts: by the class of the label, how often which class was predicted; what is left out is 0.
            title: stands above it.
        """
        totals = {label: sum(row.values()) for label, row in counts.items()}
        rows = {
            label: [row.get(name, 0) / totals[label] if totals[label] else 0.0 for name in counts]
            for label, row in counts.items()
        }
        self._add("matrix", title=title, rows=rows, totals=totals, counts=counts)

    def versions(
        self,
        points: ArrayLike | torch.Tensor,
        labels: ArrayLike | torch.Tensor,
        predictions: Mapping[str, ArrayLike | torch.Tensor],
        classes: Sequence[str],
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """One cloud several times side by side: its labels, and predictions by name. All turn together.

        Args:
            points, labels, classes: as for ``cloud``.
            predictions: by name, ``[N]``; -1 is no prediction.
            notes: by the same names, or "truth", what stands below, such as a score: the first line is large.
        """
        lines = {name: note.split("\n") for name, note in (notes or {}).items()}
        self._add("versions", notes=lines, **versions(points, labels, predictions, classes))

    def image(self, path: str | Path, title: str = "") -> None:
        """A picture (SVG, PNG, JPEG), which becomes part of the file."""
        path = Path(path)
        kind = IMAGES.get(path.suffix.lower())
        if kind is None:
            raise ValueError(f"{path}: a picture ends in {', '.join(IMAGES)}")
        source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
        self._add("image", title=title, name=title or path.stem, source=source)

    def html(self) -> str:
        """The page."""
        from pointvar import __version__

        return TEMPLATES.get_template("page.html").render(
            title=self.title,
            subtitle=self.subtitle,
            made=f"pointvar {__version__}, {datetime.now():%-d %B %Y, %H:%M}",
            sections=[values for macro, values in self._parts if macro == "section"],
            parts=self._parts,
            style=_asset("style.css"),
            scripts=[_asset(name) for name in ("page.js", "charts.js", "viewer.js")],
        )

    def save(self, path: str | Path) -> Path:
        """Writes the page, and gives where it is."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")
        return path


def _asset(name: str) -> Markup:
    return Markup(files("pointvar.report").joinpath("assets", name).read_text(encoding="utf-8"))
