"""What an initialisation did, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class LayerInit:
    """How one layer was set: Var[w] = target / Z."""

    name: str
    kind: str
    variance: float
    """Of the weights."""
    target: float | None = None
    """Second moment that the output is to have; ``None`` where the rule has no such thing."""
    second_moment: float | None = None
    """Z, of what the weights multiply; ``None`` where it was not measured."""
    depth: int | None = None
    """Which row of a table was used, from 0."""
    calls: int = 1
    """How often a forward pass reaches the layer; it is set when it is reached first."""
    note: str = ""
    center: float = 0.0
    """Strength with which the draw was centred."""
    share: float | None = None
    """Variance of the output around its mean over all points, as a share of its second moment, in
    expectation; ``None`` where it was not measured."""


@dataclass
class InitReport:
    """What an initialisation did; ``print`` shows it as a table."""

    method: str
    layers: list[LayerInit] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    """Modules with parameters that were not set, and why."""
    batches: int = 0
    clouds: int | None = None
    points: int | None = None
    passes: int = 0
    """Forward passes: one for each batch."""
    seconds: float = 0.0

    def __getitem__(self, name: str) -> LayerInit:
        """The entry of a layer, by name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"no layer {name!r} was set; those that were: {[x.name for x in self.layers]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("layer", "type", "Z", "Var[w]", "target", "")]
        for x in self.layers:
            notes = [x.note] if x.note else []
            if x.depth is not None:
                notes.insert(0, f"depth {x.depth}")
            if x.center:
                notes.append(f"centred {x.center:.2g}")
            if x.calls > 1:
                notes.append(f"called {x.calls} times, set at the first")
            z, target = _number(x.second_moment), _number(x.target)
            rows.append((x.name, x.kind, z, f"{x.variance:.4g}", target, "; ".join(notes)))
        lines = [f"{self.method}: {len(self.layers)} layers set{self._data()}", *table(rows)]
        if self.left_alone:
            lines.append("left alone:")
            lines += table([(name, why) for name, why in self.left_alone.items()])
        return "\n".join(lines)

    def _data(self) -> str:
        if not self.batches:
            return ""
        parts = [_count(self.batches, "batch", "batches")]
        if self.clouds is not None:
            parts.append(_count(self.clouds, "cloud"))
        if self.points is not None:
            parts.append(_count(self.points, "point"))
        parts.append(_count(self.passes, "pass", "passes"))
        return f" from {', '.join(parts)} in {self.seconds:.2f} s"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of text in columns, the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [i > 0 and all(_is_number(row[i]) for row in rows[1:]) for i in range(len(widths))]
    return [
        "  "
        + "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("%").replace(",", "") or "0")
    except ValueError:
        return False
    return True
