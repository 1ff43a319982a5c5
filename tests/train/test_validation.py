"""A part for validation: which network is kept, when a training ends, and when the test data are used."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_cases import room_data, tiny

import pointvar as pv
from pointvar.cli import main
from pointvar.data import Sample, scaled_features, write_ply
from pointvar.models import read_notes
from pointvar.train import Data, evaluate, fit, load_config, load_data


class Counted(list[Sample]):
    """Samples that count how often they are looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(index)


def objects(test: list[Sample] | None = None) -> Data:
    """Small and large boxes; those for validation have the wrong labels, so that learning makes it worse."""
    random = torch.Generator().manual_seed(0)
    samples = [
        Sample(torch.rand(64, 3, generator=random) * (0.5 + i % 2), torch.ones(64, 1), i % 2)
        for i in range(24)
    ]
    wrong = [replace(sample, label=1 - sample.label) for sample in samples[12:18]]
    return Data(samples[:12], test, ["small", "large"], 1, validation=wrong)


def test_the_best_network_is_kept_and_the_test_data_are_used_once(tmp_path: Path) -> None:
    test = Counted(objects().train[i] for i in range(6))
    data = objects(test)
    config = tiny({"data": {"box": False}}, epochs=4, output=str(tmp_path / "run"))
    result = fit(config, data, verbose=False)
    assert Counted.looks == 2 * 6  # clouds and labels
    scores = [row["accuracy"] for row in result.history]
    assert result.best is not None
    assert result.best["epoch"] == 1 + scores.index(max(scores))
    assert scores[-1] < max(scores)
    best = pv.load(tmp_path / "run" / "model.safetensors")
    last = pv.load(tmp_path / "run" / "last.safetensors")
    for network, row in ((best, result.best), (last, result.history[-1])):
        again = evaluate(network, Data(data.train, data.validation, data.classes, 1), config.data)
        assert again.accuracy == row["accuracy"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best"] == result.best
    assert summary["metrics"]["accuracy"] == evaluate(best, data, config.data).accuracy
    # Without a folder the network is the best one as well, and a resumed run keeps what was best before.
    alone = fit(tiny({"data": {"box": False}}, epochs=4), data)
    for name, value in best.state_dict().items():
        assert torch.equal(alone.model.state_dict()[name], value)  # type: ignore[union-attr]
    again = fit(config, data, resume=True, verbose=False)
    assert again.best == result.best
    assert again.metrics == result.metrics


def test_the_last_epoch_is_evaluated_whatever_the_interval() -> None:
    result = fit(tiny({"data": {"box": False}}, epochs=5, evaluate_every=3), objects(), verbose=False)
    assert [row["epoch"] for row in result.history if "accuracy" in row] == [3, 5]


@pytest.mark.parametrize("setting", [{"features": ["one"]}, {"classes": ["a", "b"]}, {"ignore": [0]}])
def test_settings_of_own_files_are_refused_for_other_data(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(
        ValueError, match=f"data.{name}: for files of your own .data.name=folder., not for shapes"
    ):
        load_data(tiny({"data": setting}).data)


def test_early_stopping(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": {"rate": 1e-9, "schedule": "milestones"}}
    config = tiny(settings, epochs=9, early_stopping=2, output=str(tmp_path / "run"))
    result = fit(config, objects(), verbose=False)
    assert len(result.history) == 3  # nothing is learned: one that is best, and two that are no better
    assert result.best is not None
    assert result.best["epoch"] == 1
    again = fit(config, objects(), resume=True, verbose=False)
    assert (again.history, again.steps) == (result.history, result.steps)
    with pytest.raises(ValueError, match="early_stopping needs a part for validation"):
        fit(tiny(early_stopping=2))


def test_scenes_without_test_data(tmp_path: Path) -> None:
    rooms = room_data()
    data = Data(rooms.train, None, rooms.classes, 1, "segmentation", validation=rooms.test)
    settings = {"data": {"radius": 1.0, "context": 1.5}, "model": {"network": "unet", "head": None}}
    result = fit(tiny(settings, epochs=2), data)
    assert result.best is not None
    assert result.metrics["mean_iou"] == result.best["mean_iou"]
    assert result.metrics["classes"] == 2
    with pytest.raises(ValueError, match="got neither"):
        Data(rooms.train, None, rooms.classes, 1)


SEGMENT = [
    "--data.task=segmentation",
    "--model.channels=[4,4]",
    "--model.radii=[0.4,0.8]",
    "--model.network=unet",
]
SEGMENT += ["--data.radius=2", "--data.context=3", "--epochs=1", "--threads=1", "--data.crops=2"]


def tiles(root: Path, count: int = 3, codes: tuple[int, ...] = (2, 6)) -> None:
    random = np.random.default_rng(0)
    for index in range(count):
        points = random.uniform(0, 3, (200, 3)) + np.array([85_000 + 3 * index, 447_000, 0])
        label = np.array(codes)[np.arange(200) % len(codes)]
        write_ply(
            root / f"tile_{index}.ply", points, intensity=random.lognormal(5, 1, 200), classification=label
        )


def run(root: Path, *settings: str) -> int:
    return main(["train", "norm-free", "--data.name=folder", f"--data.path={root}", *SEGMENT, *settings])


def test_a_folder_of_tiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiles(tmp_path, codes=(2, 6, 7))
    out = tmp_path / "run"
    options = ["--data.classes={2: ground, 6: building}", "--data.features=[one,intensity,height]"]
    assert run(tmp_path, *options, "--data.validation=[tile_1.ply]", f"--output={out}") == 0
    assert "over 2 of 2 classes" in capsys.readouterr().out
    notes = read_notes(out / "model.safetensors")
    assert (notes["classes"], notes["codes"]) == (["ground", "building"], [2, 6])
    arrays = pv.data.read_points(tmp_path / "tile_1.ply")
    found = scaled_features(arrays, notes["features"])
    data = load_data(load_config(out / "config.yaml").data)
    assert [data.train[i].name for i in range(2)] == ["tile_0", "tile_2"]
    np.testing.assert_array_equal(data.validation[0].features.numpy(), found)
    assert main(["evaluate", str(out)]) == 0
    trained = json.loads((out / "summary.json").read_text())["metrics"]
    assert json.loads((out / "evaluation.json").read_text())["iou"] == trained["iou"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--data.classes={1: tree, 3: bush}"], "no point of the training data has a label that counts"),
        (["--data.ignore=[2]"], "one class only (6)"),
        (["--data.classes={2: ground, 3: bush}"], "only ground of the classes ground, bush occurs"),
        (["--data.classes=[a, b]"], "labels [2, 6] are none of the 2 classes (a, b), nor -1"),
        (["--data.classes={2: a, 6: b}", "--data.ignore=[c]"], "the ignored c are none of the classes a, b"),
        (["--data.ignore=[2, 6]"], "no class is left, of the labels [2, 6] all are ignored"),
        (["--data.label=kind"], "no label per point named 'kind'"),
        (["--data.features=[colors]"], "no column colors; there are intensity, points, label"),
        (["--data.features=[height]", "--data.columns=[intensity]"], "not both"),
        (["--data.features=[height]", "--data.up=y"], "the feature height is along z, data.up is y"),
        (["--data.validation={min: [0, 0]}"], "a region for validation is {min"),
        (["--data.validation=2"], "must be a share between 0 and 1"),
        (["--data.validation={min: [0, 0], max: [1, 1]}"], "lies in the region"),
    ],
)
def test_one_line_says_what_is_wrong(
    settings: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiles(tmp_path)
    assert run(tmp_path, "--data.validation=0.3", f"--output={tmp_path / 'run'}", *settings) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_class_that_no_training_file_has(tmp_path: Path) -> None:
    tiles(tmp_path, 2)
    points = np.random.default_rng(0).random((50, 3))
    write_ply(tmp_path / "tile_2.ply", points, label=np.full(50, 9), intensity=points[:, 0])
    settings = {"name": "folder", "path": str(tmp_path), "task": "segmentation", "validation": ["tile_2.ply"]}
    with pytest.warns(UserWarning, match="no training data have the class 9, which cannot be learned"):
        data = load_data(load_config({"data": settings}).data)
    assert data.classes == ["2", "6", "9"]
    assert data.codes == [2, 6, 9]
    # No features are the constant 1.
    with pytest.warns(UserWarning, match="class 9"):
        one = load_data(load_config({"data": settings | {"features": []}}).data)
    assert one.train[0].features.unique().tolist() == [1]
    # Broken files are left out if asked for.
    (tmp_path / "tile_1.ply").write_text("ply\n")
    with (
        pytest.warns(UserWarning, match="1 of 3 files are skipped"),
        pytest.warns(UserWarning, match="class 9"),
    ):
        skipped = load_data(load_config({"data": settings | {"errors": "skip"}}).data)
    assert len(skipped.train) == 1
