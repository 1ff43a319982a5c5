"""Tables as grids of training runs: cells of plain values, each run once, whatever interrupts the rest.

A cell is a dictionary such as ``{"data": "ModelNet10", "batch": 2, "method": "MCConv", "column": "direct",
"seed": 0}``. From it follows a training configuration: the scenario's recipe, then the method, the batch, the
column, what the table adds, and the seed. Results are appended to NAME.jsonl one by one. The same command may
run several times at once: each process takes cells that no other is at.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from pointvar.experiments.claims import Claim, Published
from pointvar.experiments.columns import COLUMNS, REPEATED, Settings
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import Scenario
from pointvar.experiments.store import Store, cell_key, circumstances, fingerprint
from pointvar.progress import track
from pointvar.train import Config, Data, DataConfig, InitConfig, ModelConfig, OptimizerConfig, Result, fit
from pointvar.train.loader import WEIGHTS, generator
from pointvar.train.metrics import Metrics

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
    metrics = result.metrics if result.diverged is None else asdict(constant(data))
    return {
        **{name: metrics[name] for name in ("accuracy", "mean_accuracy", "mean_iou", "count")},
        "iou": metrics["iou"],
        "history": result.history,
        "seconds": round(result.seconds, 2),
        "init_seconds": None if result.init is None else round(result.init["seconds"], 4),
        "diverged": result.diverged,
    }


def constant(data: Data) -> Metrics:
    """Of always the most frequent class of the test data."""
    size = len(data.classes)
    counts = torch.zeros(size, size, dtype=torch.int64)
    for index in range(len(data.test)):
        label = torch.as_tensor(data.test[index].label).flatten()
        counts[:, 0] += torch.bincount(label[label >= 0], minlength=size)
    return Metrics.of(counts.roll(int(counts[:, 0].argmax()), 1), data.classes)


@dataclass(frozen=True)
class Table:
    """A table: what is varied, over which data, and what is to be seen in it."""

    name: str
    title: str
    scenarios: Sequence[Scenario]
    axes: Mapping[str, Sequence[Any]]
    """What is varied within a scenario, the slowest first: batch, method, column, ..."""
    seeds: int
    keep: Callable[[Cell], bool] = lambda cell: True
    """Which combinations there are."""
    repeat: Callable[[Cell], bool] = lambda cell: True
    """Which of them are run with every seed, not with the first alone."""
    settings: Callable[[Scenario, Cell], Settings] = lambda scenario, cell: {}
    """What cells change besides method, batch and column."""
    model: Callable[[Config, Data, Cell, torch.Generator], nn.Module | None] = lambda *_: None
    """Makes a network that a configuration cannot describe."""
    run: Callable[[Config, Data, Cell, nn.Module | None], Outcome] = train
    measure: str | None = None
    """Which number of an outcome is shown; default: the scenario's metric, in per cent."""
    rows: str = "method"
    columns: str = "column"
    paper: Published = ()
    paper_data: str = ""
    """What the paper's numbers were measured on."""
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    command: str = ""
    """The name of the experiment, where the table has another."""
    whole: bool = False
    """It is run as a whole, whatever cells are asked for: others depend on it."""

    def cells(self) -> list[Cell]:
        """All cells: the first seed of everything, then the next."""
        product = [
            {"data": scenario.name, **dict(zip(self.axes, values, strict=True)), "seed": seed}
            for seed in range(self.seeds)
            for scenario in self.scenarios
            for values in itertools.product(*self.axes.values())
        ]
        return [cell for cell in product if self.keep(cell) and (cell["seed"] == 0 or self.repeat(cell))]

    def scenario(self, cell: Cell) -> Scenario:
        """Where a cell belongs."""
        return next(scenario for scenario in self.scenarios if scenario.name == cell["data"])

    def config(self, cell: Cell) -> Config:
        """The training run of a cell."""
        scenario = self.scenario(cell)
        merged: dict[str, Any] = {}
        for source in (
            scenario.settings,
            {"model": {"method": cell["method"]}} if "method" in cell else {},
            scenario.batch(cell["batch"]) if "batch" in cell else {},
            {"init": {"table": scenario.table}},
            COLUMNS[cell["column"]] if "column" in cell else {},
            self.settings(scenario, cell),
            {"seed": cell["seed"], "accelerator": "auto"},
        ):
            merge(merged, source)
        kinds = {"data": DataConfig, "model": ModelConfig, "init": InitConfig, "optimizer": OptimizerConfig}
        return Config(**merged | {name: kind(**merged.get(name, {})) for name, kind in kinds.items()})


def merge(target: dict[str, Any], source: Settings) -> None:
    """Puts the settings of a source over those of a target, section by section."""
    for key, value in source.items():
        if isinstance(value, dict) and key in ("data", "model", "init", "optimizer"):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def repeated(
    options: Options, methods: Sequence[str] = REPEATED, batches: Sequence[int] = (2,)
) -> Callable[[Cell], bool]:
    """On a laptop only these are run with every seed."""
    return lambda cell: (
        options.preset == "paper" or (cell.get("method") in methods and cell.get("batch") in batches)
    )


def run(table: Table, options: Options) -> bool:
    """Runs what is missing of a table and writes the report; tells whether all that was wanted is done."""
    from pointvar.experiments.tabulate import write_report

    store = Store(options.output / f"{table.name}.jsonl")
    wanted = table.cells() if table.whole else select(table, options.only)
    complete = False
    try:
        if not options.report:
            _run_missing(table, options, store, wanted)
        done = {cell_key(record["cell"]) for record in store.done(table)[0]}
        complete = all(cell_key(cell) in done for cell in wanted)
    except Stopped:
        raise KeyboardInterrupt from None
    finally:
        write_report(table, store)
    return complete


def _run_missing(table: Table, options: Options, store: Store, wanted: list[Cell]) -> None:
    records, changed = store.done(table)
    if changed:
        print(f"{table.name}: {changed} cells were made by another recipe, and are made again")
    done = {cell_key(record["cell"]) for record in records}
    waiting = [cell for cell in wanted if cell_key(cell) not in done]
    print(f"{table.name}: {len(wanted) - len(waiting)} of {len(wanted)} cells are done")
    numbers = {cell_key(cell): number for number, cell in enumerate(table.cells())}
    elsewhere = 0
    loaded: dict[str, Data] = {}
    for cell in track(waiting, table.name):
        if options.time_is_up():
            print(f"\n{table.name}: the time is up; go on with the same command")
            return
        scenario, config = table.scenario(cell), table.config(cell)
        mark = fingerprint(config)
        if scenario.resumable:
            config.output = str(options.output / table.name / "-".join(str(v) for v in cell.values()))
        with store.claim(numbers[cell_key(cell)]) as ours, _stoppable():
            if not ours or store.has(cell, mark):
                elsewhere += not ours
                continue
            if scenario.name not in loaded:
                loaded = {scenario.name: scenario.load(config)}  # one at a time: they may be large
            data = loaded[scenario.name]
            model = table.model(config, data, cell, generator(config.seed, WEIGHTS))
            result = table.run(config, data, cell, model)
            store.append({"cell": cell, "result": result, "recipe": mark, **circumstances()})
    if elsewhere:
        print(f"{table.name}: cells left to other processes that run the same command: {elsewhere}")


def select(table: Table, only: Sequence[str]) -> list[Cell]:
    """The cells that all of KEY=VALUE leave; several values of a key are alternatives."""
    cells = table.cells()
    wanted: dict[str, set[str]] = {}
    for text in only:
        key, separator, value = text.partition("=")
        if not separator or key not in cells[0]:
            raise ValueError(f"--only takes KEY=VALUE with a key among {', '.join(cells[0])}, got {text!r}")
        if all(str(cell[key]) != value for cell in cells):
            there = ", ".join(dict.fromkeys(str(cell[key]) for cell in cells))
            raise ValueError(f"{table.name} has no {key} {value!r}; it has {there}")
        wanted.setdefault(key, set()).add(value)
    return [cell for cell in cells if all(str(cell[key]) in values for key, values in wanted.items())]


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
