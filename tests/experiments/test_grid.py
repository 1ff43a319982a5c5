"""Grids of cells: each is run once, whatever happens in between, and the report says what came out."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import pytest

from pointvar.data import Shapes
from pointvar.experiments import grid
from pointvar.experiments.claims import Claim, Summary, numbers, summarise
from pointvar.experiments.grid import Table
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import Scenario
from pointvar.experiments.store import Store, fingerprint
from pointvar.experiments.tabulate import make_report
from pointvar.train import Data

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


def table(run, seeds=2, **options):
    axes = {"batch": (2, 4), "method": ("MCConv", "PCCNN"), "column": ("direct", "BN")}
    return Table("toy", "A toy", [SCENARIO], axes, seeds, run=run, **options)


def lines(path):
    return (path / "toy.jsonl").read_text().splitlines()


def test_the_first_seed_of_everything_comes_before_the_second(tmp_path):
    run = Runs()
    assert grid.run(table(run), Options(tmp_path))
    assert [cell["seed"] for cell in run.cells] == [0] * 8 + [1] * 8
    assert [cell["batch"] for cell in run.cells[:8]] == [2] * 4 + [4] * 4
    assert [json.loads(line)["cell"] for line in lines(tmp_path)] == run.cells


@pytest.mark.parametrize("error", [KeyboardInterrupt, grid.Stopped, RuntimeError])
def test_a_run_that_was_stopped_goes_on(tmp_path, error):
    first, second = Runs(5, error), Runs()
    with pytest.raises(RuntimeError if error is RuntimeError else KeyboardInterrupt):
        grid.run(table(first), Options(tmp_path))
    assert len(lines(tmp_path)) == 5
    assert "5 cells" in (tmp_path / "toy.md").read_text()  # the report is written all the same
    assert grid.run(table(second), Options(tmp_path))
    assert [*first.cells, *second.cells] == table(second).cells()
    third = Runs(0)
    assert grid.run(table(third), Options(tmp_path))


def test_half_a_line_of_a_killed_process_is_not_counted(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        grid.run(table(Runs(3)), Options(tmp_path))
    path = tmp_path / "toy.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = Runs()
    assert grid.run(table(again), Options(tmp_path))
    assert len(again.cells) == 14  # two of three lines were whole
    assert [json.loads(line)["cell"] for line in lines(tmp_path)] == table(again).cells()


def test_two_that_write_at_the_same_time_lose_nothing(tmp_path):
    store = Store(tmp_path / "shared.jsonl")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.append({"number": number}), range(200)))
    assert sorted(record["number"] for record in store.read()) == list(range(200))


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path):
    grid.run(table(Runs()), Options(tmp_path))
    path = tmp_path / "toy.jsonl"
    path.write_text(path.read_text().replace('"cell"', "cell", 1))
    with pytest.raises(ValueError, match=r"toy\.jsonl is damaged"):
        Store(path).read()


def test_cells_of_another_recipe_are_made_again(tmp_path, capsys):
    grid.run(table(Runs()), Options(tmp_path))
    run = Runs()
    changed = table(run, settings=lambda scenario, cell: {"epochs": 3 if cell["batch"] == 4 else 2})
    assert grid.run(changed, Options(tmp_path))
    assert {cell["batch"] for cell in run.cells} == {4}
    assert "8 cells were made by another recipe" in capsys.readouterr().out


def test_where_data_lie_is_no_part_of_a_recipe():
    cell = table(None).cells()[0]
    here, there = (
        table(None, settings=lambda s, c, path=path: {"data": {"path": path}}).config(cell)
        for path in ("here", "there")
    )
    assert here.data.path != there.data.path
    assert fingerprint(here) == fingerprint(there)


def test_a_time_limit_stops_between_cells(tmp_path, capsys):
    run = Runs()
    assert not grid.run(table(run), Options(tmp_path, limit_minutes=0))
    assert not run.cells
    assert "go on with the same command" in capsys.readouterr().out


def test_only_some_cells(tmp_path):
    run = Runs()
    assert grid.run(table(run), Options(tmp_path, only=["batch=2", "column=BN", "seed=0", "seed=1"]))
    assert [(c["batch"], c["column"], c["method"], c["seed"]) for c in run.cells] == [
        (2, "BN", method, seed) for seed in (0, 1) for method in ("MCConv", "PCCNN")
    ]
    with pytest.raises(ValueError, match="KEY=VALUE with a key among data, batch"):
        grid.select(table(run), ["size=2"])
    with pytest.raises(ValueError, match="has no batch '3'; it has 2, 4"):
        grid.select(table(run), ["batch=3"])


def test_the_report_alone_runs_nothing(tmp_path):
    run = Runs(0)
    assert not grid.run(table(run), Options(tmp_path, report=True))
    assert "| MCConv | - | - |" in (tmp_path / "toy.md").read_text()


def test_mean_and_deviation_over_seeds_are_shown_not_the_best(tmp_path):
    grid.run(table(Runs(), seeds=3), Options(tmp_path))
    text = (tmp_path / "toy.md").read_text()
    # direct at batch 2: 62, 64, 66; their deviation is 2
    assert "| MCConv | 64.0 ± 2.0 | 54.0 ± 2.0 |" in text
    assert "| mean | 64.0 | 54.0 |" in text
    assert "24 cells in 36 s of training, 2 s each" in text
    assert "preset laptop" in text
    assert os.uname().nodename not in text.split()


def test_one_seed_is_marked(tmp_path):
    grid.run(table(Runs(), seeds=3), Options(tmp_path, only=["seed=0"]))
    assert "62.0 (1/3)" in (tmp_path / "toy.md").read_text()


def test_what_was_not_run_at_all_is_a_line_not_a_table(tmp_path):
    grid.run(table(Runs(), seeds=1), Options(tmp_path, only=["batch=4", "column=BN"]))
    text = (tmp_path / "toy.md").read_text()
    assert "## Toy, batch 4" in text
    assert "## Toy, batch 2" not in text
    assert "- Not run yet: Toy, batch 2." in text


def test_only_some_cells_are_repeated(tmp_path):
    once = table(Runs(), seeds=3, repeat=lambda cell: cell["column"] == "direct")
    assert len(once.cells()) == 16  # of 24
    grid.run(once, Options(tmp_path))
    text = (tmp_path / "toy.md").read_text()
    assert "| MCConv | 64.0 ± 2.0 | 52.0 |" in text
    assert "/3)" not in text


def test_runs_that_diverged_count_as_the_most_frequent_class():
    metrics = grid.constant(DATA)
    labels = [DATA.test[i].label for i in range(6)]
    share = max(labels.count(label) for label in labels) / 6
    assert metrics.accuracy == pytest.approx(share)
    record = {
        "cell": {"data": "Toy", "seed": 0},
        "result": {"accuracy": 0.2, "diverged": "the loss is nan", "seconds": 1.0},
    }
    (summary,) = summarise([record], {"Toy": "accuracy"})
    assert (summary.mean, summary.diverged, summary.deviation) == (0.2, 1, None)


def summaries(**values):
    return [
        Summary({"column": column, "method": method}, (value,))
        for column, row in values.items()
        for method, value in zip("abc", row, strict=False)
    ]


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({}, "does not hold (2 of 3)"),
        ({"most": True}, "holds (2 of 3)"),
        ({"margin": -0.2}, "holds (3 of 3)"),
        ({"factor": 2.0}, "does not hold (1 of 3)"),
        ({"factor": 2.0, "most": True}, "does not hold (1 of 3)"),
    ],
)
def test_claims_are_checked(options, verdict):
    found = summaries(direct=[0.8, 0.8, 0.8], GN=[0.4, 0.7, 0.9])
    assert Claim("", {"column": "direct"}, {"column": "GN"}, **options).check(found) == verdict


def test_claims_are_tested_only_where_both_sides_are_there():
    claim = Claim("", {"column": "direct"}, {"column": "GN"})
    assert claim.check(summaries(direct=[0.8])) == "not tested"
    assert claim.check(summaries(direct=[0.8], GN=[0.4, 0.9])) == "holds (1 of 1)"


def test_the_paper_s_numbers_stand_beside_ours(tmp_path):
    paper = numbers([{"column": "direct"}, {"column": "BN"}], {"MCConv": (86.3, None)})
    claims = [Claim("direct is ahead of BN", {"column": "direct"}, {"column": "BN"})]
    grid.run(table(Runs(), paper=paper, paper_data="ScanObjectNN", claims=claims), Options(tmp_path))
    text = (tmp_path / "toy.md").read_text()
    assert "| MCConv | 63.0 ± 1.4 [86.3] | 53.0 ± 1.4 |" in text
    assert "“direct is ahead of BN”: holds (4 of 4)" in text
    assert "measured on ScanObjectNN" in text


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_texts_are_escaped():
    evil = "<script>alert('|')</script> & more"
    claims = [Claim(evil, {"column": "direct"}, {"column": "BN"})]
    report = make_report(table(None, claims=claims, notes=[evil]), [], 0)
    page = Tags(report.html())
    assert page.tags.count("script") == 2  # the page's own
    assert {"table", "h1", "li"} <= set(page.tags)
    assert evil in page.texts
    assert "<script>" not in report.markdown()


CHILD = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_grid
from pointvar.experiments import grid
from pointvar.experiments.options import Options

class Slow(test_grid.Runs):
    def __call__(self, *arguments):
        if len(self.cells) == 2:
            os.kill(os.getpid(), signal.{signal})
            time.sleep(60)
        return super().__call__(*arguments)

try:
    grid.run(test_grid.table(Slow()), Options(Path({output!r})))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 130), ("SIGKILL", -signal.SIGKILL)])
def test_signals_lose_no_cell_that_was_done(tmp_path, name, code):
    program = CHILD.format(tests=os.path.dirname(__file__), signal=name, output=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == code
    assert len(lines(tmp_path)) == 2
    rest = Runs()
    assert grid.run(table(rest), Options(tmp_path))
    assert len(rest.cells) == 14


OTHER = """
import sys
from pathlib import Path
from pointvar.experiments.store import Store

with Store(Path({path!r})).claim(3):
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_a_cell_that_another_process_is_at_is_left_to_it(tmp_path, capsys):
    program = OTHER.format(path=str(tmp_path / "toy.jsonl"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "at work\n"
        ours = Runs()
        assert not grid.run(table(ours), Options(tmp_path))
        every = table(ours).cells()
        assert ours.cells == every[:3] + every[4:]
        assert "other processes that run the same command: 1" in capsys.readouterr().out
        other.stdin.close()
    rest = Runs()
    assert grid.run(table(rest), Options(tmp_path))
    assert rest.cells == [every[3]]


def test_what_others_have_done_meanwhile_is_not_done_again(tmp_path):
    class Slow(Runs):
        def __call__(self, *arguments):
            grid.run(table(Runs()), Options(tmp_path))
            return super().__call__(*arguments)

    slow = Slow()
    assert grid.run(table(slow), Options(tmp_path))
    assert slow.cells == table(slow).cells()[:1]
