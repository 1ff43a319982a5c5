"""pointvar train, evaluate and predict as a user calls them."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from training_cases import TINY

from pointvar.cli import main
from pointvar.data import read_points, write_ply

SETTINGS = [
    f"--{section}.{name}={json.dumps(value) if isinstance(value, list) else value}"
    for section in ("data", "model", "init")
    for name, value in TINY[section].items()
] + ["--threads=1", "--accelerator=cpu", "--epochs=1"]


def test_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "shapes", "norm-free", f"--output={run}", *SETTINGS]) == 0
    assert "epoch 1/1" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--votes=2"]) == 0
    result = json.loads((run / "evaluation.json").read_text())
    assert result["votes"] == 2
    assert result["count"] == 6
    assert "accuracy" in capsys.readouterr().out
    wrong = sum(n for c, row in result["confusion"].items() for other, n in row.items() if other != c)
    assert len(result["files"]) == wrong > 0  # those that are right are not listed
    assert all(row["label"] != row["prediction"] for row in result["files"])
    confidences = [row["confidence"] for row in result["files"]]
    assert confidences == sorted(confidences, reverse=True)
    assert result["maps"] == {}
    points = np.random.default_rng(0).random((50, 3))
    write_ply(tmp_path / "cloud.ply", points)
    assert main(["predict", str(run), str(tmp_path / "cloud.ply")]) == 0
    file, name, share = capsys.readouterr().out.strip().split("\t")
    assert file.endswith("cloud.ply")
    assert 0 < float(share) <= 1
    assert name in result["iou"]


def test_segmentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    settings = ["--data.num_points=500", "--data.train_size=1", "--data.test_size=1", "--data.crops=2"]
    settings += ["--model.channels=[4,4]", "--model.radii=[0.4,0.8]", "--data.radius=2", "--data.context=3"]
    assert main(["train", "rooms", f"--output={run}", "--epochs=1", "--threads=1", *settings]) == 0
    random = np.random.default_rng(0)
    points = random.random((400, 3)) * 3 + [85_000.0, 447_000.0, 0]
    write_ply(tmp_path / "map.ply", points, colors=random.random((400, 3)))
    assert main(["predict", str(run), str(tmp_path / "map.ply"), "--output", str(out)]) == 0
    written = read_points(out / "map.ply")
    np.testing.assert_array_equal(written["points"], points)  # large coordinates come back as they were
    assert written["label"].shape == (400,)
    assert set(np.unique(written["label"])) <= set(range(12))
    assert ((written["confidence"] > 0) & (written["confidence"] <= 1)).all()
    assert (out / "classes.txt").read_text().startswith("0 floor\n")
    write_ply(tmp_path / "grey.ply", points)
    assert main(["predict", str(run), str(tmp_path / "grey.ply"), "--output", str(out)]) == 2
    assert "has no colors" in capsys.readouterr().err


class Closed(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_worst_scenes_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    settings = ["--data.num_points=300", "--data.train_size=1", "--data.test_size=4", "--data.crops=2"]
    settings += ["--model.channels=[4,4]", "--model.radii=[0.4,0.8]", "--data.radius=2", "--data.context=3"]
    assert main(["train", "rooms", f"--output={run}", "--epochs=1", "--threads=1", *settings]) == 0
    assert main(["evaluate", str(run)]) == 0
    result = json.loads((run / "evaluation.json").read_text())
    files = result["files"]
    assert len(files) == 4
    assert [row["accuracy"] for row in files] == sorted(row["accuracy"] for row in files)
    assert sum(row["labels"] for row in files) == result["count"]
    right = sum(row["labels"] - row["wrong"] for row in files)
    assert right / result["count"] == pytest.approx(result["accuracy"])
    assert list(result["maps"]) == [row["file"] for row in files[:3]]
    for row, path in zip(files, result["maps"].values(), strict=False):
        arrays = read_points(run / path)
        assert int((arrays["label"] != arrays["prediction"]).sum()) == row["wrong"]
    with redirect_stdout(Closed()):  # as of `pointvar evaluate RUN | head`
        assert main(["evaluate", str(run), "--data.test_size=1"]) == 2
    assert len(json.loads((run / "evaluation.json").read_text())["files"]) == 1
    assert [path.name for path in (run / "evaluation").iterdir()] == ["worst-1.npz"]  # none of before
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "from above" in page
    assert "Confusion matrix" in page


def test_print_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "shapes", "--print", "--epochs=4"]) == 0
    assert "epochs: 4" in capsys.readouterr().out
    # Settings go over all sources, and --recipe over those named before.
    assert main(["train", "--epochs=4", "shapes", "--recipe=published", "--print"]) == 0
    assert {"epochs: 4", "  rate: 0.005", "  agc: null"} <= set(capsys.readouterr().out.splitlines())
    assert main(["train", "nothing"]) == 2
    assert "neither a YAML file nor a recipe" in capsys.readouterr().err
    assert main(["train", "scannet", "--output=x"]) == 2
    assert "data.scenes" in capsys.readouterr().err
    assert main(["evaluate", "nowhere"]) == 2
    assert "nowhere is not a run: it has no config.yaml" in capsys.readouterr().err


def test_a_class_that_only_the_training_data_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    for split, names in {"train": "abc", "test": "ac"}.items():
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(2):
                write_ply(tmp_path / split / name / f"{index}.ply", random.random((40, 3)))
    run = tmp_path / "run"
    files = ["--data.name=folder", f"--data.path={tmp_path}", "--data.train_size=null"]
    files += ["--data.test_size=null", "--votes=1"]
    assert main(["train", "shapes", f"--output={run}", *SETTINGS, *files]) == 0
    trained = json.loads((run / "summary.json").read_text())["metrics"]
    assert list(trained["iou"]) == ["a", "b", "c"]
    assert main(["evaluate", str(run)]) == 0
    evaluated = json.loads((run / "evaluation.json").read_text())
    assert evaluated["iou"] == trained["iou"]
    (tmp_path / "test" / "a").rename(tmp_path / "test" / "other")
    capsys.readouterr()
    assert main(["train", "shapes", *SETTINGS, *files]) == 2
    assert "has the classes other, which are none of the 3 known ones (a, b, c)" in capsys.readouterr().err
