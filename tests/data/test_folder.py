"""A user's own data: a folder per class, or a label per point."""

from pathlib import Path

import laspy
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from writers import scene, write_mesh, write_scene

from pointvar.data import BadFileError, Folder, collate


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    for number, name in enumerate(["box", "cloud"]):
        (tmp_path / "objects" / name).mkdir(parents=True)
        for index in range(3):
            path = tmp_path / "objects" / name
            if name == "box":
                write_mesh(path / f"{index}.{['off', 'obj', 'stl'][index]}", (1, 1 + index, 2))
            else:
                write_scene(path / f"{index}.{['npz', 'ply', 'las'][index]}", scene(20 + index, number))
    return tmp_path / "objects"


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    (tmp_path / "scenes").mkdir()
    for index, kind in enumerate(["ply", "npz", "h5", "laz"]):
        write_scene(tmp_path / "scenes" / f"room{index}.{kind}", scene(30 + index, index))
    return tmp_path / "scenes"


@pytest.mark.parametrize("cache", [True, False])
def test_a_folder_per_class(objects: Path, cache: bool, cache_folder: Path) -> None:
    data = Folder(objects, num_points=100, cache=cache)
    assert data.classes == ["box", "cloud"]
    assert [data[i].label for i in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [data[i].name for i in range(6)] == ["box/0", "box/1", "box/2", "cloud/0", "cloud/1", "cloud/2"]
    assert [len(data[i]) for i in range(6)] == [100, 100, 100, 20, 21, 22]
    points = data[1].points
    half = torch.tensor([0.5, 1, 1])
    assert ((points.abs() - half).abs().amin(1) < 1e-6).all()  # on the surface of the box
    assert torch.equal(data[1].points, points)
    assert bool(list(cache_folder.rglob("*.npz"))) == cache
    assert not [path for path in objects.rglob("*") if path.suffix == ".npz" and path.stem != "0"]


def test_normals_of_meshes_are_features(objects: Path) -> None:
    only = objects.parent / "meshes"
    only.mkdir()
    (objects / "box").rename(only / "box")
    data = Folder(only, features=["normals"], num_points=50)
    assert data.num_features == 3
    assert torch.allclose(data[0].features.norm(dim=1), torch.ones(50))


def test_labels_per_point(scenes: Path) -> None:
    data = Folder(scenes, "segmentation", features=["colors"], classes=["a", "b", "c", "d"])
    assert data.task == "segmentation"
    assert data.num_features == 3
    for index in range(4):
        sample, wanted = data[index], scene(30 + index, index)
        assert np.array_equal(sample.label, wanted["label"])
        assert np.allclose(sample.features * 255, wanted["colors"], atol=1e-4)
        moved = wanted["points"] - np.floor(wanted["points"].min(0))
        assert np.array_equal(sample.points, moved.astype(np.float32))
    assert collate([data[0], data[3]]).labels.shape == (63,)
    one = Folder(scenes / "room1.npz", "segmentation")
    assert (len(one), one[0].name, one.num_features) == (1, "room1", 1)


def test_classes_per_point(scenes: Path) -> None:
    raw = scene(30, 0)["label"]
    found = Folder(scenes, "segmentation")
    assert found.classes == ["0", "1", "2", "3"]
    mapped = Folder(scenes, "segmentation", classes={3: "wall", 0: "floor", 1: "wall"})
    assert mapped.classes == ["wall", "floor"]
    assert mapped[0].label.tolist() == [{3: 0, 0: 1, 1: 0}.get(value, -1) for value in raw.tolist()]
    too_few = Folder(scenes, "segmentation", classes=["a", "b", "c"])
    with pytest.raises(BadFileError, match=r"room0.ply: labels \[3\] are none of the 3 classes"):
        too_few[0]


def test_coordinates_of_maps_keep_their_digits(tmp_path: Path) -> None:
    header = laspy.LasHeader(point_format=0, version="1.2")
    header.scales, header.offsets = [0.001] * 3, [85_000, 446_000, 0]
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = np.array([[85123.001, 446777.002, 1.5], [85123.004, 446777.006, 2.5]]).T
    cloud.write(str(tmp_path / "tile.las"))
    points = Folder(tmp_path, "segmentation")[0].points
    assert (points[1] - points[0]).tolist() == pytest.approx([0.003, 0.004, 1.0], abs=1e-6)


def test_broken_files_are_skipped_by_name_or_fatal(objects: Path) -> None:
    (objects / "box" / "1.obj").write_bytes(b"")
    broken = objects / "cloud" / "1.ply"
    broken.write_bytes(broken.read_bytes()[:-7])
    with pytest.warns(UserWarning, match=r"(?s)2 of 6 files are skipped.*box/1.obj.*cloud/1.ply"):
        data = Folder(objects, errors="skip")
    assert [data[i].name for i in range(len(data))] == ["box/0", "box/2", "cloud/0", "cloud/2"]
    fatal = Folder(objects)
    with pytest.raises(BadFileError, match=r"box/1.obj: the file is empty"):
        fatal[1]
    with pytest.raises(BadFileError, match=r"box/1.obj"):  # also out of a worker process
        list(DataLoader(fatal, collate_fn=collate, num_workers=1))
    for path in objects.rglob("*.*"):
        path.write_bytes(b"")
    with pytest.raises(BadFileError, match="none of the 6 files"):
        Folder(objects, errors="skip")


def test_labels_outside_the_classes_are_skipped_too(scenes: Path) -> None:
    odd = scene(30, 0)
    write_scene(scenes / "odd.npz", odd | {"label": odd["label"] + 50})
    with pytest.warns(UserWarning, match=r"(?s)1 of 5 files are skipped.*odd.npz"):
        data = Folder(scenes, "segmentation", classes=list("abcd"), errors="skip")
    assert len(data) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"task": "detection"}, ValueError, "'detection'"),
        ({"features": "colors"}, TypeError, "list of names"),
        ({"features": ["age"]}, BadFileError, r"no column age; there are .*points"),
        ({"classes": ["box"]}, ValueError, "none of the classes: cloud"),
        ({"classes": {0: "box"}}, TypeError, "mapping"),
        ({"errors": "ignore"}, ValueError, "'ignore'"),
        ({"task": "segmentation", "label": "kind"}, BadFileError, "no label per point named 'kind'"),
    ],
)
def test_wrong_arguments(arguments: dict, error: type, message: str, objects: Path) -> None:
    with pytest.raises(error, match=message):
        Folder(objects, **arguments)


def test_missing_data_says_what_is_expected(tmp_path: Path) -> None:
    for task, layout in (("classification", "ROOT/CLASS/"), ("segmentation", "label per point")):
        with pytest.raises(FileNotFoundError, match=layout):
            Folder(tmp_path / "nowhere", task)
        with pytest.raises(FileNotFoundError, match=layout):
            Folder(tmp_path, task)


def test_aerial_lidar(real_data: Path) -> None:
    data = Folder(real_data / "ahn3_delft.npz", "segmentation", features=["intensity"])
    assert data.classes == ["other/vegetation", "ground", "building", "water", "civil structure"]
    assert len(data) == 1
    assert len(data[0]) == 336_347
    assert torch.bincount(data[0].label).tolist() == [125_614, 82_998, 126_899, 235, 601]


def test_classes_are_counted_as_in_other_data(objects: Path, scenes: Path) -> None:
    (objects / "box").rename(objects.parent / "box")  # test data without a box
    data = Folder(objects, cache=False)
    assert (data.classes, data[0].label) == (["cloud"], 0)
    data.align(["ball", "box", "cloud"])
    assert (data.classes, data[0].label) == (["ball", "box", "cloud"], 2)

    raw = scene(30, 0)["label"]
    rooms = Folder(scenes, "segmentation", classes={3: "3", 0: "0"}, cache=False)
    rooms.align(["0", "2", "3"])
    assert rooms[0].label.tolist() == [{0: 0, 3: 2}.get(value, -1) for value in raw.tolist()]
    with pytest.raises(ValueError, match=r"scenes has the classes 2, which are none of the 2 known ones"):
        rooms.align(["0", "3"])
