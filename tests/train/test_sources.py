"""Data of a run: which samples, how they are kept, and what is done to them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import one_cloud, room_data

from pointvar.data import DATASETS, PointData, Sample
from pointvar.data.transforms import Jitter, Mirror, NormalizeBox, PoissonDisk, Rotate, Scale, Subset
from pointvar.train import Data, DataConfig, load_data
from pointvar.train.build import augmentation, load_split, preparation, transform_of


class Counted(PointData):
    """Five clouds, and how often each was read."""

    task, classes, num_features = "classification", ["a", "b"], 1

    def __init__(self) -> None:
        self.read = [0] * 5

    def __len__(self) -> int:
        return 5

    def load(self, index: int) -> Sample:
        self.read[index] += 1
        return one_cloud(index % 2, index)


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counted]:
    made = {"train": Counted(), "test": Counted()}
    monkeypatch.setattr(
        DATASETS, "_entries", {**DATASETS._entries, "counted": lambda config, split: made[split]}
    )
    return made


@pytest.mark.parametrize(("cache", "times"), [(True, 1), (False, 2)])
def test_samples_are_kept_if_asked_for(cache: bool, times: int, splits: dict[str, Counted]) -> None:
    data = load_data(DataConfig(name="counted", train_size=3, cache=cache))
    for _ in range(2):
        assert [sample.label for sample in data.train] == [0, 1, 0]
    assert splits["train"].read == [times] * 3 + [0, 0]
    assert splits["test"].read == [0] * 5
    assert torch.equal(data.train[2].points, one_cloud(0, 2).points)


def test_sizes(splits: dict[str, Counted]) -> None:
    data = load_data(DataConfig(name="counted", train_size=5, test_size=2))
    assert (len(data.train), len(data.test)) == (5, 2)
    assert len(load_data(DataConfig(name="counted")).test) == 5
    with pytest.raises(ValueError, match="6 test samples were asked for, counted has 5"):
        load_split(DataConfig(name="counted", train_size=3, test_size=6), "test")


def test_a_list_of_samples_is_a_data_set() -> None:
    samples = [one_cloud(0, 0), one_cloud(1, 1)]
    data = Data(samples, room_data().train, ["a", "b"], 1)
    assert isinstance(data.train, PointData)
    assert (data.train.classes, data.train.num_features, data.train.task) == (["a", "b"], 1, "classification")
    assert [sample is other for sample, other in zip(data.train, samples, strict=True)] == [True, True]
    assert data.test.classes == ["floor", "wall", "nothing"]  # it is one already
    samples[0] = samples[1]
    assert data.train[0] is samples[1]  # what is in memory is not kept twice


@pytest.mark.parametrize(("train", "test"), [(0, 2), (2, 0)])
def test_both_must_have_samples(train: int, test: int) -> None:
    samples = [one_cloud(0, 0)]
    with pytest.raises(
        ValueError, match=f"to train and to test on, got {train} samples to train and {test} samples to test"
    ):
        Data(samples * train, samples * test, ["a"], 1)


def test_a_class_without_files_to_test(tmp_path: Path) -> None:
    for split, names in (("train", ["apple", "pear", "plum"]), ("test", ["plum"])):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "one.xyz").write_text("0 0 0\n1 1 1\n")
    data = load_data(DataConfig(name="folder", path=str(tmp_path)))
    assert data.classes == data.test.classes == ["apple", "pear", "plum"]
    assert data.test[0].label == 2
    assert load_split(DataConfig(name="folder", path=str(tmp_path)), "test").classes == ["plum"]


@pytest.mark.parametrize(
    ("change", "task", "expected"),
    [
        ({}, "classification", [NormalizeBox]),
        ({"box": False}, "classification", []),
        ({}, "segmentation", []),
        ({"poisson": 0.1}, "segmentation", [PoissonDisk(0.1)]),
        ({"poisson": 0.1, "num_points": 9}, "classification", [NormalizeBox, PoissonDisk(0.1)]),
        ({"num_points": 9, "name": "modelnet"}, "classification", [NormalizeBox, Subset(9)]),
        ({"num_points": 9, "name": "rooms"}, "segmentation", []),
    ],
)
def test_what_is_done_to_every_cloud(change: dict[str, Any], task: Any, expected: list[Any]) -> None:
    """Shapes are made with as many points as asked for, and rooms are cut into spheres."""
    steps = preparation(DataConfig(**change), task)
    assert [type(s) if type(s) is NormalizeBox else s for s in steps] == expected


NORMALS = [slice(0, 3)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [Rotate(2, math.pi, []), Scale(0.9, 1.1, [])]),
        ({"rotate": False, "scale": 0.0}, []),
        ({"rotate": False, "scale": 0.3}, [Scale(0.7, 1.3, [])]),
        ({"scale": 0.0, "up": "y", "normals": True}, [Rotate(1, math.pi, NORMALS)]),
        ({"rotate": False, "normals": True}, [Scale(0.9, 1.1, NORMALS)]),
        ({"rotate": False, "scale": 0.0, "mirror": True, "up": "x"}, [Mirror([1, 2], [])]),
        (
            {"rotate": False, "scale": 0.0, "mirror": True, "normals": True, "jitter": 0.5},
            [Mirror([0, 1], NORMALS), Jitter(0.5)],
        ),
    ],
)
def test_what_is_random(change: dict[str, Any], expected: list[Any]) -> None:
    config = DataConfig(**change)
    assert augmentation(config) == expected
    for augment in (True, False):
        steps = transform_of(replace(config, poisson=0.1), "segmentation", augment).transforms  # type: ignore[attr-defined]
        assert list(steps) == [PoissonDisk(0.1), *(expected if augment else [])]
