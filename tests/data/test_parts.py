"""The part of the training data that is kept for validation."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pointvar.data import Folder, Shapes, divide, write_ply


@pytest.fixture
def objects(tmp_path: Path) -> Folder:
    for name, count in {"a": 20, "b": 3, "c": 1}.items():
        (tmp_path / name).mkdir()
        for index in range(count):
            write_ply(tmp_path / name / f"{index}.ply", np.random.default_rng(index).random((5, 3)))
    return Folder(tmp_path)


@pytest.fixture
def scenes(tmp_path: Path) -> Folder:
    for index in range(4):
        points = np.random.default_rng(index).random((50, 3)) * 10 + [85_000 + 10 * index, 447_000, -3]
        write_ply(tmp_path / f"tile_{index}.ply", points, label=np.arange(50) % 3)
    return Folder(tmp_path, "segmentation")


def names(data: object) -> set[str]:
    return {data[index].name for index in range(len(data))}  # type: ignore[index, arg-type]


def test_a_share_of_each_class(objects: Folder) -> None:
    train, validation = divide(objects, 0.1)
    counts = [sum(name[0] == c for name in names(validation)) for c in "abc"]
    assert counts == [2, 1, 0]  # a single file is trained on
    assert names(train) | names(validation) == names(objects)
    assert not names(train) & names(validation)
    assert names(divide(objects, 0.1)[1]) == names(validation)
    assert train.classes == validation.classes == ["a", "b", "c"]


def test_files_by_name(scenes: Folder) -> None:
    train, validation = divide(scenes, ["tile_2.ply", "*_3.*"])
    assert names(validation) == {"tile_2", "tile_3"}
    assert names(train) == {"tile_0", "tile_1"}
    with pytest.raises(ValueError, match=r"no file in .* is named tile_9.ply"):
        divide(scenes, ["tile_9.ply"])
    with pytest.raises(ValueError, match="takes all 4 samples: none is left"):
        divide(scenes, ["*.ply"])


def test_a_region_in_the_coordinates_of_the_files(scenes: Folder) -> None:
    train, validation = divide(scenes, {"min": [85_005, 447_000], "max": [85_020, 447_005]})
    assert names(train) == names(scenes)  # a part of each is left
    assert names(validation) == {"tile_0", "tile_1"}
    for index in range(4):
        whole = scenes[index]
        x, y = whole.points[:, 0] + 85_000 + 10 * index, whole.points[:, 1]
        inside = (x >= 85_005) & (x < 85_020) & (y < 5)
        assert torch.equal(train[index].points, whole.points[~inside])
        assert torch.equal(train[index].label, whole.label[~inside])
        if index < 2:
            assert torch.equal(validation[index].label, whole.label[inside])
    with pytest.raises(ValueError, match=r"no point of .* lies in the region .* all lie from \[85000"):
        divide(scenes, {"min": [0, 0], "max": [1, 1]})
    with pytest.raises(ValueError, match="every point of"):
        divide(scenes, {"min": [0, 0], "max": [1e6, 1e6]})


def test_what_cannot_be_divided(objects: Folder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not out of objects to classify"):
        divide(objects, {"min": [0, 0], "max": [1, 1]})
    with pytest.raises(ValueError, match="give a share"):
        divide(Shapes(4, "train"), ["a"])
    assert [len(part) for part in divide(Shapes(20, "train"), 0.25)] == [15, 5]
    one = tmp_path / "one.npz"
    np.savez(one, points=np.random.default_rng(0).random((20, 3)), label=np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"needs two files in .*one.npz or more: .* the region of a scene"):
        divide(Folder(one, "segmentation"), 0.1)
