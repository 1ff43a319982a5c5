"""The command line: help that can be read, errors in one line."""

import json

import pytest

import pointvar as pv
from pointvar.cli import COMMANDS, main


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_printed(command, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"] if command is None else [command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "usage: pointvar" in text
    if command is None:
        assert all(name in text for name in COMMANDS)


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
        (["tables", "table.json", "--source", "modelnet40", "--data", "."], "modelnet40_small.npz"),
        (["tables", "table.json", "--methods", "NoConv"], "NoConv"),
    ],
)
def test_errors_of_the_user_end_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("table", ["synthetic", "modelnet40"])
def test_shipped_tables_serve_all_methods(table):
    rows = {f"{method}{unit}" for method in pv.methods.METHODS for unit in ("", " unit")}
    loaded = pv.init.Table.load(table)
    assert set(loaded.z) == rows == set(loaded.num_basis)
    assert all(len(z) == 25 and min(z) > 0 for z in loaded.z.values())
    assert {"data", "radius", "features", "seed", "date", "version"} <= set(loaded.provenance)
