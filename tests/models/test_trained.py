"""The trained networks that come with the library: small, told about, and of use as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import pointvar as pv
from pointvar.cli import main
from pointvar.data import Sample, Shapes, collate, read_points, scaled_features, write_ply
from pointvar.data.transforms import NormalizeBox
from pointvar.models import locate, read_notes, trained
from pointvar.train import DataConfig, predict_scene

NAMES = trained()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_small_and_says_what_it_is(name: str) -> None:
    assert locate(name).stat().st_size <= 2_000_000
    notes = read_notes(name)
    assert {"title", "data", "terms", "input"} <= notes["about"].keys()
    assert notes["test"]["count"] > 400
    assert len(notes["classes"]) == len(notes["test"]["iou"]) > 2
    assert notes["data"]["path"] is None
    with safe_open(locate(name), "pt") as file:
        assert not re.search(r'"(/|[A-Z]:)', json.dumps(file.metadata()).replace("\\", ""))  # a path
        assert {file.get_tensor(key).dtype for key in file.keys()} <= {torch.float16, torch.int64}  # noqa: SIM118


@pytest.mark.parametrize("name", NAMES)
def test_a_name_takes_the_place_of_a_file(name: str) -> None:
    model = pv.load(name)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_name_that_is_none_is_an_error_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match=r"no trained network 'pointvar/aerail' \(did you mean 'pointvar/aerial'"
    ):
        pv.load("pointvar/aerail")
    with pytest.raises(ValueError, match=f"known are {', '.join(NAMES)}"):
        read_notes("pointvar/nothing")


def test_what_is_there_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pv.save(pv.models.PlainNet(2, 4, method="KPConvN"), "pointvar/aerial", mine=True)
    assert read_notes("pointvar/aerial") == {"mine": True}
    assert locate("runs/mine") == Path("runs/mine")
    assert locate("pointvar/a/b") == Path("pointvar/a/b")


def test_the_classifier_knows_tables_of_another_kind() -> None:
    """Those of the built-in shapes, which it was not trained on."""
    model, classes = pv.load("pointvar/modelnet10"), read_notes("pointvar/modelnet10")["classes"]
    shapes = Shapes(200, "test", 1024, partial=False)
    tables = [i for i in range(len(shapes)) if i % len(shapes.classes) == shapes.classes.index("table")]
    batch = collate([NormalizeBox()(shapes[i], torch.Generator().manual_seed(0)) for i in tables])
    with torch.no_grad():
        found = model(torch.ones(batch.cloud.num_points, 1), model.hierarchy(batch.cloud)).argmax(1)
    assert [classes[i] for i in found].count("table") >= 0.8 * len(tables)


def village() -> tuple[np.ndarray, np.ndarray]:
    """A scan of flat ground with a house and a tree in Dutch coordinates, and the codes of its points."""
    random = np.random.default_rng(0)
    ground = random.random((4000, 3)) * [40, 40, 0.05]
    house = random.random((700, 3)) * [12, 9, 0.1] + [5, 6, 6]
    ground = ground[~((ground[:, :2] >= [5, 6]) & (ground[:, :2] <= [17, 15])).all(1)]
    tree = random.normal(size=(900, 3)) * [1.8, 1.8, 1.5] + [29, 27, 6]
    parts = {2: ground, 6: house, 1: tree}
    codes = np.concatenate([np.full(len(part), code) for code, part in parts.items()])
    corner = np.array([84_000.0, 447_000.0, 1.0])
    return np.concatenate(list(parts.values())) + corner, codes


def test_the_aerial_network_knows_a_house_from_a_tree_and_the_ground() -> None:
    points, codes = village()
    model, notes = pv.load("pointvar/aerial"), read_notes("pointvar/aerial")
    features = torch.from_numpy(scaled_features({"points": points}, notes["features"]))
    scene = Sample(torch.from_numpy(points - points.min(0)).float(), features, -1)
    found, _ = predict_scene(model, scene, DataConfig(**notes["data"]))
    predicted = np.array(notes["codes"])[found.numpy()]
    for code in (1, 2, 6):
        assert (predicted[codes == code] == code).mean() > 0.8, code


def test_a_scan_is_labelled_by_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user calls it: the codes of the file's own standard come out."""
    points, codes = village()
    write_ply(file := tmp_path / "village.ply", points)
    assert main(["predict", "pointvar/aerial", str(file), "--output", str(tmp_path / "out")]) == 0
    found = read_points(tmp_path / "out" / "village.ply")
    assert (found["label"] == codes).mean() > 0.85
    assert "6 building" in (tmp_path / "out" / "classes.txt").read_text()
    assert "building" in capsys.readouterr().out
    assert main(["predict", "pointvar/ariel", str(file)]) == 2
    assert f"known are {', '.join(NAMES)}" in capsys.readouterr().err
