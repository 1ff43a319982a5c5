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


def test_results_in_the_readme_are_those_of_the_tables():
    """Each mean that it quotes stands in the row of means of a table under results/."""
    quoted = re.findall(
        r"^\| (?:ModelNet|AHN3)[^|]*\|(.*)\|$", (ROOT / "README.md").read_text("utf8"), re.MULTILINE
    )
    rows = [set(re.findall(r"\d+\.\d", line)) for line in quoted]
    tables = "\n".join(path.read_text("utf8") for path in sorted((ROOT / "results").glob("table-*.md")))
    means = [set(re.findall(r"\d+\.\d", line)) for line in re.findall(r"^\| mean .*$", tables, re.MULTILINE)]
    assert len(rows) == 9
    for row in rows:
        assert any(row <= mean for mean in means), f"no table has the means {sorted(row)}"
