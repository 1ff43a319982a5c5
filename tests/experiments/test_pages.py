"""What pages say in numbers is what is stored, cell by cell."""

import json
import re
import shutil

import pytest
from conftest import ROOT
from experiments import pages
from experiments.store import Store

from pointvar.methods import METHODS


def between(page, name):
    text = (ROOT / page).read_text("utf8")
    return re.search(rf"<!-- {name} -->\n(.*)\n<!-- /{name} -->", text, re.DOTALL)[1]


def cells(text):
    """Of the table in a text."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}


FILLED = list(pages.parts(ROOT / "results", ROOT / "benchmarks" / "results"))


@pytest.mark.parametrize(("page", "name", "text"), FILLED, ids=[f"{page}:{name}" for page, name, _ in FILLED])
def test_a_page_is_filled_with_what_is_stored(page, name, text):
    assert between(page, name) == text, "run: python -m experiments.pages"


def mean_of(records, data, batch, column):
    """By loops: the mean over the methods of the means over their seeds, or None."""
    means = []
    for method in METHODS:
        found = {}
        for record in records:
            cell = record["cell"]
            if (cell["data"], cell["batch"], cell["method"], cell["column"]) == (data, batch, method, column):
                found[cell["seed"]] = record["result"]["mean_iou" if data == "AHN3" else "accuracy"]
        if not found:
            return None
        means.append(sum(found.values()) / len(found))
    return 100 * sum(means) / len(means)


def check_front_page(table, records):
    shown = cells(table)
    assert list(dict.fromkeys(column for _, column in shown)) == list(pages.COLUMNS)
    for row, (data, batch) in {
        "AHN3 aerial scan, 1 cloud per batch: mean IoU": ("AHN3", 1),
        "ModelNet10 shapes, 2 clouds per batch: accuracy": ("ModelNet10", 2),
        "ModelNet10 shapes, 16 clouds per batch: accuracy": ("ModelNet10", 16),
    }.items():
        means = {name: mean_of(records, data, batch, column) for name, column in pages.COLUMNS.items()}
        best = max((mean for mean in means.values() if mean is not None), default=None)
        for name, mean in means.items():
            text = "–" if mean is None else f"{mean:.1f}"
            assert shown[row, name] == (f"**{text}**" if mean == best is not None else text), (row, name)


def test_the_front_page_has_the_means_of_the_committed_results():
    lines = (ROOT / "results" / "table-norm-free.jsonl").read_text("utf8").splitlines()
    check_front_page(between("README.md", "results"), [json.loads(line) for line in lines])


def test_the_front_page_counts_what_is_left_when_all_train_with_adamw():
    """By loops: of the four methods in three places, where norm-free is at least as good."""
    lines = (ROOT / "results" / "table-parts.jsonl").read_text("utf8").splitlines()
    values = {}
    for record in map(json.loads, lines):
        cell, result = record["cell"], record["result"]
        place = cell["data"], cell["batch"], cell["method"]
        values[place, cell["column"]] = result["mean_iou" if cell["data"] == "AHN3" else "accuracy"]
    text = between("README.md", "results").splitlines()[-1]
    for name, column in {"batch norm": "BN, AdamW", "group norm": "GN, AdamW"}.items():
        places = [place for place, other in values if other == column]
        ahead = sum(values[place, "norm-free"] >= values[place, column] for place in places)
        assert re.search(rf"as (good as )?{name} in {ahead} of {len(places)}\b", text)


def test_the_front_page_of_a_made_up_store(tmp_path):
    """A column that lacks a method has no mean, the last line of a cell counts, other data do not."""
    store = Store(tmp_path / "made-up.jsonl")
    records = []
    for number, method in enumerate(METHODS):
        for place, column in enumerate(("BN", "GN", "direct", "norm-free", "other")):
            for seed in range(1 + (number == 3)):
                for data, batch in (("AHN3", 1), ("ModelNet10", 2), ("Rooms", 1)):
                    if (data, method, column) == ("ModelNet10", "KPConv", "GN"):
                        continue
                    cell = {"data": data, "batch": batch, "method": method, "column": column, "seed": seed}
                    value = (0.1 * place + 0.0313 * number + 0.1717 * seed) % 1
                    for repeated in (0.5, value):
                        records.append(
                            {"cell": cell, "result": {"accuracy": repeated, "mean_iou": repeated / 2}}
                        )
    for record in records:
        store.append(record)
    table = pages.accuracies(store)
    check_front_page(table, records)
    shown = cells(table)
    assert shown["ModelNet10 shapes, 2 clouds per batch: accuracy", "group norm"] == "–"
    assert {shown[row, column] for row, column in shown if "16 clouds" in row} == {"–"}
    assert table.count("**") == 4  # the best of two rows


def test_the_speed_on_the_front_page_is_that_of_the_benchmarks():
    stored = ROOT / "benchmarks" / "results"
    geometry, convolution, training = (
        json.loads((stored / f"{name}.json").read_text("utf8"))
        for name in ("geometry", "convolution", "training")
    )
    pairs = []
    for row in geometry["rows"]:
        named = (row["operator"], row["cloud"], row["points"], row["peer"])
        if named == ("ball query", "surface", 100_000, "vesin"):
            pairs.append((row["ours"], row["theirs"]))
    for row in convolution["peers-64"]["tables"]["peers"]:
        if (row["pass"], row["peer"]) == ("forward+backward", "KPConv style"):
            assert (row["points"], row["layer"]) == (16_384, "64 → 64")
            pairs.append((row["ours"], row["theirs"]))
    for row in training["rows"]:
        if row["case"] == "pyg" and row["threads"] == 2:
            pairs.append((row["step"], row["pyg"]))
    shown = re.findall(r": (\d+) ms; .*: (\d+) ms \(([\d.]+) times", between("README.md", "speed"))
    assert len(shown) == len(pairs) == 3
    for (ours, theirs), (our_text, their_text, times) in zip(pairs, shown, strict=True):
        assert (our_text, their_text) == (f"{ours:.0f}", f"{theirs:.0f}")
        assert float(times) == pytest.approx(theirs / ours, rel=0.05)


def test_every_claim_under_a_table_is_on_the_page_of_results():
    """In a line of its own; a claim that is made of short and of long trainings has one for both."""
    lines = (between("docs/results.md", "paper") + "\n" + between("docs/results.md", "beyond")).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    for path in (ROOT / "results").glob("*-*.md"):
        for claim, rest in re.findall(r"^- “(.*)”: (.*)$", path.read_text("utf8"), re.MULTILINE):
            here, _, paper = rest.partition("; in the paper: ")
            here, link = here.replace("not tested", "not run"), f"[{path.stem}](tables.md#{path.stem})"
            found = [row for row in rows if row[0] == claim and link in row[-1]]
            if path.stem in pages.LONG and len(found[0]) == 6:
                assert all(here.replace("not run", "not yet run") in row[3].split("; ") for row in found)
            else:
                (row,) = found
                assert (row[2], row[4]) == (here, paper) if paper else row[1] == here


@pytest.mark.parametrize(
    ("short", "long", "verdict"),
    [
        ("holds (2 of 2)", [], "holds"),
        ("does not hold (1 of 2)", [], "does not hold"),
        ("not run", [], "not run"),
        ("does not hold (1 of 2)", ["not run"], "does not hold, long training not yet run"),
        ("does not hold (1 of 2)", ["holds (1 of 1)", "not run"], "holds only with long training"),
        ("holds (2 of 2)", ["holds (1 of 1)"], "holds"),
        ("not run", ["holds (1 of 1)"], "holds"),
        ("holds (2 of 2)", ["does not hold (0 of 1)"], "does not hold"),
        ("does not hold (1 of 2)", ["holds (1 of 1)", "does not hold (0 of 1)"], "does not hold"),
    ],
)
def test_long_trainings_decide(short, long, verdict):
    made = [pages.Verdict("it is so", here, "", f"[{i}](#{i})") for i, here in enumerate([short, *long])]
    row = pages.compared(made[0]._replace(paper="holds (5 of 5)"), made[1:])
    assert row[:3] == ["it is so", verdict, short]
    assert row[3:5] == ["; ".join(long).replace("not run", "not yet run") or "–", "holds (5 of 5)"]
    assert row[5].count("](#") == 1 + len(long)


def test_a_claim_that_no_longer_holds_changes_the_page(tmp_path):
    for path in (ROOT / "results").glob("*-*.md"):
        shutil.copy(path, tmp_path)
    (tmp_path / "figures").mkdir()
    figure = json.loads((ROOT / "results" / "figures" / "fig-variance.json").read_text("utf8"))
    figure["summary"]["MCConv"]["direct"]["mean"] = ["0.4", "1"]
    (tmp_path / "figures" / "fig-variance.json").write_text(json.dumps(figure))
    (direct, *_) = pages.variance_verdicts(tmp_path)
    assert direct.here == "does not hold (9 of 10)"
    (tmp_path / "table-class.md").write_text(
        "- “a is ahead of b”: not tested; in the paper: holds (1 of 1)\n"
    )
    (verdict,) = pages.table_verdicts(tmp_path, "table-class")
    assert verdict[:3] == ("a is ahead of b", "not run", "holds (1 of 1)")


def check_any_network(text, records):
    """By loops: every cell is the mean over the seeds that there are, or a dash."""
    tables = dict(re.findall(r"\*\*ModelNet10, batch (\d)\*\*\n\n((?:\|.*\n?)+)", text))
    assert {str(record["cell"]["batch"]) for record in records} <= set(tables)
    for batch, table in tables.items():
        for (network, column), shown in cells(table.rstrip("\n")).items():
            wanted = {"batch": int(batch), "network": network, "column": column}
            found = {}
            for record in records:
                if all(record["cell"][name] == value for name, value in wanted.items()):
                    found[record["cell"]["seed"]] = 100 * record["result"]["accuracy"]
            mean = f"{sum(found.values()) / len(found):.1f}" if found else "-"
            assert shown.split(" ")[0] == mean, wanted


def test_the_table_of_any_network():
    records = Store(ROOT / "results" / "table-any-network.jsonl").read()
    check_any_network(between("docs/any-network.md", "any-network"), records)


def test_the_table_of_any_network_with_numbers():
    """With made-up numbers, of two seeds of one cell."""
    axes = {"data": "ModelNet10", "batch": 2, "network": "DGCNN", "column": "BN"}
    records = [{"cell": {**axes, "seed": s}, "result": {"accuracy": a}} for s, a in ((0, 0.25), (1, 0.5))]
    page = "\n\n".join(
        f"**ModelNet10, batch {batch}**\n\n| network | BN |\n|---|---:|\n| DGCNN | {shown} |"
        for batch, shown in ((2, "37.5 ± 17.7"), (1, "-"))
    )
    check_any_network(page, records)
    with pytest.raises(AssertionError, match="DGCNN"):
        check_any_network(page.replace("37.5", "37.6"), records)
