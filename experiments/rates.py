"""Tables whose columns each have a learning rate of their own, chosen in the same way for all.

For each data set, batch size and column (or ``by`` other axes) the best of a few rates is taken, by the mean
of some methods on a part of the training data that is kept apart. The recipe norm-free has one rate for all
data sets and batch sizes instead, the best by its mean over them. Test data choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.claims import summarise
from experiments.grid import Cell, Grid, Grids
from experiments.options import Options
from experiments.scenarios import Scenario, with_validation
from experiments.settings import Settings
from experiments.store import Store
from pointvar.train import RECIPES

RATES = (0.003, 0.01, 0.03, 0.1)
"""Of SGD; columns of AdamW have a tenth of each."""
BY = ("data", "batch", "column")
Rates = dict[tuple[Any, ...], float]
"""By the values of axes, the column last."""
EVERYWHERE = ("norm-free",)
"""Columns with one rate for all data and batch sizes."""


def with_rates(
    grid: Grid,
    options: Options,
    choosing: Mapping[str, Sequence[Any]],
    known: Rates | None = None,
    rates: Sequence[float] = RATES,
    by: Sequence[str] = BY,
    shorter: Callable[[Scenario], Scenario] = with_validation,
) -> Grids:
    """A grid that chooses rates in the cells with these values, then the grid itself; some may be known.

    ``shorter`` makes the data and the recipe to choose by from those of the table.
    """
    known = known or {}
    choice = choosing_rates(grid, choosing, {column for *_, column in known}, rates, shorter)
    yield choice
    chosen = best_rates(choice, options, by)
    bare = ("data", "column")  # axes whose values say what they are
    shown = ", ".join(
        f"{' '.join(str(v) if k in bare else f'{k} {v}' for k, v in zip(by, place, strict=True))} {rate:g}"
        for place, rate in chosen.items()
    )
    among = ", ".join(f"{rate:g}" for rate in rates)
    tenth = " (AdamW: a tenth of these)" if rates is RATES else ""
    notes = [f"Rates, each the best of {among}{tenth} on validation data: {shown or 'none yet'}."]
    if known:
        given = dict.fromkeys(f"{column} {rate:g}" for (*_, column), rate in known.items())
        notes.append(f"Rates that are not chosen, but those of the recipe: {', '.join(given)}.")
    every = known | chosen
    more = _rated(grid.more, lambda cell: every.get(tuple(cell[axis] for axis in by), rates[0]))
    yield replace(grid, more=more, notes=[*grid.notes, *notes])


def recipe_rates(grid: Grid, columns: Sequence[str] = EVERYWHERE) -> Rates:
    """The rate of the recipe norm-free for these columns, as a user gets it."""
    rate = RECIPES["norm-free"]["optimizer"]["rate"]
    places = [tuple(cell[axis] for axis in BY) for cell in grid.cells()]
    return {place: rate for place in places if place[-1] in columns}


def choosing_rates(
    grid: Grid,
    choosing: Mapping[str, Sequence[Any]],
    leave_out: set[str] | frozenset[str] = frozenset(),
    rates: Sequence[float] = RATES,
    shorter: Callable[[Scenario], Scenario] = with_validation,
) -> Grid:
    """The grid that chooses the rates of another."""
    columns = [column for column in grid.axes["column"] if column not in leave_out]
    return replace(
        grid,
        name=f"{grid.name}-rates",
        title="Learning rates on a part of the training data",
        scenarios=[shorter(scenario) for scenario in grid.scenarios],
        axes={**grid.axes, **choosing, "column": columns, "rate": rates},
        seeds=1,
        more=_rated(grid.more, lambda cell: _of(grid, cell["column"], cell["rate"])),
        rows="column",
        columns="rate",
        claims={},
        notes=["Nothing here is measured on test data."]
        + ["AdamW has a tenth of each rate."] * (rates is RATES),
        command=grid.name,
        whole=True,
    )


def best_rates(choice: Grid, options: Options, by: Sequence[str] = BY) -> Rates:
    """The rates that a grid has chosen, each with the best mean, where all of them were tried."""
    records, _ = choice.done(Store(options.output / f"{choice.name}.jsonl"))
    axes = [*by, "rate"]
    numbers = summarise(records, axes, {s.name: s.metric for s in choice.scenarios})
    means = numbers.set_index(axes)["mean"].to_dict()
    places = dict.fromkeys(tuple(cell[axis] for axis in by) for cell in choice.cells())
    among = choice.axes["rate"]
    tried = [place for place in places if all((*place, rate) in means for rate in among)]

    def shared(place: tuple[Any, ...]) -> list[Any]:
        return [v for axis, v in zip(by, place, strict=True) if axis not in ("data", "batch")]

    def score(place: tuple[Any, ...], rate: float) -> float:
        everywhere = [other for other in tried if shared(other) == shared(place)]
        alike = everywhere if place[-1] in EVERYWHERE else [place]
        return sum(means[(*other, rate)] for other in alike)

    return {place: _of(choice, place[-1], max(among, key=lambda rate: score(place, rate))) for place in tried}


def _rated(
    more: Callable[[Scenario, Cell], Settings], rate: Callable[[Cell], float]
) -> Callable[[Scenario, Cell], Settings]:
    def settings(scenario: Scenario, cell: Cell) -> Settings:
        return {**more(scenario, cell), "optimizer.rate": rate(cell)}

    return settings


def _of(grid: Grid, column: str, rate: float) -> float:
    """The rate of a column: of AdamW, a tenth of that of SGD."""
    return rate * 0.1 if grid.by_column[column].get("optimizer.name") == "adamw" else rate
