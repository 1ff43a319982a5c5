"""What the documents show runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pointvar.recipes import RECIPES

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


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf8").splitlines()) <= 80


def anchors(page):
    """Of the headings of a page, as they are made by Sphinx and by GitHub."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_of(page):
    """Every link to a file of the repository leads to one, and to a heading that it has."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf8")):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_rates_and_clipping_are_those_of_the_recipe():
    """What a page or an example types in is what ``norm-free`` has."""
    recipe, rates = RECIPES["norm-free"]["optimizer"], []
    for page in [*PAGES, *SCRIPTS]:
        text = page.read_text("utf8")
        rates += re.findall(r"AdamW(?: at |\(model.parameters\(\), lr=)([\d.]*\d)", text)
        clips = re.findall(r"(?:AdaptiveClipping\(model, |--optimizer\.agc=)([\d.]+)", text)
        assert all(float(clip) == recipe["agc"] for clip in clips), page
    assert len(rates) >= 4
    assert {float(rate) for rate in rates} == {recipe["rate"]}
