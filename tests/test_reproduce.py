"""`pointvar reproduce` in a checkout, and without one."""

import subprocess
import sys
from pathlib import Path

import pytest

import pointvar.experiments
from pointvar.cli import main

ROOT = Path(__file__).parent.parent


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Python as it is outside of a checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "experiments").is_dir()])
    for name in [n for n in sys.modules if n.partition(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("arguments", [["table-class", "--report"], ["--help"], []])
def test_without_a_checkout_it_says_where_to_find_them(arguments, elsewhere):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *arguments])
    assert "checkout of the repository" in end.value.code
    assert len(end.value.code.splitlines()) == 1


def test_in_a_checkout_it_is_the_command_of_the_experiments(elsewhere, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    command = ["table-class", "--report", "--synthetic", "--output", str(tmp_path)]
    assert main(["reproduce", *command]) == 0
    text = (tmp_path / "table-class.md").read_text()
    assert "built-in synthetic shapes" in text
    listed = subprocess.run(
        [sys.executable, "-m", "experiments", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert "table-class" in listed.stdout
    with pytest.warns(DeprecationWarning, match="has moved"):
        assert pointvar.experiments.EXPERIMENTS == sys.modules["experiments"].EXPERIMENTS
    assert main(["reproduce", "fig-nothing"]) == 2
    assert "fig-variance" in capsys.readouterr().err
