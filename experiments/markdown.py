"""The report of a grid, as Markdown and as a page of HTML: means over seeds, the paper's numbers, claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pandas as pd

from experiments.claims import published, summarise
from experiments.grid import Grid
from experiments.store import Store
from pointvar.atomic import write_atomically
from pointvar.report import gather
from pointvar.train import Config, OptimizerConfig

MARK = "-"
"""Where there is no number yet."""
Records = Sequence[Mapping[str, Any]]


def write_report(grid: Grid, store: Store) -> Records:
    """Writes NAME.md and NAME.html from the results that there are, and gives these."""
    records, changed = grid.done(store)
    path = store.path.with_suffix(".md")
    write_atomically(path, markdown(grid, records, changed))
    page = gather([path], grid.title)
    for title, epochs, panels in curves(grid, records):
        page.section(f"By epoch: {title}")
        page.panels(panels, epochs, xlabel="epoch")
    page.save(path.with_suffix(".html"))
    print(f"{store.path.with_suffix('')}.md, .html: {len(records)} of {len(grid.cells())} cells")
    return records


def markdown(grid: Grid, records: Records, changed: int = 0) -> str:
    """From results to a page."""
    axes = [name for name in grid.cells()[0] if name != "seed"]
    numbers = summarise(records, axes, {s.name: grid.measure or s.metric for s in grid.scenarios})
    sections = dict(_sections(grid, axes, numbers))
    waiting = [title for title, table in sections.items() if not table.attrs["run"]]
    caption = [*_claims(grid, numbers), *_legend(grid), *grid.notes]
    if 0 < len(waiting) < len(sections):
        caption.append(f"Not run yet: {'; '.join(waiting)}.")
        sections = {title: table for title, table in sections.items() if title not in waiting}
    caption += _circumstances(grid, records, changed)
    parts = [f"# {grid.title}"]
    for title, table in sections.items():
        lines = [[grid.rows, *table.columns], ["---"] + ["---:"] * table.shape[1]]
        lines += [[name, *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
        parts += [f"## {_plain(title)}"] * bool(title)
        parts.append(_rows(lines))
    parts += _by_epoch(grid, records)
    parts.append("\n".join(f"- {_plain(line)}" for line in caption))
    return "\n\n".join(parts) + "\n"


Panels = dict[str, dict[str, list[list[float | None]]]]
"""By row and column of a table, a curve for each seed."""


def curves(grid: Grid, records: Records) -> Iterator[tuple[str, list[int], Panels]]:
    """What a table shows, after each epoch that was evaluated: title, epochs, and a panel per row."""
    apart = [name for name in grid.cells()[0] if name not in (grid.rows, grid.columns, "seed")]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(_title({name: record["cell"][name] for name in apart}), []).append(record)
    for title, group in groups.items():
        metric = grid.scenario(group[0]["cell"]).metric
        histories = [record["result"].get("history") or [] for record in group]
        found = [{row["epoch"]: row[metric] for row in rows if metric in row} for rows in histories]
        epochs = sorted(set().union(*found))
        panels: Panels = {}
        for cell, values in zip((record["cell"] for record in group), found, strict=True):
            panel = panels.setdefault(str(cell[grid.rows]), {})
            panel.setdefault(str(cell[grid.columns]), []).append([values.get(epoch) for epoch in epochs])
        if len(epochs) > 2:
            yield title, epochs, panels


def _by_epoch(grid: Grid, records: Records) -> Iterator[str]:
    """Tables of some epochs of trainings that are long enough for it to matter."""
    long = [record for record in records if grid.scenario(record["cell"]).preset == "long"]
    for title, epochs, panels in curves(grid, long):
        chosen = sorted({(len(epochs) - 1) * fifth // 5 for fifth in range(6)})
        lines = [[grid.rows, grid.columns, *(f"epoch {epochs[place]}" for place in chosen)]]
        lines.append(["---", "---"] + ["---:"] * len(chosen))
        for row, panel in panels.items():
            for column, draws in panel.items():
                means = pd.DataFrame(draws, dtype=float)[chosen].mean()
                lines.append([row, column, *(_number(grid, mean) for mean in means)])
        yield f"## By epoch: {_plain(title)}"
        yield _rows(lines)


def _title(part: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if name == "data" else f"{name} {value}" for name, value in part.items())


def _rows(lines: Sequence[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(_plain(text) for text in line)} |" for line in lines)


def _plain(text: Any) -> str:
    """Text that does not end a column of a Markdown table, nor begin markup."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _sections(grid: Grid, axes: list[str], numbers: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Tables of texts by title, one for each combination of what is neither in rows nor in columns."""
    cells = pd.DataFrame(grid.cells()).astype(object).groupby(axes, sort=False).size().rename("planned")
    apart = [name for name in axes if name not in (grid.rows, grid.columns)]
    for values, part in cells.reset_index().groupby(apart, sort=False):
        here = dict(zip(apart, values, strict=True))
        places = [part[grid.rows].unique(), part[grid.columns].unique()]
        every = pd.MultiIndex.from_product(places, names=[grid.rows, grid.columns]).to_frame(index=False)
        found = every.assign(**here).astype(object).merge(part, "left", on=axes)
        found = found.merge(numbers, "left", on=axes)
        paper = published(grid.name).drop(columns="data").rename(columns={"mean": "paper"})
        if len(paper):
            on = [name for name in paper if name != "paper"]
            found = found.merge(paper.astype(dict.fromkeys(on, object)), "left", on=on)
        found["text"] = [_text(grid, row) for row in found.to_dict("records")]
        table = found.pivot(index=grid.rows, columns=grid.columns, values="text").loc[places[0], places[1]]
        if grid.rows == "method" and len(table) > 1:
            means = found.groupby(grid.columns)["mean"].agg(lambda values: sum(values) / len(values))
            table.loc["mean"] = [_number(grid, value) for value in means[places[1]]]
        table.attrs["run"] = bool(found["mean"].notna().any())
        yield _title(here), table


def _text(grid: Grid, row: Mapping[str, Any]) -> str:
    text = _number(grid, row["mean"])
    if not pd.isna(row["mean"]):
        text += f" ± {_number(grid, row['std'])}" * (row["count"] > 1)
        text += f" ({row['count']:.0f}/{row['planned']:.0f})" * (row["count"] < row["planned"])
        text += f" †{row['diverged']:.0f}" * (row["diverged"] > 0)
    paper = row.get("paper", float("nan"))
    return text if pd.isna(paper) else f"{text} [{100 * paper:g}]"


def _number(grid: Grid, value: float) -> str:
    if pd.isna(value):
        return MARK
    return f"{100 * value:.1f}" if grid.measure is None else f"{value:.2f}"


def _claims(grid: Grid, numbers: pd.DataFrame) -> Iterator[str]:
    for text, claim in grid.claims.items():
        paper = claim.check(published(grid.name))
        ours = f"“{text}”: {claim.check(numbers)}"
        yield ours + f"; in the paper: {paper}" * (paper != "not tested")


def _legend(grid: Grid) -> Iterator[str]:
    unit = "seconds" if grid.measure else "per cent"
    several = f"mean ± standard deviation over {grid.seeds} seeds; without ±: one seed; "
    several += "(n/m): so far n of m seeds"
    yield (
        f"Numbers are {unit}, after the last epoch: {'one seed' if grid.seeds == 1 else several}; "
        f"{MARK}: not run."
    )
    for data in published(grid.name)["data"].unique():
        yield f"In brackets: the paper's numbers, measured on {data}."
    if grid.measure is None:
        yield "†n: n runs diverged, and count as always the most frequent class."
    for name in dict.fromkeys(cell["column"] for cell in grid.cells() if "column" in cell):
        yield f"{name}: {', '.join(f'{key}={value}' for key, value in grid.by_column[name].items())}."


def _circumstances(grid: Grid, records: Records, changed: int) -> Iterator[str]:
    for scenario in grid.scenarios:
        cells = [cell for cell in grid.cells() if cell["data"] == scenario.name]
        own_optimizer = {c for c, changed in grid.by_column.items() if "optimizer.name" in changed}
        plain = next((cell for cell in cells if cell.get("column") not in own_optimizer), cells[0])
        config = grid.config(plain)
        own = "network" in plain and "method" not in plain  # those of methods are ours
        yield f"{scenario.text}; preset {scenario.preset}: {describe(config, own)}."
        lasting = {cell.get("batch"): grid.settings(cell).get("epochs", config.epochs) for cell in cells}
        if len(set(lasting.values())) > 1:
            counts = ", ".join(f"{batch}: {epochs}" for batch, epochs in lasting.items())
            yield f"{scenario.name}: epochs by the number of clouds per batch: {counts}."
        count = next((r["result"].get("count") for r in records if r["cell"]["data"] == scenario.name), None)
        if count and scenario.metric == "accuracy" and grid.measure is None:
            error = 100 * (0.8 * 0.2 / count) ** 0.5
            yield (
                f"{scenario.name}: {count:,} test clouds, so an accuracy of 80 % is known to {error:.1f} "
                "(one standard error), besides what seeds change."
            )
    if changed:
        yield f"{changed} cells that were made by another recipe are left out."
    if records:
        yield _machine(pd.json_normalize([{**r, "result": r["result"]["seconds"]} for r in records]))
    yield f"Made, or gone on with, by: pointvar reproduce {grid.command or grid.name}"


def describe(config: Config, own: bool = False) -> str:
    """The recipe that all cells share, in a line; without the network, where a table has its own."""
    model, optimizer = config.model, config.optimizer
    network = [
        f"network {model.network}",
        f"features {'/'.join(map(str, model.channels or ()))}",
        f"radii {'/'.join(f'{r:g}' for r in model.radii or ())}",
        f"at most {model.max_neighbors} neighbours",
    ]
    name = {"sgd": "SGD", "adamw": "AdamW"}[optimizer.name]
    parts = [
        *([] if own else network),
        f"{config.epochs} epochs",
        f"{name} with momentum {optimizer.momentum:g}, rate {optimizer.rate:g} unless a column has its own",
        _schedule(optimizer),
        f"weight decay {optimizer.weight_decay:g}",
        f"initialised on {config.init.batches} batches",
        f"{config.votes} vote{'s' * (config.votes > 1)}",
    ]
    return ", ".join(parts)


def _schedule(optimizer: OptimizerConfig) -> str:
    if optimizer.schedule != "milestones":
        return f"{optimizer.schedule} schedule, rising for {optimizer.warmup:.0%} of the steps"
    return f"times {optimizer.gamma:g} after {', '.join(map(str, optimizer.milestones)) or 'no'} epochs"


def _machine(records: pd.DataFrame) -> str:
    """How long the cells took, where and when; a row per record, what lies within by dotted names."""
    hardware, versions = (records.filter(like=part).astype(str) for part in ("hardware.", "versions."))
    machines = hardware["hardware.cpu"] + ", " + hardware["hardware.cores"] + " cores, "
    machines += hardware["hardware.threads"] + " used"
    software = "pointvar " + versions["versions.pointvar"] + ", torch " + versions["versions.torch"]
    seconds, dates = records["result"].sum(), records["date"].str[:10]
    first, last = dates.min(), dates.max()
    return (
        f"{len(records)} cells in {timedelta(seconds=round(seconds))} h of training, "
        f"{seconds / len(records):.0f} s each, on {'; '.join(sorted(set(machines)))}; "
        f"{'; '.join(sorted(set(software)))}; {first if first == last else f'{first} to {last}'}."
    )
