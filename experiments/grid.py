"""Tables as grids of training runs: cells of plain values, each run once, whatever interrupts the rest.

A cell is a dictionary such as ``{"data": "ModelNet10", "batch": 2, "method": "MCConv", "column": "direct",
"seed": 0}``. From it follow the settings of a training: the scenario's, then the method, the batch, the
column, what the grid adds, and the seed. Results are appended to NAME.jsonl one by one. The same command may
run several times at once: each process takes cells that no other is at.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.claims import Claim
from experiments.columns import COLUMNS, REPEATED
from experiments.options import Options
from experiments.scenarios import Scenario
from experiments.settings import Settings, configuration, fingerprint
from experiments.store import Store, circumstances
from pointvar.data import count_labels
from pointvar.train import Config, Data, Result, fit

Cell = dict[str, Any]
Outcome = dict[str, Any]


class Stopped(BaseException):
    """Ctrl-C or SIGTERM within a cell. Not a KeyboardInterrupt, at which Lightning would end the process."""


def train(config: Config, data: Data, cell: Cell, model: nn.Module | None = None) -> Outcome:
    """Trains a cell: the metrics after the last epoch, never the best."""
    result = fit(config, data, model=model, resume=config.output is not None, verbose=False)
    if result.interrupted:
        raise Stopped
    return outcome(result, data)


def outcome(result: Result, data: Data) -> Outcome:
    """What is kept of a run. One that diverged counts as one that always says the most frequent class."""
    metrics = result.metrics if result.diverged is None else constant(data)
    return {
        **{name: metrics[name] for name in ("accuracy", "mean_accuracy", "mean_iou", "count", "iou")},
        "history": result.history,
        "seconds": round(result.seconds, 2),
        "init_seconds": None if result.init is None else round(result.init["seconds"], 4),
        "diverged": result.diverged,
    }


def constant(data: Data) -> Outcome:
    """The metrics of always saying the most frequent class of the test data; all other classes are missed."""
    labels = (data.test[index].label for index in range(len(data.test)))
    counts = count_labels(labels, len(data.classes))
    best, total, present = int(counts.argmax()), int(counts.sum()), int((counts > 0).sum())
    share = int(counts[best]) / total
    iou = {name: 0.0 if count else None for name, count in zip(data.classes, counts.tolist(), strict=True)}
    iou[data.classes[best]] = share
    return {
        "accuracy": share,
        "mean_accuracy": 1 / present,
        "mean_iou": share / present,
        "count": total,
        "iou": iou,
    }


def on_a_laptop(
    methods: Sequence[str] = REPEATED, batches: Sequence[int] = (2,)
) -> Callable[[Scenario, Cell], bool]:
    """Only these are run with every seed; by the published recipe, which is long anyway, all are."""
    return lambda scenario, cell: (
        scenario.resumable or (cell.get("method") in methods and cell.get("batch") in batches)
    )


SOME = on_a_laptop()


@dataclass(frozen=True)
class Grid:
    """A table: what is varied, over which data, and what is to be seen in it."""

    name: str
    title: str
    scenarios: Sequence[Scenario]
    axes: Mapping[str, Sequence[Any]]
    """What is varied within a scenario, the slowest first: batch, method, column, ..."""
    seeds: int = 3
    keep: Callable[[Cell], bool] = lambda cell: True
    """Which combinations there are."""
    repeat: Callable[[Scenario, Cell], bool] = SOME
    """Which of them are run with every seed, not with the first alone."""
    more: Callable[[Scenario, Cell], Settings] = lambda scenario, cell: {}
    """What cells change besides method, batch and column."""
    model: Callable[[Config, Data, Cell, torch.Generator], nn.Module | None] = lambda *_: None
    """Makes a network that a configuration cannot describe."""
    run: Callable[[Config, Data, Cell, nn.Module | None], Outcome] = train
    measure: str | None = None
    """Which number of an outcome is shown; default: the scenario's metric, in per cent."""
    rows: str = "method"
    columns: str = "column"
    by_column: Mapping[str, Settings] = field(default_factory=lambda: COLUMNS)
    """What the columns change."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """What is said about it -> when that holds."""
    notes: Sequence[str] = ()
    command: str = ""
    """The name of the experiment, where the grid has another."""
    whole: bool = False
    """Others depend on it: of the cells that are asked for only data, batch and column count, and all that
    have these are run."""

    def cells(self) -> list[Cell]:
        """All cells: the first seed of everything, then the next."""
        product = [
            {"data": scenario.name, **dict(zip(self.axes, values, strict=True)), "seed": seed}
            for seed in range(self.seeds)
            for scenario in self.scenarios
            for values in itertools.product(*self.axes.values())
        ]
        return [
            cell
            for cell in product
            if self.keep(cell) and (cell["seed"] == 0 or self.repeat(self.scenario(cell), cell))
        ]

    def select(self, only: Sequence[str]) -> list[Cell]:
        """The cells that all of KEY=VALUE leave; several values of a key are alternatives."""
        cells = self.cells()
        wanted: dict[str, set[str]] = {}
        if self.whole:
            shared = {"data", "batch", "column"} & cells[0].keys()
            known = {f"{key}={cell[key]}" for cell in cells for key in shared}
            only = [text for text in only if text in known]
        for text in only:
            key, separator, value = text.partition("=")
            if not separator or key not in cells[0]:
                raise ValueError(
                    f"--only takes KEY=VALUE with a key among {', '.join(cells[0])}, got {text!r}"
                )
            there = dict.fromkeys(str(cell[key]) for cell in cells)
            if value not in there:
                raise ValueError(f"{self.name} has no {key} {value!r}; it has {', '.join(there)}")
            wanted.setdefault(key, set()).add(value)
        return [cell for cell in cells if all(str(cell[key]) in values for key, values in wanted.items())]

    def scenario(self, cell: Cell) -> Scenario:
        """Where a cell belongs."""
        return next(scenario for scenario in self.scenarios if scenario.name == cell["data"])

    def settings(self, cell: Cell) -> Settings:
        """The training of a cell, by dotted names."""
        scenario = self.scenario(cell)
        return {
            **scenario.settings,
            **({"model.method": cell["method"]} if "method" in cell else {}),
            **(scenario.batch(cell["batch"]) if "batch" in cell else {}),
            "init.table": scenario.table,
            **(self.by_column[cell["column"]] if "column" in cell else {}),
            **self.more(scenario, cell),
            "seed": cell["seed"],
        }

    def config(self, cell: Cell) -> Config:
        """The training of a cell."""
        return configuration(self.settings(cell))

    def done(self, store: Store) -> tuple[list[dict[str, Any]], int]:
        """The last record of each cell, and how many others were made by another recipe."""
        wanted = {key(cell): fingerprint(self.settings(cell)) for cell in self.cells()}
        known = {name: record for record in store.read() if (name := key(record["cell"])) in wanted}
        same = [record for name, record in known.items() if record["recipe"] == wanted[name]]
        return same, len(known) - len(same)


Grids = Iterator[Grid]
"""Those of an experiment, the first that others build on first."""


def key(cell: Cell) -> str:
    """A cell as a key of dictionaries."""
    return json.dumps(cell, sort_keys=True)


def weights_generator(seed: int) -> torch.Generator:
    """Random numbers for the weights of a network; ``fit`` takes the same for those it makes itself."""
    weights = 3
    state = np.random.SeedSequence((seed, weights)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> 1))


def run_all(grids: Grids, options: Options) -> None:
    """Runs the grids of an experiment; each builds on those before, which must be complete to go on."""
    for grid in grids:
        if not run(grid, options) and not options.report:
            return


def run(grid: Grid, options: Options) -> bool:
    """Runs what is missing of a grid and writes the report; tells whether all that was wanted is done."""
    from experiments.markdown import write_report

    store = Store(options.output / f"{grid.name}.jsonl")
    wanted = grid.select(options.only)
    try:
        if not options.report:
            _run_missing(grid, options, store, wanted)
    except Stopped:
        raise KeyboardInterrupt from None
    finally:
        done = {key(record["cell"]) for record in write_report(grid, store)}
    return all(key(cell) in done for cell in wanted)


def _run_missing(grid: Grid, options: Options, store: Store, wanted: list[Cell]) -> None:
    records, changed = grid.done(store)
    if changed:
        print(f"{grid.name}: {changed} cells were made by another recipe, and are made again")
    done = {key(record["cell"]) for record in records}
    waiting = [cell for cell in wanted if key(cell) not in done]
    print(f"{grid.name}: {len(wanted) - len(waiting)} of {len(wanted)} cells are done", flush=True)
    numbers = {key(cell): number for number, cell in enumerate(grid.cells())}
    elsewhere = 0
    loaded: dict[str, Data] = {}
    for place, cell in enumerate(waiting, 1):
        if options.time_is_up():
            print(f"{grid.name}: the time is up; go on with the same command")
            return
        name = "-".join(str(value) for value in cell.values())
        scenario, settings = grid.scenario(cell), grid.settings(cell)
        mark = fingerprint(settings)
        if scenario.resumable:
            settings = {**settings, "output": str(options.output / grid.name / name)}
        with store.claim(numbers[key(cell)]) as ours, _stoppable():
            if not ours or any((r["cell"], r["recipe"]) == (cell, mark) for r in store.read()):
                elsewhere += not ours
                continue
            config = configuration(settings)
            if scenario.name not in loaded:
                loaded = {scenario.name: scenario.load(config)}  # one at a time: they may be large
            data = loaded[scenario.name]
            model = grid.model(config, data, cell, weights_generator(config.seed))
            result = grid.run(config, data, cell, model)
            store.append({"cell": cell, "result": result, "recipe": mark, **circumstances()})
        print(f"{grid.name}: {place} of {len(waiting)}, {name}, {result['seconds']:.0f} s", flush=True)
    if elsewhere:
        print(f"{grid.name}: cells left to other processes that run the same command: {elsewhere}")


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise ``Stopped``."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs this there stops it in his own way
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
