"""What is written about a grid: means over seeds, the paper's numbers, claims, all from the records."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from experiments import claims, grid, markdown
from experiments.claims import Claim, summarise
from experiments.grid import Grid
from experiments.options import Options
from experiments.scenarios import Scenario
from experiments.settings import fingerprint
from experiments.store import Store
from test_grid import score, toy

MACHINE = {
    "versions": {"pointvar": "1", "torch": "2"},
    "hardware": {"cpu": "a chip", "cores": 2, "threads": 1},
    "date": "2026-01-02T03:04:05+00:00",
}


def record(cell, value=None, diverged=None):
    value = score(cell) if value is None else value
    result = {"accuracy": value, "mean_iou": 0.1, "count": 250, "seconds": 1.5, "diverged": diverged}
    return {"cell": cell, "result": result, **MACHINE}


def page(chosen=lambda cell: True, **options):
    table = toy(None, **options)
    return markdown.markdown(table, [record(cell) for cell in table.cells() if chosen(cell)])


def test_mean_and_deviation_over_seeds_are_shown_not_the_best():
    text = page(seeds=3)
    # direct at batch 2: 62, 64, 66; their deviation is 2
    assert "## Toy, batch 2\n\n| method | direct | BN |\n| --- | ---: | ---: |\n" in text
    assert "| MCConv | 64.0 ± 2.0 | 54.0 ± 2.0 |\n| PCCNN | 64.0 ± 2.0 | 54.0 ± 2.0 |" in text
    assert "| mean | 64.0 | 54.0 |" in text
    assert "24 cells in 0:00:36 h of training, 2 s each, on a chip, 2 cores, 1 used" in text
    assert "an accuracy of 80 % is known to 2.5" in text  # 40 / sqrt(250)
    assert "a toy; preset laptop: network classifier" in text


def test_fewer_seeds_than_planned_are_marked_and_no_mean_is_made_of_some_methods():
    text = page(lambda cell: cell["seed"] == 0 and (cell["batch"], cell["method"]) != (2, "PCCNN"), seeds=3)
    assert "| MCConv | 62.0 (1/3) | 52.0 (1/3) |\n| PCCNN | - | - |\n| mean | - | - |" in text
    assert "| mean | 64.0 | 54.0 |" in text  # at batches of 4


def test_what_was_not_run_at_all_is_a_line_not_a_table():
    text = page(lambda cell: (cell["batch"], cell["column"]) == (4, "BN"), seeds=1)
    assert "## Toy, batch 4" in text
    assert "## Toy, batch 2" not in text
    assert "- Not run yet: Toy, batch 2." in text
    assert "over" not in next(line for line in text.splitlines() if line.startswith("- Numbers"))


def test_diverged_runs_are_counted():
    table = toy(None, seeds=2)
    text = markdown.markdown(
        table, [record(c, 0.2, "the loss is nan" if c["seed"] else None) for c in table.cells()]
    )
    assert "| MCConv | 20.0 ± 0.0 †1 |" in text


def test_long_trainings_are_shown_by_epoch(tmp_path):
    """In the page as curves, in the text some epochs of them; short ones are curves alone."""
    axes = {"batch": (2,), "method": ("MCConv", "PCCNN"), "column": ("direct", "BN")}
    shown = {}
    for preset in ("laptop", "long"):
        scenario = Scenario("Toy", "a toy", {"epochs": 12}, "synthetic", preset=preset)
        table = Grid("toy", "A toy", [scenario], axes, 2, repeat=lambda *_: True)
        records = [record(cell) for cell in table.cells() if cell["method"] == "MCConv"]
        for each in records:
            slow, seed = each["cell"]["column"] == "direct", each["cell"]["seed"]
            each["result"]["history"] = [
                {"epoch": epoch, "train_loss": 1.0} | ({"accuracy": epoch / (20 + 20 * slow) + 0.1 * seed})
                for epoch in range(2, 13, 2)
            ] + [{"epoch": 13, "train_loss": 1.0}]
        ((title, epochs, panels),) = markdown.curves(table, records)
        assert (title, epochs, list(panels)) == ("Toy, batch 2", [2, 4, 6, 8, 10, 12], ["MCConv"])
        assert panels["MCConv"]["direct"] == [[e / 40 + 0.1 * seed for e in epochs] for seed in (0, 1)]
        shown[preset] = markdown.markdown(table, records)
    assert "By epoch" not in shown["laptop"]
    assert (
        "## By epoch: Toy, batch 2\n\n"
        "| method | column | epoch 2 | epoch 4 | epoch 6 | epoch 8 | epoch 10 | epoch 12 |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| MCConv | direct | 10.0 | 15.0 | 20.0 | 25.0 | 30.0 | 35.0 |\n"
        "| MCConv | BN | 15.0 | 25.0 | 35.0 | 45.0 | 55.0 | 65.0 |\n"
    ) in shown["long"]


def test_the_page_of_a_grid_draws_its_curves(tmp_path):
    table = toy(None, seeds=1)
    store = Store(tmp_path / "toy.jsonl")
    for cell in table.cells():
        made = record(cell)
        made["result"]["history"] = [{"epoch": e, "accuracy": 0.1 * e} for e in range(1, 5)]
        store.append({**made, "recipe": fingerprint(table.settings(cell))})
    markdown.write_report(table, store)
    text = (tmp_path / "toy.html").read_text()
    assert [text.count(f"By epoch: Toy, batch {batch}") > 0 for batch in (2, 4)] == [True, True]


def frame(**columns):
    rows = [
        {"data": "Toy", "column": column, "method": method, "mean": value}
        for column, values in columns.items()
        for method, value in zip("abc", values, strict=False)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({}, "does not hold (2 of 3)"),
        ({"most": True}, "holds (2 of 3)"),
        ({"margin": -0.2}, "holds (3 of 3)"),
        ({"factor": 2.0}, "does not hold (1 of 3)"),
        ({"factor": 2.0, "most": True}, "does not hold (1 of 3)"),
        ({"at": {"method": "b"}}, "holds (1 of 1)"),
        ({"at": {"method": "d"}}, "not tested"),
        ({"at": {"rate": 1}}, "not tested"),
    ],
)
def test_claims_by_hand(options, verdict):
    found = frame(direct=[0.8, 0.8, 0.8], GN=[0.4, 0.7, 0.9])
    assert Claim("direct", "GN", **options).check(found) == verdict
    assert Claim({"column": "direct"}, {"column": "GN"}, **options).check(found) == verdict


def test_claims_are_tested_only_where_both_sides_are_there():
    assert Claim("direct", "GN").check(frame(direct=[0.8])) == "not tested"
    assert Claim("direct", "GN").check(frame(direct=[0.8], GN=[0.1, 0.9])) == "holds (1 of 1)"
    assert Claim("direct", "GN").check(summarise([], ["data", "column"], {})) == "not tested"


def test_claims_across_other_axes():
    """Batch norm at 16 against itself at 2, method by method."""
    rows = [("a", 2, 0.1), ("a", 16, 0.9), ("b", 2, 0.5), ("b", 16, 0.4)]
    found = pd.DataFrame(
        {"data": "Toy", "method": m, "batch": b, "column": "BN", "mean": v} for m, b, v in rows
    )
    claim = Claim({"column": "BN", "batch": 16}, {"column": "BN", "batch": 2})
    assert claim.check(found) == "does not hold (1 of 2)"


def test_the_paper_s_numbers_stand_beside_ours(monkeypatch):
    rows = [{"table": "toy", "data": "ScanObjectNN", "batch": 2, "method": "MCConv", "column": "direct"}]
    paper = pd.DataFrame([{**rows[0], "percent": 86.3}, {**rows[0], "column": "BN", "percent": 90}])
    monkeypatch.setattr(claims, "_paper", lambda: paper)
    text = page(claims={"direct is ahead of BN": Claim("direct", "BN")})
    assert "| MCConv | 63.0 ± 1.4 [86.3] | 53.0 ± 1.4 [90] |\n| PCCNN | 63.0 ± 1.4 | 53.0 ± 1.4 |" in text
    holds = "- “direct is ahead of BN”: holds (4 of 4); in the paper: does not hold (0 of 1)"
    assert holds in text
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


def test_texts_are_escaped(tmp_path):
    evil = "<script>alert('|')</script> & more"
    quiet = toy(None, claims={evil: Claim("direct", "BN")}, notes=[evil])
    grid.run(quiet, Options(tmp_path, report=True))
    assert "<script>" not in (tmp_path / "toy.md").read_text()
    found = Tags((tmp_path / "toy.html").read_text())
    assert {"table", "li"} <= set(found.tags)
    assert any(evil in text for text in found.texts)


def test_numbers_of_real_trainings_are_those_of_the_lines(tmp_path):
    """A small grid is trained, and each cell of its Markdown is worked out anew from the JSON lines."""
    settings = {
        **{"data.name": "shapes", "data.train_size": 12, "data.test_size": 6, "data.num_points": 48},
        **{"model.channels": [4], "model.head": 4, "model.radii": [0.3], "init.batches": 1},
        **{"epochs": 1, "threads": 1, "accelerator": "cpu", "data.drop_last": True},
    }
    few = Scenario("Few", "few shapes", settings, "modelnet40")
    axes = {"batch": (4,), "method": ("MCConv", "SPHConv"), "column": ("direct", "BN")}
    small = Grid("small", "Small", [few], axes, 2, repeat=lambda *_: True)
    assert grid.run(small, Options(tmp_path))
    values = {}
    for line in (tmp_path / "small.jsonl").read_text().splitlines():
        cell, result = (json.loads(line)[part] for part in ("cell", "result"))
        assert result["history"][-1]["accuracy"] == result["accuracy"]
        values.setdefault((cell["method"], cell["column"]), []).append(100 * result["accuracy"])
    assert {len(v) for v in values.values()} == {2}
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", (tmp_path / "small.md").read_text(), re.MULTILINE))
    for method in axes["method"]:
        for column, text in zip(axes["column"], rows[method].split(" | "), strict=True):
            a, b = values[method, column]
            assert text == f"{(a + b) / 2:.1f} ± {abs(a - b) / 2**0.5:.1f}"
