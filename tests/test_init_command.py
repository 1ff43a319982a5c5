"""pointvar init: from a folder of files to settings that train as they stand."""

import json
from pathlib import Path

import laspy
import numpy as np
import pytest
import torch
import trimesh

from pointvar.cli import main
from pointvar.commands.init import settings
from pointvar.data import Rooms, inspect_folder, write_ply
from pointvar.train import load_config
from pointvar.train.build import load_data

SHORT = ["--epochs=1", "--threads=1", "--accelerator=cpu", "--init.batches=1", "--logger=none"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTVAR_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_room(path: Path, index: int, count: int = 600) -> None:
    """A built-in room as a file, its furniture as one class."""
    room = Rooms(index + 1, "train", count, floor=(3.0, 4.0))[index]
    points, label = room.points.double().numpy(), room.label.clamp(max=3).numpy()
    colors = (room.features.numpy().clip(0, 1) * 255).astype(np.uint8)
    if path.suffix == ".ply":
        write_ply(path, points, label=label, colors=colors)
        return
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.scales, header.offsets = [0.001] * 3, [85_000.0, 447_000.0, 0.0]
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = (points + header.offsets).T
    cloud.classification = np.array([2, 6, 1, 5], np.uint8)[label]
    cloud.intensity = np.random.default_rng(index).integers(100, 60_000, count)
    cloud.red, cloud.green, cloud.blue = colors.T.astype(np.uint16) * 257
    cloud.write(str(path))


@pytest.fixture(scope="module", params=["laz", "ply"])
def rooms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rooms")
    for index in range(4):
        write_room(folder / f"room_{index}.{request.param}", index)
    return folder


def test_settings_of_scenes(rooms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mine.yaml"
    assert main(["init", str(rooms), f"--output={output}", "--points=200"]) == 0
    shown = capsys.readouterr().out
    assert "segmentation" in shown
    assert f"pointvar train {output}" in shown
    config = load_config(output)
    laser = next(rooms.iterdir()).suffix == ".laz"
    assert config.data.features == (["one", "intensity", "colors", "height"] if laser else ["one", "colors"])
    assert config.data.path == str(rooms)
    found = inspect_folder(rooms, sphere=200)
    assert config.data.context == pytest.approx(found.sphere, rel=0.05)
    assert config.data.radius == pytest.approx(0.6 * found.sphere, rel=0.1)
    radii, channels = config.model.radii, config.model.channels
    np.testing.assert_allclose(radii, 2.5 * found.spacing * 2.0 ** np.arange(len(radii)), rtol=0.05)
    assert channels == [32 * 2**level for level in range(len(radii))]
    if laser:
        assert config.data.classes == {1: "unclassified", 2: "ground", 5: "high vegetation", 6: "building"}
    assert config.epochs % config.evaluate_every == 0
    data = load_data(config.data)
    assert (len(data.train), len(data.validation), data.test) == (3, 1, None)
    held = data.validation[0]
    assert [f"{held.name}{next(rooms.iterdir()).suffix}"] == config.data.validation
    labels = torch.cat([data.train[index].label for index in range(3)]).unique().tolist()
    assert labels == [0, 1, 2, 3]


def test_objects_are_trained_on_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, random = tmp_path / "objects", np.random.default_rng(0)
    for name in ("ball", "box"):
        (root / name).mkdir(parents=True)
    for number in range(4):
        trimesh.creation.box((1, 2, 3 + number)).export(root / "box" / f"{number}.off")
        points = random.normal(size=(300, 3))
        write_ply(root / "ball" / f"{number}.ply", points / np.linalg.norm(points, axis=1, keepdims=True))
    (root / "ball" / "broken.ply").write_text("ply")
    output, run = tmp_path / "mine.yaml", tmp_path / "run"
    assert main(["init", str(root), f"--output={output}", "--points=128"]) == 0
    assert "broken.ply" in capsys.readouterr().out
    config = load_config(output)
    assert (config.data.task, config.data.classes) == ("classification", ["ball", "box"])
    assert (config.data.errors, config.data.num_points) == ("skip", 128)
    with pytest.warns(UserWarning, match=r"1 of 9 files are skipped:\n.*broken\.ply"):
        assert main(["train", str(output), *SHORT, "--model.channels=[4,4]", f"--output={run}"]) == 0
    notes = json.loads((run / "summary.json").read_text())
    assert notes["metrics"]["count"] == 2  # one of each class


def test_scenes_are_trained_on_as_written(
    rooms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, run, page = tmp_path / "mine.yaml", tmp_path / "run", tmp_path / "page.html"
    assert main(["init", str(rooms), f"--output={output}", "--points=200"]) == 0
    assert main(["train", str(output), *SHORT, "--data.crops=4", f"--output={run}"]) == 0
    assert main(["evaluate", str(run)]) == 0
    assert "mean IoU" in capsys.readouterr().out
    held = json.loads((run / "evaluation.json").read_text())["files"]
    names = [f"{row['file']}{next(rooms.iterdir()).suffix}" for row in held]
    assert names == load_config(output).data.validation
    assert main(["report", str(run), f"--output={page}"]) == 0
    assert f"Errors in {held[0]['file']}, from above" in page.read_text()


def test_nothing_is_overwritten_unless_asked_for(
    rooms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mine.yaml"
    output.write_text("mine")
    assert main(["init", str(rooms), f"--output={output}"]) == 2
    assert "is there already: choose another name by --output, or give --force" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main(["init", str(rooms), f"--output={output}", "--force"]) == 0
    assert load_config(output).data.task == "segmentation"


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ply(tmp_path / "a.ply", np.random.default_rng(0).random((50, 3)))
    output = f"--output={tmp_path / 'mine.yaml'}"
    assert main(["init", str(tmp_path), output]) == 2
    assert "no file has a label per point; there are points" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "nowhere"), output]) == 2
    assert "nowhere is missing" in capsys.readouterr().err
    assert main(["init", str(tmp_path), output, "--points=0"]) == 2
    assert "--points must be positive" in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(("points", "levels"), [(100, 2), (1500, 3), (8192, 4)])
def test_levels_that_a_sphere_has_points_for(tmp_path: Path, points: int, levels: int) -> None:
    (tmp_path / "scenes").mkdir()
    places = np.random.default_rng(0).uniform(0, 100, (20_000, 3)) * [1, 1, 0]
    np.savez(tmp_path / "scenes" / "a.npz", xyz=places, label=np.arange(20_000) % 2)
    (tmp_path / "mine.yaml").write_text(settings(inspect_folder(tmp_path / "scenes", sphere=points), points))
    config = load_config(tmp_path / "mine.yaml")
    assert len(config.model.radii) == len(config.model.channels) == levels


def scene(path: Path, labels: np.ndarray) -> None:
    points = np.random.default_rng(0).uniform(0, 10, (len(labels), 3)) * [2, 1, 0.1] + [100, 200, 0]
    np.savez(path, xyz=points, label=labels)


def written(root: Path) -> object:
    path = root.parent / "written.yaml"
    path.write_text(settings(inspect_folder(root), 8192))
    return load_config(path).data.validation


def test_a_single_scene_keeps_a_region_for_validation(tmp_path: Path) -> None:
    scene(tmp_path / "scene.npz", np.arange(2000) % 2)
    for root in (tmp_path, tmp_path / "scene.npz"):
        region = written(root)
        assert region == {"min": [115, 200], "max": [120, 210]}  # the last fifth of the longer side
    path = tmp_path.parent / "written.yaml"
    data = load_data(load_config(path).data)
    share = len(data.validation[0]) / 2000
    assert 0.15 < share < 0.35
    assert len(data.validation[0]) + len(data.train[0]) == 2000


def test_validation_has_the_classes_that_can_be_spared(tmp_path: Path) -> None:
    """Files 0 to 5 have classes 0 and 1, two have class 2 besides, one has a class of its own."""
    for number in range(8):
        labels = np.arange(300) % 2
        if number in (3, 5):
            labels[:30] = 2
        if number == 6:
            labels[:30] = 3
        scene(tmp_path / f"{number}.npz", labels)
    assert written(tmp_path) == ["3.npz"]  # of two, one has to remain for training


def test_folders_named_test_are_the_part_for_validation(tmp_path: Path) -> None:
    for name in ("ball", "box"):
        for part in ("train", "test"):
            (tmp_path / "objects" / name / part).mkdir(parents=True)
            trimesh.creation.icosphere(1).export(tmp_path / "objects" / name / part / f"{name}.off")
    assert written(tmp_path / "objects") == ["test/*"]
    data = load_data(load_config(tmp_path / "written.yaml").data)
    assert [data.validation[i].name for i in range(2)] == ["ball/test/ball", "box/test/box"]
    assert len(data.train) == 2


def test_files_in_train_and_test(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / "scenes" / part).mkdir(parents=True)
        for number in range(3):
            scene(tmp_path / "scenes" / part / f"{number}.npz", np.arange(300) % 2)
    (name,) = written(tmp_path / "scenes")
    assert name.startswith("train/")
    data = load_data(load_config(tmp_path / "written.yaml").data)
    assert (len(data.train), len(data.validation), len(data.test)) == (2, 1, 3)


def test_names_that_yaml_would_take_for_something_else(tmp_path: Path) -> None:
    for name in ("yes", "1e3", "a: b # c"):
        (tmp_path / "objects" / name).mkdir(parents=True)
        for number in range(2):
            trimesh.creation.icosphere(1).export(tmp_path / "objects" / name / f"{number}.off")
    written(tmp_path / "objects")
    assert load_config(tmp_path / "written.yaml").data.classes == ["1e3", "a: b # c", "yes"]


def test_labels_that_were_never_given_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "tiles").mkdir()
    for number in range(2):
        header = laspy.LasHeader(point_format=6, version="1.4")
        header.scales = [0.001] * 3
        cloud = laspy.LasData(header)
        cloud.x, cloud.y, cloud.z = np.random.default_rng(number).uniform(0, 9, (300, 3)).T
        cloud.classification = np.array([0, 2, 6], np.uint8)[np.arange(300) % 3]
        cloud.write(str(tmp_path / "tiles" / f"{number}.las"))
    written(tmp_path / "tiles")
    config = load_config(tmp_path / "written.yaml")
    assert config.data.ignore == [0]
    data = load_data(config.data)
    assert data.classes == ["ground", "building"]
    assert int((data.train[0].label < 0).sum()) == 100
