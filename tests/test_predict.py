"""pointvar predict: copies of files with classes, tiles that agree, and what happens to many files."""

import csv
import json
import os
import re
import shlex
import shutil
from dataclasses import asdict
from glob import glob
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest
import torch
import trimesh
from plyfile import PlyData
from survey_cases import CODES, CRS, chosen, landscape, write_copc, write_las, write_network

from pointvar import atomic
from pointvar.cli import main
from pointvar.commands import predict as command
from pointvar.commands import workers
from pointvar.data import Folder, read_points, write_ply
from pointvar.data.folder import from_settings
from pointvar.data.survey import Survey
from pointvar.models import load, read_notes
from pointvar.train import DataConfig

WHOLE = landscape()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("network") / "net.safetensors")


@pytest.fixture(scope="module")
def labelled(network: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The classes of the whole landscape, from one file."""
    folder = tmp_path_factory.mktemp("whole")
    write_las(folder / "whole.las", WHOLE)
    assert run(network, [folder / "whole.las"], folder / "out") == 0
    return np.array(laspy.read(folder / "out/whole.las").classification)


def run(network: Path, files: list[Path], output: Path, *options: str) -> int:
    return main(["predict", str(network), *map(str, files), f"--output={output}", "--device=cpu", *options])


def left_and_right(folder: Path, overlap: float = 0.0, kind: str = "laz") -> tuple[list[Path], list[Any]]:
    """The landscape in two tiles, in other orders than that of the whole."""
    x = WHOLE["points"][:, 0] - WHOLE["points"][:, 0].min()
    random, files, places = np.random.default_rng(1), [], []
    folder.mkdir(exist_ok=True)
    for name, inside in {"left": x < 20 + overlap, "right": x >= 20 - overlap}.items():
        place = random.permutation(np.flatnonzero(inside))
        files.append(folder / f"{name}.{kind}")
        write_las(files[-1], chosen(WHOLE, place), offset=7.0 if name == "right" else 0.0)
        places.append(place)
    return files, places


# One file


@pytest.mark.parametrize(
    ("kind", "version", "point_format"), [("las", "1.2", 1), ("laz", "1.2", 1), ("laz", "1.4", 6)]
)
@pytest.mark.parametrize("probability", [False, True])
def test_all_but_the_class_stays(
    kind: str, version: str, point_format: int, probability: bool, network: Path, tmp_path: Path
) -> None:
    source = tmp_path / f"tile.{kind}"
    write_las(source, chosen(WHOLE, slice(0, 400)), version, point_format)
    options = ["--probability"] if probability else []
    assert run(network, [source], tmp_path / "out", *options) == 0
    before, after = laspy.read(source), laspy.read(tmp_path / "out" / source.name)
    for name in before.point_format.dimension_names:
        if name != "classification":
            np.testing.assert_array_equal(np.array(before[name]), np.array(after[name]), name)
    assert set(np.unique(after.classification)) <= set(CODES)
    names = list(before.point_format.dimension_names) + (["confidence"] if probability else [])
    assert list(after.point_format.dimension_names) == names
    if probability:
        share = np.array(after.confidence)
        assert ((share > 1 / 3 - 1e-6) & (share <= 1)).all()
    for name in ("scales", "offsets", "mins", "maxs", "point_count", "number_of_points_by_return"):
        np.testing.assert_array_equal(getattr(before.header, name), getattr(after.header, name), name)
    for name in ("version", "uuid", "creation_date", "system_identifier", "generating_software"):
        assert getattr(before.header, name) == getattr(after.header, name), name
    assert before.header.global_encoding.value == after.header.global_encoding.value
    assert before.header.are_points_compressed == after.header.are_points_compressed
    kept = [record.record_data_bytes() for record in after.vlrs if record.user_id == "LASF_Projection"]
    assert kept == [CRS.rstrip(b"\0")] or kept == [CRS]
    if version == "1.4":
        assert [record.record_data_bytes() for record in after.header.evlrs] == [b"kept"]


def test_formats_say_the_same(network: Path, labelled: np.ndarray, tmp_path: Path) -> None:
    """The same points give the same classes, in whichever format; their own columns stay."""
    points, intensity = WHOLE["points"], WHOLE["intensity"]
    extra = np.arange(len(points), dtype=np.float32)
    colors = np.zeros((len(points), 3), np.uint8) + 7
    write_ply(tmp_path / "a.ply", points, intensity=intensity, classification=extra, weight=extra)
    write_ply(tmp_path / "b.ply", points, intensity=intensity, colors=colors)
    np.savez(tmp_path / "c.npz", xyz=points, Intensity=intensity, labels=extra, other=np.ones(3))
    header = "x,y,z,intensity,weight"
    table = np.column_stack([points, intensity, extra])
    np.savetxt(tmp_path / "d.csv", table, "%.3f", ",", header=header, comments="")
    files = [tmp_path / name for name in ("a.ply", "b.ply", "c.npz", "d.csv")]
    out = tmp_path / "out"
    assert run(network, files, out) == 0
    for name, label in {"a.ply": "classification", "b.ply": "label", "d.ply": "label"}.items():
        vertex = PlyData.read(out / name)["vertex"]
        np.testing.assert_array_equal(vertex[label], labelled, name)
        np.testing.assert_array_equal(np.stack([vertex[c] for c in "xyz"], 1), points)
        assert np.array(vertex["confidence"]).min() > 0.3
        assert ("weight" in vertex) == (name != "b.ply")
        if name == "b.ply":
            np.testing.assert_array_equal(vertex["red"], colors[:, 0])
        else:
            assert len(np.unique(vertex["red"])) == len(np.unique(labelled))
    np.testing.assert_array_equal(PlyData.read(out / "a.ply")["vertex"]["weight"], extra)
    assert PlyData.read(out / "a.ply").comments == ["class 2 ground", "class 6 building", "class 9 water"]
    arrays = np.load(out / "c.npz")
    assert set(arrays) == {"xyz", "Intensity", "labels", "other", "confidence", "codes", "names"}
    np.testing.assert_array_equal(arrays["labels"], labelled)
    np.testing.assert_array_equal(arrays["xyz"], points)
    assert dict(zip(arrays["codes"].tolist(), arrays["names"].tolist(), strict=True))[6] == "building"
    assert (out / "classes.txt").read_text() == "2 ground\n6 building\n9 water\n"
    assert not (out / ".predicting").exists()


def test_faces_and_comments_of_a_mesh_stay(network: Path, tmp_path: Path) -> None:
    text = (
        "ply\nformat ascii 1.0\ncomment by hand\nelement vertex 3\nproperty float x\nproperty float y\n"
        "property float z\nproperty uchar intensity\nelement face 1\nproperty list uchar int vertex_indices\n"
        "end_header\n0 0 0 1\n1 0 0 2\n0 1 0 3\n3 0 1 2\n"
    )
    (tmp_path / "mesh.ply").write_text(text)
    assert run(network, [tmp_path / "mesh.ply"], tmp_path / "out") == 0
    content = PlyData.read(tmp_path / "out/mesh.ply")
    assert content.text
    assert content.comments[0] == "by hand"
    assert content["face"]["vertex_indices"][0].tolist() == [0, 1, 2]
    assert run(network, [tmp_path / "out/mesh.ply"], tmp_path / "again") == 0
    assert PlyData.read(tmp_path / "again/mesh.ply").comments == content.comments


def test_a_column_that_is_empty_is_told(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """LAS has an intensity in any case."""
    dark = chosen(WHOLE, slice(0, 100)) | {"intensity": np.zeros(100, np.uint16)}
    write_las(tmp_path / "dark.laz", dark)
    write_ply(tmp_path / "dark_too.ply", **dark)
    write_las(tmp_path / "light.laz", chosen(WHOLE, slice(0, 100)))
    write_las(tmp_path / "none.laz", chosen(WHOLE, slice(0, 0)))
    files = [tmp_path / name for name in ("dark.laz", "dark_too.ply", "light.laz", "none.laz")]
    assert run(network, files, tmp_path / "out") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "intensity" in line]
    text = "intensity is 0 everywhere, its median in training was 500: classes may be wrong"
    assert told == [f"{file}: {text}" for file in files[:2]]


def test_a_file_of_far_fewer_points_is_told(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thin = chosen(WHOLE, slice(0, None, 200))
    write_las(tmp_path / "thin.laz", thin)
    write_ply(tmp_path / "thin_too.ply", **thin)
    write_las(tmp_path / "one.laz", chosen(WHOLE, slice(0, 1)))
    files = [tmp_path / name for name in ("thin.laz", "thin_too.ply")]
    assert run(network, files, tmp_path / "out") == 0
    assert run(network, [tmp_path / "one.laz"], tmp_path / "out") == 0
    write_las(tmp_path / "dense.laz", WHOLE)
    assert run(network, [tmp_path / "dense.laz"], tmp_path / "out") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "apart" in line]
    text = f"the finest radius of the network is {min(load(network).radii):g}: classes may be wrong"
    assert [re.sub(r"lie \S+ apart", "lie apart", line) for line in told] == [
        f"{file}: points lie apart, {text}" for file in files
    ]


def test_classes_that_a_file_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pointvar.models import load, read_notes, save

    network = write_network(tmp_path / "net.safetensors")
    save(load(network), network, **read_notes(network) | {"codes": [2, 6, 40]})
    for version, kind, code in (("1.2", 1, 2), ("1.4", 6, 0)):
        write_las(tmp_path / "tile.las", chosen(WHOLE, slice(0, 30)), version, kind)
        assert run(network, [tmp_path / "tile.las"], tmp_path / "out") == code
    assert "its points hold classes from 0 to 31, the network has 40" in capsys.readouterr().err


def test_no_points(network: Path, tmp_path: Path) -> None:
    write_las(tmp_path / "none.laz", chosen(WHOLE, slice(0, 0)))
    assert run(network, [tmp_path / "none.laz"], tmp_path / "out", "--probability") == 0
    assert len(laspy.read(tmp_path / "out/none.laz").points) == 0


# Windows and tiles


@pytest.mark.parametrize("window", [1, 300])
def test_windows_do_not_matter(
    window: int, network: Path, labelled: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointvar.data.survey.Squares.windows.__defaults__", (window,))
    monkeypatch.setattr("pointvar.data.survey.BUFFER", 10_000)
    monkeypatch.setattr("pointvar.data.lidar.POINTS_AT_ONCE", 700)
    write_las(tmp_path / "whole.laz", WHOLE)
    assert run(network, [tmp_path / "whole.laz"], tmp_path / "out") == 0
    np.testing.assert_array_equal(laspy.read(tmp_path / "out/whole.laz").classification, labelled)


@pytest.mark.parametrize("overlap", [0.0, 2.0])
def test_tiles_agree(overlap: float, network: Path, labelled: np.ndarray, tmp_path: Path) -> None:
    """Each point of a tile has the class that it has in the whole, at the edges, too; so tiles agree."""
    files, places = left_and_right(tmp_path, overlap)
    assert run(network, files, tmp_path / "out") == 0
    for file, place in zip(files, places, strict=True):
        found = np.array(laspy.read(tmp_path / "out" / file.name).classification)
        np.testing.assert_array_equal(found, labelled[place])


@pytest.mark.parametrize("options", [["--halo=0"], ["alone"]])
def test_without_neighbours_edges_differ(
    options: list[str], network: Path, labelled: np.ndarray, tmp_path: Path
) -> None:
    files, places = left_and_right(tmp_path)
    alone = options == ["alone"]
    assert run(network, files[:1] if alone else files, tmp_path / "out", *([] if alone else options)) == 0
    found = np.array(laspy.read(tmp_path / "out/left.laz").classification)
    away = 20 - (WHOLE["points"][places[0], 0] - WHOLE["points"][:, 0].min())
    wrong = found != labelled[places[0]]
    assert wrong.any()
    assert away[wrong].max() < 10  # radius and context


def test_heights_of_tiles_agree(tmp_path: Path) -> None:
    """The ground is looked for in neighbours, too."""
    network = write_network(tmp_path / "net.safetensors", ("height",))
    from pointvar.models import load, read_notes, save

    features = {"names": ["height"], "shift": [0.0], "scale": [2.0], "ground": 8.0}
    save(load(network), network, **read_notes(network) | {"features": features})
    files, places = left_and_right(tmp_path / "tiles")
    write_las(tmp_path / "whole.las", WHOLE)
    assert run(network, [tmp_path / "whole.las"], tmp_path / "out", "--probability") == 0
    assert run(network, files, tmp_path / "out", "--probability") == 0
    whole = laspy.read(tmp_path / "out/whole.las")
    for file, place in zip(files, places, strict=True):
        found = laspy.read(tmp_path / "out" / file.name)
        np.testing.assert_array_equal(found.classification, np.array(whole.classification)[place])
        np.testing.assert_array_equal(found.confidence, np.array(whole.confidence)[place])


def test_copc_is_asked_for_what_is_near(
    network: Path, labelled: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, places = left_and_right(tmp_path)
    copc = tmp_path / "right.copc.laz"
    write_copc(copc, chosen(WHOLE, places[1]))
    read: list[Any] = []
    query = laspy.CopcReader.query
    monkeypatch.setattr(laspy.CopcReader, "query", lambda *args: read.append(args[1]) or query(*args))
    assert run(network, [files[0], copc], tmp_path / "out") == 0
    assert read
    for name, place in {"left.laz": places[0], "right.laz": places[1]}.items():
        result = laspy.read(tmp_path / "out" / name)
        np.testing.assert_array_equal(result.classification, labelled[place])
        assert not [record for record in (*result.vlrs, *result.header.evlrs) if record.user_id == "copc"]


def test_neighbours_by_their_headers(tmp_path: Path) -> None:
    write_las(tmp_path / "a.las", chosen(WHOLE, WHOLE["points"][:, 0] < 85_005))
    write_las(tmp_path / "b.las", chosen(WHOLE, WHOLE["points"][:, 0] > 85_012))
    (tmp_path / "c.las").write_bytes(b"LASF")
    files = [tmp_path / f"{name}.las" for name in "abc"]
    for halo, near in {6.0: [], 8.0: [files[1]]}.items():
        assert Survey(files, [], halo, tmp_path).neighbors(files[0]) == near
    assert Survey(files, [], 5.0, tmp_path, halo=8.0).neighbors(files[0]) == [files[1]]
    assert Survey(files, [], 8.0, tmp_path).neighbors(files[2]) == []


# Many files


def test_what_is_finished_is_skipped(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, _ = left_and_right(tmp_path)
    far = tmp_path / "far.laz"
    write_las(far, chosen(WHOLE | {"points": WHOLE["points"] + [500, 0, 0]}, slice(0, 50)))
    files.append(far)
    out, asked = tmp_path / "out", list[str]()

    def work(_: Any, file: Path, progress: Any) -> workers.Result:
        asked.append(file.name)
        shutil.copy(file, out)
        return workers.Result(str(file), [1, 2, 3])

    monkeypatch.setattr(workers.Worker, "__call__", work)

    def again(*options: str, model: Path = network) -> list[str]:
        asked.clear()
        assert run(model, files, out, *options) == 0
        return sorted(asked)

    every = ["far.laz", "left.laz", "right.laz"]
    assert again() == every
    assert "[3/3]" in capsys.readouterr().out
    assert again() == []
    assert "3 of 3 files are finished already" in capsys.readouterr().out
    (out / "left.laz").unlink()
    assert again() == ["left.laz"]
    (out / "far.laz").write_bytes(b"damaged")
    assert again() == ["far.laz"]
    os.utime(files[0])  # it may have been changed, and right.laz sees some of it
    assert again() == ["left.laz", "right.laz"]
    assert again("--seed=1") == every
    assert again("--seed=1") == []
    assert again(model=write_network(tmp_path / "other.safetensors", radius=2.0)) == every
    (out / ".predictions.jsonl").write_text("{")
    assert again() == every
    content = (out / ".predictions.jsonl").read_text()
    (out / ".predictions.jsonl").write_text(content[:-5])  # broken off in the last line
    assert len(again()) == 1
    assert again() == []


def test_the_record_grows_by_a_line_per_file(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of files do not write it anew thousands of times."""
    written: list[str] = []
    whole = atomic.write_atomically
    monkeypatch.setattr(
        atomic, "write_atomically", lambda path, *rest: written.append(path.name) or whole(path, *rest)
    )
    files, _ = left_and_right(tmp_path)
    assert run(network, files, tmp_path / "out") == 0
    assert written.count(".predictions.jsonl") == 1
    first, *lines = (tmp_path / "out/.predictions.jsonl").read_text().splitlines()
    assert json.loads(first)["seed"] == 0
    assert [json.loads(line)[0] for line in lines] == ["left.laz", "right.laz"]


def test_a_failed_tile_is_told_and_the_rest_goes_on(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, _ = left_and_right(tmp_path)
    broken = tmp_path / "broken.laz"
    broken.write_bytes(files[0].read_bytes()[:3000])
    plain = tmp_path / "plain.ply"
    write_ply(plain, WHOLE["points"])
    out = tmp_path / "out"
    assert run(network, [broken, plain, *files], out) == 2
    shown = capsys.readouterr().err
    assert "broken.laz: cannot be read as laz" in shown
    assert "plain.ply has no intensity" in shown
    assert "2 of 4 files failed" in shown
    assert sorted(path.name for path in out.iterdir()) == [
        ".predictions.jsonl",
        "classes.txt",
        "left.laz",
        "right.laz",
    ]
    _, *lines = (out / ".predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == ["left.laz", "right.laz"]


def test_a_neighbour_that_breaks_off_is_left_out(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its header is whole, its points are not."""
    files, _ = left_and_right(tmp_path)
    content = bytearray(files[1].read_bytes())
    (start,) = np.frombuffer(content[96:100], "<u4")
    content[start + 100 : start + 2000] = bytes(1900)
    files[1].write_bytes(content)
    assert run(network, files, tmp_path / "out") == 2
    shown = capsys.readouterr().err
    assert "left.laz: without a neighbour: " in shown
    assert (tmp_path / "out/left.laz").exists()


def dies_once(file: Path) -> Any:
    """In a worker process: ends it the first time that it gets a certain file."""
    import signal

    marker = file.with_suffix(".met")
    if file.stem == "left" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return workers._worker(file)


def test_a_worker_that_is_killed_is_replaced(
    network: Path, labelled: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, places = left_and_right(tmp_path)
    monkeypatch.setattr(workers, "_predict", dies_once)
    assert run(network, files, tmp_path / "out", "--workers=2") == 0
    for file, place in zip(files, places, strict=True):
        found = laspy.read(tmp_path / "out" / file.name).classification
        np.testing.assert_array_equal(found, labelled[place])


def test_what_would_be_overwritten(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, _ = left_and_right(tmp_path)
    before = files[0].read_bytes()
    assert run(network, files, tmp_path) == 2
    assert "left.laz would be written over" in capsys.readouterr().err
    assert files[0].read_bytes() == before
    (tmp_path / "other").mkdir()
    write_las(tmp_path / "other/left.laz", chosen(WHOLE, slice(0, 30)))
    assert run(network, [*files, tmp_path / "other/left.laz"], tmp_path / "out") == 2
    assert "would both be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [("--device=abacus", "--device=abacus cannot be used"), ("--halo=-1", "--halo must be 0 or more")]
    + [(f"--{name}=0", f"--{name} must be positive") for name in ("votes", "points", "workers")],
)
def test_bad_options(
    option: str, message: str, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_las(tmp_path / "a.las", chosen(WHOLE, slice(0, 30)))
    assert (
        main(["predict", str(network), str(tmp_path / "a.las"), f"--output={tmp_path / 'out'}", option]) == 2
    )
    assert message in capsys.readouterr().err


def test_read_back(network: Path, tmp_path: Path) -> None:
    """The report and the readers take what was written."""
    write_las(tmp_path / "a.laz", chosen(WHOLE, slice(0, 200)))
    assert run(network, [tmp_path / "a.laz"], tmp_path / "out", "--probability") == 0
    arrays = read_points(tmp_path / "out/a.laz")
    assert set(np.unique(arrays["label"])) <= set(CODES)
    assert main(["report", str(tmp_path / "out/a.laz"), f"--output={tmp_path / 'a.html'}"]) == 0
    assert "building" in (tmp_path / "a.html").read_text()


# Objects


def write_classifier(path: Path, features: tuple[str, ...] = ()) -> Path:
    import pointvar as pv

    config = DataConfig(name="folder", num_points=256, features=["one", *features])
    names = ["one", *features]
    model = pv.models.Classifier(
        1 + 3 * len(features),
        2,
        channels=(8, 8),
        head=8,
        radii=(0.2, 0.4),
        generator=generator(),
        dropout=0.0,
    )
    pv.models.save(
        model, path, task="classification", classes=['a "b", c', "d"], data=asdict(config),
        features={"names": names},
    )  # fmt: skip
    return path


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_meshes_are_sampled_as_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The corners of a box are no cloud of its surface."""
    network = write_classifier(tmp_path / "net.safetensors", ("normals",))
    (tmp_path / "box").mkdir()
    trimesh.creation.box((1, 2, 3)).export(tmp_path / "box/0.off")
    notes = read_notes(network)
    seen = command.read_sample(tmp_path / "box/0.off", notes)
    trained = Folder(tmp_path, "classification", ["one", "normals"], cache=False)[0]
    assert len(seen) == len(trained) == 2048
    np.testing.assert_allclose(seen.points, trained.points - trained.points.min(0).values, atol=1e-6)
    np.testing.assert_array_equal(seen.features, trained.features)
    notes["data"]["num_points"] = 3000
    assert len(command.read_sample(tmp_path / "box/0.off", notes)) == 3000
    config = DataConfig(name="folder", path=str(tmp_path), num_points=3000, validation=0.5, features=["one"])
    assert len(from_settings(config, "train")[0]) == 3000
    assert main(["predict", str(network), str(tmp_path / "box/0.off"), "--device=cpu"]) == 0
    assert "box/0.off" in capsys.readouterr().out


def test_an_object_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = write_classifier(tmp_path / "net.safetensors")
    (tmp_path / "a.ply").write_text("ply")
    write_ply(tmp_path / "b, c.ply", np.random.default_rng(0).random((300, 3)))
    files = [tmp_path / "a.ply", tmp_path / "b, c.ply"]
    assert run(network, files, tmp_path / "out") == 2
    shown = capsys.readouterr()
    assert "a.ply: cannot be read as ply" in shown.err
    assert "1 of 2 files failed" in shown.err
    with (tmp_path / "out/classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [str(files[1])]
    assert rows[0]["class"] in ('a "b", c', "d")
    assert run(network, files[:1], tmp_path / "out") == 2


def test_a_folder_stands_for_its_files(network: Path, tmp_path: Path) -> None:
    files, _ = left_and_right(tmp_path / "tiles")
    (tmp_path / "tiles/notes.txt.bak").write_text("no cloud")
    assert run(network, [tmp_path / "tiles"], tmp_path / "out") == 0
    assert run(network, files, tmp_path / "named") == 0
    for file in files:
        assert (tmp_path / "out" / file.name).read_bytes() == (tmp_path / "named" / file.name).read_bytes()


# The page


SETTINGS = """
data: {name: folder, path: tiles, task: segmentation, features: [one, intensity],
       classes: {2: ground, 6: building}, validation: 0.5, radius: 4.0, context: 6.0, crops: 4, batch_size: 2}
model: {network: unet, channels: [8, 8], radii: [0.6, 1.2]}
init: {batches: 1}
epochs: 1
threads: 1
logger: none
"""


def test_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of LAZ tiles becomes labelled LAZ tiles. What init writes is tested with it."""
    monkeypatch.chdir(tmp_path)
    high = WHOLE["points"][:, 2] > 1
    for folder in ("tiles", "survey"):
        files, places = left_and_right(tmp_path / folder)
        for file, place in zip(files, places, strict=True):
            cloud = laspy.read(file)
            cloud.classification = np.where(high[place], 6, 2) if folder == "tiles" else np.zeros(len(place))
            cloud.write(str(file))
    Path("mine.yaml").write_text(SETTINGS)
    page = (Path(__file__).parent.parent / "docs/predict.md").read_text("utf8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line) for line in "".join(blocks).splitlines()]
    assert [words[1] for words in commands] == ["init", "train", "predict", "predict"]
    for words in commands[1:]:
        given = [path for word in words[1:] for path in (sorted(glob(word)) if "*" in word else [word])]
        assert main(given) == 0
    for file in files:
        cloud = laspy.read(Path("labelled") / file.name)
        assert set(np.unique(cloud.classification)) <= {2, 6}
        np.testing.assert_array_equal(cloud.xyz, laspy.read(file).xyz)
