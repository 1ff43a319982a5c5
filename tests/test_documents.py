"""What the documents show runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_of(page):
    """The blocks of a page build on each other."""
    torch.manual_seed(0)
    names: dict = {"__name__": page.stem}
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)
    assert "pv" in names


def test_the_readme_has_an_example():
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_example(script, tmp_path):
    assert len(script.read_text(encoding="utf8").splitlines()) <= 60
    result = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


COLUMNS = {
    "batch norm": ["BN"],
    "batch norm, not in the head": ["BN, not in the head"],
    "group norm": ["GN"],
    "standard weights, no norm": ["standard"],
    "LSUV": ["LSUV"],
    "direct": ["direct"],
    "direct + AGC": ["direct + AGC"],
    "unit response + direct + AGC": ["unit + direct + AGC", "norm-free"],
    "unit response + closed form + AGC": ["unit + closed form + AGC"],
    "orthonormal + unit response + direct + AGC": [
        "orthonormal + unit + direct + AGC",
        "orthonormal + norm-free",
    ],
    "orthonormal + unit response + closed form + AGC": ["orthonormal + unit + closed form + AGC"],
}
"""Columns of the README -> what the tables of results/ call them."""
AERIAL = "AHN3 aerial scan, one cloud per batch: mean IoU"
ROWS = [
    {
        AERIAL: ("table-norm-free", "AHN3, batch 1"),
        "ModelNet10, batches of 2: accuracy": ("table-norm-free", "ModelNet10, batch 2"),
        "ModelNet10, batches of 16: accuracy": ("table-norm-free", "ModelNet10, batch 16"),
    },
    {
        "ModelNet10, batches of 2: accuracy": ("table-scanobjnn", "ModelNet10, batch 2"),
        "ModelNet40, batches of 2: accuracy": ("table-small-batch", "ModelNet40, batch 2"),
        AERIAL: ("table-segment", "AHN3, batch 1"),
        "ModelNet10, 25 layers without skips, batches of 4: accuracy": (
            "table-depth",
            "ModelNet10, depth 25, batch 4",
        ),
        "ModelNet10, batches of 16: accuracy": ("table-scanobjnn", "ModelNet10, batch 16"),
        "ModelNet40, batches of 16: accuracy": ("table-class", "ModelNet40, batch 16"),
    },
]
"""Rows of the two tables of results in the README -> file and section of results/."""


def markdown_tables(text):
    """The tables of a Markdown text: row -> column -> cell."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        head, _, *rows = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()]
        yield {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def means(name, section):
    """The row of means of a section of a table under results/, by column."""
    parts = re.split(r"^## (.*)\n", (ROOT / "results" / f"{name}.md").read_text("utf8"), flags=re.MULTILINE)
    (table,) = markdown_tables(dict(zip(parts[1::2], parts[2::2], strict=True))[section])
    return table["mean"]


def test_results_in_the_readme_are_those_of_the_tables():
    """Cell by cell: each mean stands in its row and column, none is left out, and the best is bold."""
    tables = [t for t in markdown_tables((ROOT / "README.md").read_text("utf8")) if AERIAL in t]
    assert [list(table) for table in tables] == [list(rows) for rows in ROWS]
    for table, rows in zip(tables, ROWS, strict=True):
        for row, (name, section) in rows.items():
            found = means(name, section)
            there = {c: [found[n] for n in COLUMNS[c] if found.get(n, "-") != "-"] for c in table[row]}
            shown = {column: cell.strip("*") for column, cell in table[row].items()}
            assert shown == {column: values[0] if values else "" for column, values in there.items()}, row
            best = max((column for column in shown if shown[column]), key=lambda c: float(shown[c]))
            assert [column for column, cell in table[row].items() if "*" in cell] == [best], row
