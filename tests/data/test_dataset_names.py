"""The list of data sets: what settings make of each name, and how one from outside comes in."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from writers import scene, write_mesh, write_scene

from pointvar.data import DATASETS, PointData, Sample


def settings(name: str, **more: Any) -> SimpleNamespace:
    options = dict.fromkeys(("path", "variant", "scenes", "train_size", "test_size", "num_points"))
    rest = {"normals": False, "task": "classification", "columns": []}
    rest |= {"features": None, "classes": None, "ignore": [], "label": "label", "errors": "raise"}
    rest |= {"validation": None, "ground": 40.0}
    return SimpleNamespace(name=name, **(options | rest | more))


def made(name: str, split: str = "train", **more: Any) -> PointData:
    return DATASETS.resolve(name)(settings(name, **more), split)


def test_what_is_made_on_the_spot() -> None:
    assert [len(made("shapes", split)) for split in ("train", "test")] == [1000, 500]
    assert [len(made("rooms", split)) for split in ("train", "test")] == [50, 10]
    assert len(made("shapes", train_size=3, test_size=2)) == 3
    shapes = made("shapes", "test", train_size=3, test_size=2, num_points=7, normals=True)
    assert (len(shapes), shapes[1].points.shape, shapes.num_features) == (2, (7, 3), 3)
    assert shapes[1].name.endswith("_test_1")
    assert len(made("rooms", num_points=20)[0]) == 20


def test_what_is_read(tmp_path: Path) -> None:
    for path in ("mesh/bed/train/bed_1.off", "own/test/box/a.off"):
        (tmp_path / path).parent.mkdir(parents=True)
        write_mesh(tmp_path / path)
    assert made("modelnet", path=str(tmp_path / "mesh"), normals=True)[0].features.shape == (2048, 3)
    assert made("folder", "test", path=str(tmp_path / "own"))[0].name == "box/a"
    (tmp_path / "scenes" / "train").mkdir(parents=True)
    write_scene(tmp_path / "scenes" / "train" / "a.npz", scene(30))
    own = made("folder", path=str(tmp_path / "scenes"), task="segmentation", columns=["colors"])
    assert (own.task, own.num_features) == ("segmentation", 3)
    arrays = {"points": np.zeros((2, 5, 3)), "label": np.array([0, 1]), "name": np.array(["a", "b"])}
    np.savez(tmp_path / "a.npz", classes=["x", "y"], **{f"test_{key}": a for key, a in arrays.items()})
    assert [made("npz", "test", path=str(tmp_path / "a.npz"))[i].label for i in range(2)] == [0, 1]


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("shapes", "rooms")])
def test_a_missing_path_is_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match=f"data.path must say where the files of {name} are"):
        made(name, scenes={"train": "list.txt"})


def test_the_scenes_of_a_split_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.scenes must name the list of train scenes: \{train: FILE"):
        made("scannet", path=str(tmp_path), scenes={"test": "list.txt"})
    with pytest.raises(ValueError, match=r"variant must be one of OBJ, .*PB_T50_RS, got 'PB'"):
        made("scanobjectnn", path=str(tmp_path), variant="PB")


class Constant(PointData):
    task, num_features, classes = "classification", 1, ["only"]

    def __len__(self) -> int:
        return 4

    def load(self, index: int) -> Sample:
        return Sample(torch.zeros(5, 3), torch.ones(5, 1), 0, f"{index}")


def test_a_data_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    DATASETS.add("constant", lambda settings, split: Constant())
    assert made("constant")[3].name == "3"
    with pytest.raises(ValueError, match=r"no data set 'constnt' .did you mean 'constant'"):
        made("constnt")


@pytest.mark.parametrize("room", ["data", "models", "nn"])
def test_the_lists_can_be_read_without_torch(room: str) -> None:
    code = f"import sys, pointvar.{room}.names; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
