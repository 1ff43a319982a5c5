"""Folders of runs with a file that is damaged or gone: one line says which, and what to do."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from training_cases import tiny

from pointvar.cli import main
from pointvar.data import write_ply
from pointvar.train import fit, load_config

MEND = "mend the file or remove it, a report can do without"
ANEW = "mend it, or write it anew by the command that started the run, with --resume --output="


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    fit(tiny(output=str(folder / "run"), epochs=1, logger="none"), verbose=False)
    write_ply(folder / "cloud.ply", np.random.default_rng(0).random((50, 3)))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


def said(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    capsys.readouterr()
    assert main(command) == 2
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    return shown[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [1,", "Problems parsing config"),
        (b"- 1\n", "Unexpected config"),
        (b"", "Unexpected config"),
        (b"data: 5\n", "data must hold settings, got 5"),
        (b"\xff\xfe\0\1", "not text"),
        (None, "it has no config.yaml"),
    ],
)
def test_config(run: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, reason: str) -> None:
    path = run / "config.yaml"
    path.unlink() if content is None else path.write_bytes(content)
    shown = said(["evaluate", str(run)], capsys)
    assert str(run) in shown
    assert reason in shown
    resumed = said(["train", str(path), "--resume"], capsys)
    assert resumed.startswith(f"pointvar train: {path}")
    assert resumed.endswith(f"{ANEW}{run}")
    fit(tiny(output=str(run), epochs=1, logger="none"), resume=True, verbose=False)  # as it says
    assert load_config(path).epochs == 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.yaml", "a: [1,", "config.yaml: not YAML"),
        ("config.yaml", "data: 5", "config.yaml: data cannot be 5"),
        ("metrics.jsonl", '{"epoch": 1}\n{"ep\n{"epoch": 2}\n', "metrics.jsonl, line 2: not JSON"),
        ("metrics.jsonl", '{"epoch": 1, "train_loss": "x"}\n', "metrics.jsonl: train_loss cannot be 'x'"),
        ("summary.json", "{", "summary.json: not JSON"),
        ("summary.json", "[1]", "summary.json: expected names and values, got list"),
        ("summary.json", '{"seconds": "x"}', "summary.json: seconds cannot be 'x'"),
        ("summary.json", '{"metrics": {"iou": [1]}}', "summary.json: metrics: iou cannot be [1]"),
        ("summary.json", '{"init": {"layers": 3}}', "summary.json: init: left_alone cannot be None"),
        ("evaluation.json", "[]", "evaluation.json: expected names and values, got list"),
        ("versions.json", "7", "versions.json: expected names and values, got int"),
    ],
)
def test_report(run: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, reason: str) -> None:
    page = run.parent / "page.html"
    (run / name).write_text(content)
    shown = said(["report", str(run), "--output", str(page)], capsys)
    assert f"{run.name}/{reason}" in shown
    assert shown.endswith(MEND)
    (run / name).unlink()
    assert main(["report", str(run), "--output", str(page)]) == 0  # as it says


@pytest.mark.parametrize("content", [None, b"\1\2"])
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_model(
    finished: Path, run: Path, capsys: pytest.CaptureFixture[str], command: str, content: bytes | None
) -> None:
    path = run / "model.safetensors"
    path.unlink() if content is None else path.write_bytes(content)
    files = [str(finished / "cloud.ply")] if command == "predict" else []
    shown = said([command, str(run), *files], capsys)
    assert "model.safetensors" in shown
    again = f"pointvar train {shlex.quote(str(run / 'config.yaml'))} --resume"
    assert shown.endswith(again)
    assert main(shlex.split(again)[1:]) == 0  # as it says, wherever the folder was before
    assert main([command, str(run), *files]) == 0


def test_what_a_resume_does_not_need(run: Path) -> None:
    for name in ("metrics.jsonl", "summary.json", "versions.json", "model.safetensors"):
        (run / name).write_text('{"half')
    result = fit(tiny(output=str(run), epochs=2, logger="none"), resume=True, verbose=False)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == len(result.history) == 2
    assert main(["report", str(run), "--output", str(run.parent / "page.html")]) == 0
