"""The report of a table, as Markdown and as a page of HTML: means over seeds, the paper's numbers, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pointvar.experiments.claims import Group, Summary, as_summaries, summarise
from pointvar.experiments.columns import COLUMNS
from pointvar.experiments.grid import Cell, Table
from pointvar.experiments.store import Store
from pointvar.progress import span
from pointvar.report import Report as Page
from pointvar.train import Config

MARK = "-"
"""Where there is no number yet."""


@dataclass(frozen=True)
class Block:
    """A heading and a grid of texts, the first row and the first column of which are names."""

    title: str
    lines: list[list[str]]
    run: bool
    """Whether any of it has been run."""


@dataclass(frozen=True)
class Report:
    """All that is said about a table."""

    title: str
    blocks: list[Block]
    caption: list[str]

    def markdown(self) -> str:
        parts = [f"# {self.title}"]
        for block in self.blocks:
            header, *rows = [[_plain(text) for text in line] for line in block.lines]
            rule = ["---"] + ["---:"] * (len(header) - 1)
            table = "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])
            parts += [f"## {_plain(block.title)}"] * bool(block.title) + [table]
        parts.append("\n".join(f"- {_plain(line)}" for line in self.caption))
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        page = Page(self.title)
        page.markdown(self.markdown())
        return page.html()


def _plain(text: str) -> str:
    """Text that does not end a column of a Markdown table, nor begin markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def write_report(table: Table, store: Store) -> None:
    """Writes NAME.md and NAME.html from the results that there are."""
    records, changed = store.done(table)
    report = make_report(table, records, changed)
    for suffix, text in ((".md", report.markdown()), (".html", report.html())):
        store.path.with_suffix(suffix).write_text(text, "utf8")
    print(f"{store.path.with_suffix('')}.md, .html: {len(records)} of {len(table.cells())} cells")


def make_report(table: Table, records: Sequence[Mapping[str, Any]], changed: int) -> Report:
    """From results to a report."""
    measures = {s.name: table.measure or s.metric for s in table.scenarios}
    summaries = summarise(records, measures)
    blocks = _blocks(table, summaries)
    caption = [*_claims(table, summaries), *_legend(table), *table.notes]
    waiting = [block.title for block in blocks if not block.run]
    if 0 < len(waiting) < len(blocks):
        caption.append(f"Not run yet: {'; '.join(waiting)}.")
        blocks = [block for block in blocks if block.run]
    caption += _circumstances(table, records, changed)
    return Report(table.title, blocks, caption)


def _blocks(table: Table, summaries: Sequence[Summary]) -> list[Block]:
    cells = [{k: v for k, v in cell.items() if k != "seed"} for cell in table.cells()]
    apart = [k for k in cells[0] if k not in (table.rows, table.columns)]
    sections: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        sections.setdefault(tuple(cell[k] for k in apart), []).append(cell)
    blocks = []
    for values, inside in sections.items():
        title = ", ".join(
            str(v) if k == "data" else f"{k} {v}" for k, v in zip(apart, values, strict=True) if v != ""
        )
        columns = list(dict.fromkeys(cell[table.columns] for cell in inside))
        lines = [[table.rows, *map(str, columns)]]
        for row in dict.fromkeys(cell[table.rows] for cell in inside):
            place = {**dict(zip(apart, values, strict=True)), table.rows: row}
            lines.append(
                [str(row), *(_entry(table, summaries, {**place, table.columns: c}) for c in columns)]
            )
        here = dict(zip(apart, values, strict=True))
        found = [s for s in summaries if here.items() <= s.group.items()]
        if table.rows == "method" and len(lines) > 2:
            lines.append(["mean", *(_mean(table, found, c, len(lines) - 1) for c in columns)])
        blocks.append(Block(title, lines, bool(found)))
    return blocks


def _entry(table: Table, summaries: Sequence[Summary], group: Group) -> str:
    found = next((s for s in summaries if s.group == group), None)
    paper = next((value for part, value in table.paper if part.items() <= group.items()), None)
    return (MARK if found is None else _text(table, found)) + ("" if paper is None else f" [{paper:g}]")


def _mean(table: Table, summaries: Sequence[Summary], column: Any, rows: int) -> str:
    """Over the methods, where all have been run."""
    means = [s.mean for s in summaries if s.group[table.columns] == column]
    return _number(table, sum(means) / rows) if len(means) == rows else MARK


def _number(table: Table, value: float) -> str:
    return f"{100 * value:.1f}" if table.measure is None else f"{value:.2f}"


def _text(table: Table, summary: Summary) -> str:
    text = _number(table, summary.mean)
    if summary.deviation is not None:
        text += f" ± {_number(table, summary.deviation)}"
    count, planned = len(summary.values), sum(summary.group.items() <= cell.items() for cell in table.cells())
    if count < planned:
        text += f" ({count}/{planned})"
    return text + f" †{summary.diverged}" * bool(summary.diverged)


def _claims(table: Table, summaries: Sequence[Summary]) -> list[str]:
    published = as_summaries(table.paper)
    lines = []
    for claim in table.claims:
        paper = claim.check(published)
        lines.append(
            f"“{claim.text}”: {claim.check(summaries)}" + f"; in the paper: {paper}" * (paper != "not tested")
        )
    return lines


def _legend(table: Table) -> list[str]:
    unit = "seconds" if table.measure else "per cent"
    several = f"mean ± standard deviation over {table.seeds} seeds; without ±: one seed; "
    several += "(n/m): so far n of m seeds"
    seeds = "one seed" if table.seeds == 1 else several
    lines = [f"Numbers are {unit}, after the last epoch: {seeds}; {MARK}: not run."]
    if table.paper:
        lines.append(f"In brackets: the paper's numbers, measured on {table.paper_data}.")
    if table.measure is None:
        lines.append("†n: n runs diverged, and count as always the most frequent class.")
    for name in dict.fromkeys(cell.get("column") for cell in table.cells()):
        if name in COLUMNS:
            lines.append(f"{name}: {', '.join(f'{k}={v}' for k, v in _flat(COLUMNS[name]))}.")
    return lines


def _flat(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(f"{part}.{key}", value) for part, section in settings.items() for key, value in section.items()]


def _circumstances(table: Table, records: Sequence[Mapping[str, Any]], changed: int) -> list[str]:
    lines = []
    for scenario in table.scenarios:
        mine = [record for record in records if record["cell"]["data"] == scenario.name]
        cell = next(cell for cell in table.cells() if cell["data"] == scenario.name)
        preset = "paper" if scenario.resumable else "laptop"  # not as asked: some tables are always small
        lines.append(f"{scenario.text}; preset {preset}: {describe(table.config(cell))}.")
        lasting = {
            c.get("batch"): table.config(c).epochs for c in table.cells() if c["data"] == scenario.name
        }
        if len(set(lasting.values())) > 1:
            counts = ", ".join(f"{batch}: {epochs}" for batch, epochs in lasting.items())
            lines.append(f"{scenario.name}: epochs by the number of clouds per batch: {counts}.")
        count = mine[0]["result"].get("count") if mine else None
        if count and scenario.metric == "accuracy" and table.measure is None:
            error = 100 * (0.8 * 0.2 / count) ** 0.5
            lines.append(
                f"{scenario.name}: {count:,} test clouds, so an accuracy of 80 % is known to {error:.1f} "
                "(one standard error), besides what seeds change."
            )
    if changed:
        lines.append(f"{changed} cells that were made by another recipe are left out.")
    if records:
        lines.append(_machine(records))
    lines.append(f"Made, or gone on with, by: pointvar reproduce {table.command or table.name}")
    return lines


def describe(config: Config) -> str:
    """The recipe that all cells share, in a line."""
    model, optimizer = config.model, config.optimizer
    parts = [
        f"network {model.network}",
        f"features {'/'.join(map(str, model.channels or ()))}",
        f"radii {'/'.join(f'{r:g}' for r in model.radii or ())}",
        f"at most {model.max_neighbors} neighbours",
        f"{config.epochs} epochs",
        f"SGD with momentum {optimizer.momentum:g}, rate {optimizer.rate:g} unless a column has its own",
        f"times {optimizer.gamma:g} after {', '.join(map(str, optimizer.milestones)) or 'no'} epochs",
        f"weight decay {optimizer.weight_decay:g}",
        f"initialised on {config.init.batches} batches",
        f"{config.votes} vote{'s' * (config.votes > 1)}",
    ]
    return ", ".join(parts)


def _machine(records: Sequence[Mapping[str, Any]]) -> str:
    machines = {
        f"{r['hardware']['cpu']}, {r['hardware']['cores']} cores, {r['hardware']['threads']} used"
        for r in records
    }
    versions = {f"pointvar {r['versions']['pointvar']}, torch {r['versions']['torch']}" for r in records}
    dates = sorted(r["date"][:10] for r in records)
    seconds = sum(r["result"]["seconds"] for r in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{len(records)} cells in {span(seconds)} of training, {seconds / len(records):.0f} s each, on "
        f"{'; '.join(sorted(machines))}; {'; '.join(sorted(versions))}; {when}."
    )
