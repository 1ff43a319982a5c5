"""The command line: help that can be read, errors in one line."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import pointvar as pv
from pointvar.cli import COMMANDS, main
from pointvar.recipes import RECIPES
from pointvar.registry import Registry
from pointvar.train import Config

HELP = """
import contextlib, io, json, sys
from pointvar.cli import COMMANDS, main
shown = {}
for arguments in [["--help"], *([name, "--help"] for name in COMMANDS), ["train", "--settings"]]:
    text = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
        main(arguments)
    slow = [name for name in ("torch", "lightning", "numpy", "matplotlib") if name in sys.modules]
    shown[" ".join(arguments)] = [text.getvalue(), slow]
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def helps():
    """By command line, what its help says, and which slow libraries have been imported so far."""
    result = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_printed_and_imports_nothing_slow(command, helps):
    text, slow = helps[f"{command} --help"]
    assert text.startswith(f"usage: pointvar {command}")
    assert "--debug" in text
    assert slow == []


def test_completion(capsys, monkeypatch):
    monkeypatch.setattr("pointvar.commands.completion.find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
    monkeypatch.undo()
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("--data.batch_size", "evaluate", "--votes"))
    monkeypatch.setitem(sys.modules, "experiments.__main__", None)  # as installed, outside a checkout
    assert main(["completion", "bash"]) == 0
    assert "--data.batch_size" in capsys.readouterr().out


def test_the_overview_names_every_command(helps):
    text, slow = helps["--help"]
    assert all(f"  {name} " in text and what in text for name, what in COMMANDS.items())
    assert slow == []


def test_settings_are_explained_with_default_and_choices(helps):
    text = " ".join(helps["train --settings"][0].split())
    momentum = "Momentum of SGD and Muon, or the first beta of AdamW. (type: float, default: 0.9)"
    assert f"--optimizer.momentum MOMENTUM {momentum}" in text
    assert "Known: shapes, rooms, modelnet, scanobjectnn, scannet, folder, npz. (type: str" in text
    assert f"recipes ({', '.join(RECIPES)})" in text
    assert helps["train --settings"][1] == []


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert pv.__version__ in capsys.readouterr().out


def test_a_command_is_needed(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2


def test_a_table_is_measured_and_used(tmp_path, capsys):
    path = tmp_path / "own.json"
    small = ["--methods", "SPHConv", "MCConv", "--depth", "3", "--channels", "4", "--clouds", "2"]
    assert main(["tables", str(path), *small, "--repeats", "1", "--slope", "0"]) == 0
    content = json.loads(path.read_text())
    assert content["provenance"]["data"] == "synthetic shapes"
    assert content["activation_moment"] == pytest.approx(0.5)
    assert {row: len(z) for row, z in content["z"].items()} == dict.fromkeys(
        ("SPHConv", "SPHConv unit", "MCConv", "MCConv unit"), 3
    )
    report = pv.transfer_init(pv.models.PlainNet(3, 8, 3, method="MCConv"), path)
    assert [entry.depth for entry in report.layers] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tables", "table.txt"], ".json"),
        (["predikt", "x"], "there is no command predikt (did you mean 'predict'?)"),
        (["train", "clasify"], "clasify: neither a YAML file nor a recipe (did you mean 'classify'?)"),
        (["train", "--epochs=ten"], "epochs must be a whole number, got ten"),
        (
            ["train", "--optimizer.schedule=onecycle"],
            "must be one of 'milestones', 'cosine', 'one-cycle', got onecycle (did you mean 'one-cycle'?)",
        ),
        (["train", "--model.radii=x"], "model.radii must be one of list[float], null, got x"),
        (["tables", "table.json", "--source", "modelnet40", "--data", "."], "modelnet40_small.npz"),
        (["tables", "table.json", "--methods", "NoConv"], "NoConv"),
    ],
)
def test_errors_of_the_user_end_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_output_that_nobody_reads_to_its_end():
    """`pointvar completion bash | head -1`: a line, no traceback."""
    command = [sys.executable, "-m", "pointvar.cli", "completion", "bash"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        told = process.stderr.read()
    assert told == "pointvar completion: the output was closed before its end\n"
    assert process.returncode == 2


def test_warnings_are_told_without_code(capsys, monkeypatch):
    def run(_):
        for path in (pv.__file__, "other.py"):
            print(warnings.formatwarning("look", UserWarning, path, 1), end="")

    monkeypatch.setattr("pointvar.commands.doctor.run", run)
    before = warnings.formatwarning
    assert main(["doctor"]) == 0
    assert warnings.formatwarning is before
    first, second = capsys.readouterr().out.splitlines()
    assert first == "pointvar: warning: look"
    assert second == "other.py:1: UserWarning: look"


FAILURES = {
    "our own check": (lambda: Registry("fruit", {"pear": 1}).resolve("per"), "did you mean 'pear'"),
    "our own check, deeper": (lambda: Config(epochs=0), "epochs must be positive, got 0"),
    "a missing file": (lambda: Path("no-such-file.txt").read_text(), "no-such-file.txt"),
    "another library": (lambda: np.zeros(2).reshape(3), None),
    "a check of another library": (lambda: json.loads("no JSON"), None),
    "an operation of our own": (lambda: Config(epochs="many"), None),
    "an operation of the language": (lambda: int("many"), None),
    "not a kind that is foreseen": (lambda: Registry("fruit", {})["pear"], None),
}


@pytest.mark.parametrize("name", FAILURES)
def test_only_errors_for_users_are_shortened(name, monkeypatch, capsys):
    fail, message = FAILURES[name]
    monkeypatch.setattr("pointvar.commands.doctor.run", lambda given: fail())
    if message is None:
        with pytest.raises((ValueError, TypeError, KeyError)):
            main(["doctor"])
        return
    assert main(["doctor"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("pointvar doctor: ")
    assert message in lines[0]
    with pytest.raises((ValueError, OSError)):
        main(["doctor", "--debug"])


@pytest.mark.parametrize(
    "arguments",
    [["doctor", "--no-such-option"], ["train"], ["predict", "run", "x.ply", "--votes", "many"]],
    ids=" ".join,
)
def test_errors_of_the_command_line_are_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("table", ["synthetic", "modelnet40"])
def test_shipped_tables_serve_all_methods(table):
    rows = {f"{method}{unit}" for method in pv.methods.METHODS for unit in ("", " unit")}
    loaded = pv.init.Table.load(table)
    assert set(loaded.z) == rows == set(loaded.num_basis)
    assert all(len(z) == 25 and min(z) > 0 for z in loaded.z.values())
    assert {"data", "radius", "features", "seed", "date", "version"} <= set(loaded.provenance)
