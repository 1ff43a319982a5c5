"""The demonstration on a small scale: five rows, a page that needs nothing else, and no work done twice."""

import json
import re

import pytest

from pointvar.cli import main
from pointvar.experiments import demo
from pointvar.train import callbacks

FOLDERS = ["standard", "batch-norm", "group-norm", "variance-aware", "norm-free"]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Arguments of the command; its sizes are such that it takes seconds."""
    base = {
        "data": {"name": "shapes", "train_size": 8, "test_size": 6, "num_points": 64, "batch_size": 2},
        "model": {"channels": [8, 8], "head": 8, "radii": [0.3, 0.6]},
        "init": {"batches": 2},
        "epochs": 2,
        "threads": 1,
        "accelerator": "cpu",
    }
    for name, value in {"BASE": base, "DEPTH": 3, "CHANNELS": 4, "CLOUDS": 2, "METHODS": ["MCConv"]}.items():
        monkeypatch.setattr(demo, name, value)
    return ["demo", "--output", str(tmp_path)]


def times(folder):
    return {name: (folder / name / "summary.json").stat().st_mtime_ns for name in FOLDERS}


def test_all_of_it_is_made_kept_and_made_anew(small, tmp_path, capsys):
    assert main(small) == 0
    text = capsys.readouterr().out
    table = text[text.index("test accuracy") :]
    for name in demo.TRAININGS:
        assert re.search(rf"^{name} +[01]\.\d+ +[01]\.\d+ +\d+$", table, re.MULTILINE)
    assert f"report: {tmp_path / 'report.html'}" in table
    assert "epoch 2/2" in text
    assert "left" in text
    for name in FOLDERS:
        assert len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) == 2
    assert {n: len(c) for n, c in json.loads((tmp_path / "variance.json").read_text())["MCConv"].items()} == {
        "standard": 3,
        "direct": 3,
    }

    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=(?!.?(data:|#))", page)
    assert all(name in page for name in demo.TRAININGS)
    assert page.count('<figure class="cloud">') == 2  # of six test clouds, the first and the fifth

    before = times(tmp_path)
    assert main(small) == 0
    text = capsys.readouterr().out
    assert "there already" in text
    assert "--fresh" in text
    assert "epoch" not in text
    assert times(tmp_path) == before
    (tmp_path / "mine.txt").write_text("kept")
    assert main([*small, "--fresh"]) == 0
    assert all(times(tmp_path)[name] > before[name] for name in FOLDERS)
    assert (tmp_path / "mine.txt").exists()


def test_a_stopped_demonstration_goes_on_where_it_was(small, tmp_path, monkeypatch, capsys):
    end_epoch = callbacks.Checkpoints.on_train_epoch_end

    def be_stopped(self, trainer, module):
        self._asked = self.path.parent.name == "group-norm"
        end_epoch(self, trainer, module)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Checkpoints, "on_train_epoch_end", be_stopped)
        assert main(small) == 130
    assert "goes on from here" in capsys.readouterr().out
    before = (tmp_path / "batch-norm" / "summary.json").stat().st_mtime_ns
    assert not (tmp_path / "group-norm" / "summary.json").exists()
    assert main(small) == 0
    text = capsys.readouterr().out
    assert "training 2 of 5" not in text
    third = text[text.index("training 3 of 5") : text.index("training 4 of 5")]
    assert "epoch 1/2" not in third
    assert "epoch 2/2" in third
    assert (tmp_path / "batch-norm" / "summary.json").stat().st_mtime_ns == before


def test_a_run_of_other_settings_is_not_taken_for_this_one(small, tmp_path, monkeypatch, capsys):
    assert main(small) == 0
    capsys.readouterr()
    other = demo.TRAININGS | {"norm-free": {**demo.TRAININGS["norm-free"], "epochs": 1}}
    monkeypatch.setattr(demo, "TRAININGS", other)
    assert main(small) == 0
    text = capsys.readouterr().out
    assert re.findall(r"training (\d) of 5", text) == ["5"]
    assert "epoch 1/1" in text
