"""Grids of cells: each is run once, whatever happens in between."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from experiments import grid
from experiments.grid import Grid
from experiments.options import Options
from experiments.scenarios import Scenario
from experiments.settings import fingerprint
from experiments.store import Store

from pointvar.data import Sample, Shapes
from pointvar.train import Config, Data

DATA = Data(Shapes(4, "train", 16), Shapes(6, "test", 16), Shapes(1).classes, 1)
SCENARIO = Scenario("Toy", "a toy", {"epochs": 2}, "synthetic", load=lambda config: DATA)


def score(cell):
    """Any number that depends on the cell."""
    return 0.5 + 0.1 * (cell["column"] == "direct") + 0.01 * cell["batch"] + 0.02 * cell["seed"]


class Runs:
    """Stands for the training: notes what is run, and gives a number at once."""

    def __init__(self, stop_at=None, error=KeyboardInterrupt):
        self.cells, self.stop_at, self.error = [], stop_at, error

    def __call__(self, config, data, cell, model=None):
        if len(self.cells) == self.stop_at:
            raise self.error
        self.cells.append(cell)
        return {"accuracy": score(cell), "mean_iou": 0.1, "count": 6, "seconds": 1.5, "diverged": None}


def toy(run, seeds=2, **options):
    axes = {"batch": (2, 4), "method": ("MCConv", "PCCNN"), "column": ("direct", "BN")}
    return Grid("toy", "A toy", [SCENARIO], axes, seeds, **{"repeat": lambda *_: True, "run": run, **options})


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Cells are not trained here, so that their configurations need not be parsed."""
    monkeypatch.setattr(grid, "configuration", lambda settings: Config())


def lines(path):
    return [json.loads(line) for line in (path / "toy.jsonl").read_text().splitlines()]


def test_the_first_seed_of_everything_comes_before_the_second(tmp_path):
    run = Runs()
    assert grid.run(toy(run), Options(tmp_path))
    assert [cell["seed"] for cell in run.cells] == [0] * 8 + [1] * 8
    assert [cell["batch"] for cell in run.cells[:8]] == [2] * 4 + [4] * 4
    assert [line["cell"] for line in lines(tmp_path)] == run.cells
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl", ".md", ".html"}  # no lock is left


@pytest.mark.parametrize("error", [KeyboardInterrupt, grid.Stopped, RuntimeError])
def test_a_run_that_was_stopped_goes_on(tmp_path, error):
    first, second = Runs(5, error), Runs()
    with pytest.raises(RuntimeError if error is RuntimeError else KeyboardInterrupt):
        grid.run(toy(first), Options(tmp_path))
    assert len(lines(tmp_path)) == 5
    assert "5 cells" in (tmp_path / "toy.md").read_text()  # the report is written all the same
    path = tmp_path / "toy.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # half a line of a killed process is not counted
    assert grid.run(toy(second), Options(tmp_path))
    assert [*first.cells[:4], *second.cells] == toy(second).cells()
    assert [line["cell"] for line in lines(tmp_path)] == toy(second).cells()
    assert grid.run(toy(Runs(0)), Options(tmp_path))


def test_two_that_write_at_the_same_time_lose_nothing(tmp_path):
    store = Store(tmp_path / "shared.jsonl")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.append({"number": number, "none": float("nan")}), range(100)))
    assert sorted(record["number"] for record in store.read()) == list(range(100))
    assert {record["none"] for record in store.read()} == {None}


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / "toy.jsonl"
    path.write_text('{"cell": 1}\n{cell: 2}\n{"cell": 3}\n')
    with pytest.raises(ValueError, match=r"toy\.jsonl is damaged"):
        Store(path).read()


def test_cells_of_another_recipe_are_made_again(tmp_path, capsys):
    grid.run(toy(Runs()), Options(tmp_path))
    run = Runs()
    changed = toy(run, more=lambda scenario, cell: {"epochs": 3 if cell["batch"] == 4 else 2})
    assert grid.run(changed, Options(tmp_path))
    assert {cell["batch"] for cell in run.cells} == {4}
    assert "8 cells were made by another recipe" in capsys.readouterr().out


def test_a_fingerprint_is_of_what_differs_from_the_defaults():
    recipe = {"epochs": 7, "model.norm": "batch", "data.radius": 2}
    mark = fingerprint(recipe)
    same = [
        {"data.radius": 2.0, "model.norm": "batch", "epochs": 7},
        {**recipe, "data.path": "elsewhere", "threads": 3, "output": "run"},  # where and how fast
        {**recipe, "optimizer.momentum": 0.9, "init.table": "tables/modelnet40.json"},  # the defaults
    ]
    assert {fingerprint(settings) for settings in same} == {mark}
    other = [{**recipe, "epochs": 8}, {**recipe, "seed": 1}, {**recipe, "init.table": "x/rooms.json"}, {}]
    assert len({mark, *map(fingerprint, other)}) == 5


def test_a_time_limit_stops_between_cells(tmp_path, capsys):
    run = Runs()
    assert not grid.run(toy(run), Options(tmp_path, limit_minutes=0))
    assert not run.cells
    assert "go on with the same command" in capsys.readouterr().out


def test_only_some_cells(tmp_path):
    run = Runs()
    assert grid.run(toy(run), Options(tmp_path, only=["batch=2", "column=BN", "seed=0", "seed=1"]))
    assert [(c["batch"], c["column"], c["method"], c["seed"]) for c in run.cells] == [
        (2, "BN", method, seed) for seed in (0, 1) for method in ("MCConv", "PCCNN")
    ]
    with pytest.raises(ValueError, match="KEY=VALUE with a key among data, batch"):
        toy(run).select(["size=2"])
    with pytest.raises(ValueError, match="has no batch '3'; it has 2, 4"):
        toy(run).select(["batch=3"])


def test_of_a_grid_that_others_depend_on_all_methods_are_run(tmp_path):
    """A rate is chosen by several methods; but not for batches and columns that nobody asked for."""
    choice = toy(None, seeds=1, whole=True)
    asked = ["batch=2", "column=BN", "method=MCConv", "seed=3", "column=other", "depth=7"]
    assert [(c["batch"], c["column"], c["method"]) for c in choice.select(asked)] == [
        (2, "BN", method) for method in ("MCConv", "PCCNN")
    ]
    assert choice.select([]) == choice.cells()


def test_the_report_alone_runs_nothing(tmp_path):
    assert not grid.run(toy(Runs(0)), Options(tmp_path, report=True))
    assert "| MCConv | - | - |" in (tmp_path / "toy.md").read_text()


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_which_cells_are_repeated(preset):
    scenario = Scenario("Toy", "a toy", {}, "synthetic", preset=preset)
    axes = {"batch": (2, 4), "method": ("MCConv", "PCCNN")}
    seeds = [
        (cell["batch"], cell["method"]) for cell in Grid("toy", "", [scenario], axes).cells() if cell["seed"]
    ]
    every = [(2, "MCConv"), (2, "PCCNN"), (4, "MCConv"), (4, "PCCNN")]
    assert seeds == (2 * every if preset == "paper" else 2 * every[:1])


def test_runs_that_diverged_count_as_the_most_frequent_class():
    def cloud(*labels):
        points = Shapes(1, num_points=len(labels))[0].points
        return Sample(points, points, points.new_tensor(labels).long())

    scenes = [cloud(0, 0, 1, -1), cloud(0, 1, 3, 3, -1)]
    found = grid.constant(Data(scenes, scenes, ["a", "b", "never", "d"], 3, "segmentation"))
    # Of seven labels three are a, which is all that is said: all of a, a third of the classes that occur.
    assert found == {
        "accuracy": pytest.approx(3 / 7),
        "mean_accuracy": pytest.approx(1 / 3),
        "mean_iou": pytest.approx(1 / 7),
        "count": 7,
        "iou": {"a": pytest.approx(3 / 7), "b": 0.0, "never": None, "d": 0.0},
    }


CHILD = """
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {root!r}]
import test_grid
from experiments import grid
from experiments.options import Options

grid.configuration = lambda settings: test_grid.Config()
for name in ("SIGINT", "SIGTERM", "SIGKILL"):

    class Slow(test_grid.Runs):
        def __call__(self, *arguments):
            if len(self.cells) == 2:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(60)
            return super().__call__(*arguments)

    try:
        grid.run(test_grid.toy(Slow()), Options(Path({output!r})))
    except KeyboardInterrupt:
        print(name, flush=True)
"""


def test_signals_lose_no_cell_that_was_done_and_end_a_claim(tmp_path):
    here = Path(__file__)
    program = CHILD.format(tests=str(here.parent), root=str(here.parents[2]), output=str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("SIG")] == ["SIGINT", "SIGTERM"]
    assert len(lines(tmp_path)) == 6
    rest = Runs()
    assert grid.run(toy(rest), Options(tmp_path))
    assert rest.cells == toy(rest).cells()[6:]
    assert not list(tmp_path.glob(".*"))  # nor a lock of the one that was killed


def test_a_cell_that_another_is_at_is_left_to_it(tmp_path, capsys):
    ours = Runs()
    every = toy(ours).cells()
    with Store(tmp_path / "toy.jsonl").claim(3) as claimed:
        assert claimed
        with Store(tmp_path / "toy.jsonl").claim(3) as again:
            assert not again
        assert not grid.run(toy(ours), Options(tmp_path))
    assert ours.cells == every[:3] + every[4:]
    assert "other processes that run the same command: 1" in capsys.readouterr().out
    rest = Runs()
    assert grid.run(toy(rest), Options(tmp_path))
    assert rest.cells == [every[3]]


def test_what_others_have_done_meanwhile_is_not_done_again(tmp_path):
    class Slow(Runs):
        def __call__(self, *arguments):
            grid.run(toy(Runs()), Options(tmp_path))
            return super().__call__(*arguments)

    slow = Slow()
    assert grid.run(toy(slow), Options(tmp_path))
    assert slow.cells == toy(slow).cells()[:1]
