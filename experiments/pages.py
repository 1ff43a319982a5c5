"""Puts stored numbers into the front page and the pages of results: ``python -m experiments.pages``.

A page has them between ``<!-- NAME -->`` and ``<!-- /NAME -->``; a test compares them with what is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import fill

from experiments import TABLES
from experiments.claims import summarise, where
from experiments.grid import key
from experiments.store import Store
from experiments.table_parts import CLAIM
from pointvar.methods import METHODS
from pointvar.models import read_notes, trained

ROOT = Path(__file__).parents[1]
COLUMNS = {"batch norm": "BN", "group norm": "GN", "the paper's direct": "direct", "norm-free": "norm-free"}
"""Headings of the front page -> columns of table-norm-free."""
ROWS: dict[str, dict[str, Any]] = {
    "AHN3 aerial scan, 1 cloud per batch: mean IoU": {"data": "AHN3", "batch": 1},
    "ModelNet10 shapes, 2 clouds per batch: accuracy": {"data": "ModelNet10", "batch": 2},
    "ModelNet10 shapes, 16 clouds per batch: accuracy": {"data": "ModelNet10", "batch": 16},
}
MEASURES = {"AHN3": "mean_iou", "ModelNet10": "accuracy"}
VARIANCE = {
    "direct weights keep the variance through 25 layers, within a factor of 2": ("direct", True, "holds"),
    "standard weights do not keep the variance through 25 layers": ("standard", False, "holds"),
    "weights from a table of other data keep the variance through 25 layers": ("transfer", True, ""),
}
"""Claims about fig-variance -> whose weights, whether they keep the variance, what the paper says."""


LONG = ("table-long", "table-size", "table-segment-long")
"""Tables of long trainings; their claims are those of short ones, where they have the same words."""


class Verdict(NamedTuple):
    """What became of a claim."""

    claim: str
    here: str
    paper: str
    """Empty: the paper does not claim it."""
    link: str


def main() -> None:
    """Fills all pages."""
    for page, name, text in parts(ROOT / "results", ROOT / "benchmarks" / "results"):
        fill(ROOT / page, name, text)


def parts(results: Path, benchmarks: Path) -> Iterator[tuple[str, str, str]]:
    """Page, name and text of everything that is filled in."""
    table, text = accuracies(Store(results / "table-norm-free.jsonl")), conditions(results)
    yield "README.md", "results", f"{table}\n\n{text}"
    yield "README.md", "speed", "\n".join(speed(benchmarks))
    yield "docs/any-network.md", "any-network", sections(results / "table-any-network.md")
    tables = {name: list(table_verdicts(results, name)) for name in TABLES}
    long = [v for name in LONG for v in tables.pop(name)]
    found = [*variance_verdicts(results), *(v for verdicts in tables.values() for v in verdicts)]
    paper = [compared(v, [other for other in long if other.claim == v.claim]) for v in found if v.paper]
    known = {v.claim for v in found if v.paper}
    ours = [[v.claim, v.here, v.link] for v in [*found, *long] if not v.paper and v.claim not in known]
    head = ["claim", "verdict", "short training", "long training", "in the paper", "tables"]
    yield "docs/results.md", "paper", _table(head, paper)
    yield "docs/results.md", "beyond", _table(["claim", "here", "table"], ours)
    figures = results / "figures"
    yield "docs/initialisation.md", "transfer", transferred(figures)
    yield "docs/initialisation.md", "coherence", coherences(figures)
    yield "docs/reliability.md", "threads", threads(benchmarks)
    yield "docs/networks.md", "trained", networks()
    yield "docs/tables.md", "tables", "\n\n".join(_included(path) for path in sorted(results.glob("*-*.md")))


def networks() -> str:
    """The trained networks that come with the library, and what they reach on test data."""
    rows = []
    for name in trained():
        notes = read_notes(name)
        about, test, kind = notes["about"], notes["test"], notes["task"]
        what, measure = {
            "classification": ("accuracy {:.1f} % of {:,} shapes", "accuracy"),
            "segmentation": ("mean IoU {:.1f} % of {:,} points", "mean_iou"),
        }[kind]
        reached = what.format(100 * test[measure], test["count"])
        rows.append([f"`{name}`", about["title"], about["input"], about["data"], reached, about["terms"]])
    return _table(["name", "what it does", "input", "trained on", "on test data", "may be used for"], rows)


def compared(short: Verdict, long: Sequence[Verdict]) -> list[str]:
    """A claim of the paper: what becomes of it in all, in short and in long trainings, and in the paper."""
    words = [v.here.partition(" (")[0] for v in long if v.here != "not run"]
    if not words:
        verdict = short.here.partition(" (")[0]
        verdict += ", long training not yet run" * bool(long)
    elif set(words) != {"holds"}:
        verdict = "does not hold"
    else:
        verdict = "holds only with long training" if short.here.startswith("does not") else "holds"
    links = ", ".join(v.link for v in (short, *long))
    at_length = "; ".join(v.here for v in long).replace("not run", "not yet run") or "–"
    return [short.claim, verdict, short.here, at_length, short.paper, links]


def accuracies(store: Store) -> str:
    """The table of the front page: means over the methods of their means over seeds, in per cent."""
    records = {key(record["cell"]): record for record in store.read()}.values()
    measured = [record for record in records if record["cell"]["data"] in MEASURES]
    numbers = summarise(measured, ["data", "batch", "method", "column"], MEASURES)
    lines = []
    for name, part in ROWS.items():
        cells = (where(numbers, {**part, "column": column}) for column in COLUMNS.values())
        means = [100 * cell["mean"].mean() if set(cell["method"]) == set(METHODS) else nan for cell in cells]
        best = max((mean for mean in means if not isnan(mean)), default=nan)
        lines.append([name, *(_percent(mean, mean == best) for mean in means)])
    return _table(["mean over ten methods, %", *COLUMNS], lines, numeric=True)


def conditions(results: Path) -> str:
    """What the table of the front page was made under, and what is left of it when all have one optimiser."""
    verdicts = {verdict.claim: verdict.here for verdict in table_verdicts(results, "table-parts")}
    batch, group = (
        re.findall(r"\d+ of \d+", verdicts[CLAIM.format(column=f"{norm}, AdamW")]) for norm in ("BN", "GN")
    )
    return (
        "These are short trainings on two CPU cores, each column at its own rate. All but norm-free use SGD, "
        "as published. With AdamW for all, norm-free is at least as good as batch norm in "
        f"{batch[0]} comparisons, and as group norm in {group[0]}. [All results](docs/results.md) say which "
        "claims of the paper hold here."
    )


def _percent(value: float, best: bool) -> str:
    text = "–" if isnan(value) else f"{value:.1f}"
    return f"**{text}**" if best else text


def sections(path: Path) -> str:
    """The tables of a report, each under its title in bold."""
    found = re.findall(r"^## (.*)\n\n((?:\|.*\n)+)", path.read_text("utf8"), re.MULTILINE)
    return "\n".join(f"**{title}**\n\n{table}" for title, table in found).rstrip()


def speed(benchmarks: Path) -> Iterator[str]:
    """What the same work takes here and elsewhere."""
    geometry, convolution, training = (
        json.loads((benchmarks / f"{name}.json").read_text("utf8"))
        for name in ("geometry", "convolution", "training")
    )
    query = {"operator": "ball query", "cloud": "surface", "points": 100_000, "peer": "vesin"}
    layer = {"points": 16_384, "layer": "64 → 64", "pass": "forward+backward", "peer": "KPConv style"}
    found = _row(geometry["rows"], query)
    yield _compared("Ball query of 100,000 points", found["ours"], "vesin", found["theirs"])
    found = _row(convolution["peers-64"]["tables"]["peers"], layer)
    what = "Convolution of 64 to 64 channels on 16,384 points, forward and backward"
    yield _compared(what, found["ours"], "KPConv's public arithmetic in torch", found["theirs"])
    found = _row(training["rows"], {"case": "pyg", "threads": 2})
    what = "Training step of the classifier on 4 clouds of 1,024 points"
    yield _compared(what, found["step"], "the same in PyTorch Geometric", found["pyg"])


def transferred(figures: Path) -> str:
    """Second moments with transferred weights, smallest and largest of all layers."""
    methods = json.loads((figures / "fig-variance.json").read_text("utf8"))["summary"]
    rows = [[name, " .. ".join(weights["transfer"]["mean"])] for name, weights in methods.items()]
    return _table(["method", "second moment with transferred weights"], rows)


def coherences(figures: Path) -> str:
    """The coherence of neighbours, and what becomes of weights in closed form."""
    sources = {"ModelNet40": "modelnet40", "built-in shapes": "synthetic-shapes"}
    found = [
        json.loads((figures / f"fig-closed-form-{name}.json").read_text("utf8"))["summary"]
        for name in sources.values()
    ]
    head = [text for name in sources for text in (f"rho, {name}", "input", "layer 25")]
    rows = [[name, *(text for by in found for text in _coherence(by[name]))] for name in found[0]]
    return _table(["method", *head], rows)


def _coherence(measured: Mapping[str, float]) -> list[str]:
    least, mean, largest = (measured[f"coherence, {name}"] for name in ("least", "mean", "largest"))
    end = measured["closed form, last layer"]
    return [
        f"{least:.2f} .. {largest:.2f}, mean {mean:.2f}",
        f"{measured['coherence of the input']:.2f}",
        f"{end:.2g}",
    ]


def threads(benchmarks: Path) -> str:
    """Milliseconds per step of trainings that share cores."""
    rows = json.loads((benchmarks / "threads.json").read_text("utf8"))["rows"]
    times = {(row["case"], row["waiting"]): row["milliseconds"] for row in rows}
    cases = dict.fromkeys(case for case, _ in times)
    lines = [[case, *(f"{times[case, name]:,.0f}" for name in ("pointvar", "libgomp"))] for case in cases]
    return _table(["trainings", "pointvar", "libgomp's default"], lines, numeric=True)


def _row(rows: Sequence[Mapping[str, Any]], part: Mapping[str, Any]) -> Mapping[str, Any]:
    (row,) = [row for row in rows if all(row.get(name) == value for name, value in part.items())]
    return row


def _compared(what: str, ours: float, peer: str, theirs: float) -> str:
    times = f"{theirs / ours:.0f}" if theirs >= 10 * ours else f"{theirs / ours:.1f}"
    return f"- {what}: {ours:.0f} ms; {peer}: {theirs:.0f} ms ({times} times as long)."


def variance_verdicts(results: Path) -> Iterator[Verdict]:
    """Whether the mean variance of every layer is within a factor of 2 of the target, 1."""
    methods = json.loads((results / "figures" / "fig-variance.json").read_text("utf8"))["summary"].values()
    for claim, (weights, kept, paper) in VARIANCE.items():
        ranges = [tuple(map(float, method[weights]["mean"])) for method in methods]
        hits = sum((low >= 0.5 and high <= 2) == kept for low, high in ranges)
        verdict = f"{'holds' if hits == len(ranges) else 'does not hold'} ({hits} of {len(ranges)})"
        yield Verdict(claim, verdict, paper, "[fig-variance](../results/figures/fig-variance.png)")


def table_verdicts(results: Path, name: str) -> Iterator[Verdict]:
    """The claims under a table, as its report states them."""
    text = (results / f"{name}.md").read_text("utf8")
    for line in re.finditer(r"^- “(.*)”: (.*?)(?:; in the paper: (.*))?$", text, re.MULTILINE):
        claim, here, paper = line.groups("")
        here = "not run" if here == "not tested" else here
        yield Verdict(claim, here, paper, f"[{name}](tables.md#{name})")


def _included(path: Path) -> str:
    """A table as a section of a page, which has its place as text where it is not built."""
    include = f"```{{include}} ../results/{path.name}\n:heading-offset: 2\n```"
    return f"## {path.stem}\nFrom `results/{path.name}`.\n\n{include}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: bool = False) -> str:
    rule = ["---", *["---:" if numeric else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])


if __name__ == "__main__":
    main()
