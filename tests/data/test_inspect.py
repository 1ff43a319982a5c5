"""What is found in folders whose files are known."""

from pathlib import Path

import laspy
import numpy as np
import pytest
from writers import scene, write_mesh, write_scene

from pointvar.data import BadFileError, inspect, inspect_folder, lidar, write_ply


def grid(count: int, spacing: float, offset: float = 0.0) -> np.ndarray:
    """A flat square grid of ``count`` times ``count`` points."""
    places = np.arange(count) * spacing + offset
    return np.stack([*np.meshgrid(places, places), np.zeros((count, count))], -1).reshape(-1, 3)


def write_tile(path: Path, points: np.ndarray, label: np.ndarray, **columns: np.ndarray) -> None:
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales, header.offsets = [0.001] * 3, np.floor(points.min(0))
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = points.T
    cloud.classification = label.astype(np.uint8)
    for name, values in columns.items():
        setattr(cloud, name, values)
    cloud.write(str(path))


def told(found: inspect.Inspection, text: str) -> bool:
    return any(text in sentence for sentence in found.suspicious)


def test_scenes_in_las(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    points = grid(50, 0.5, 85_000)
    label = np.where(points[:, 0] < points[:, 0].mean(), 2, 6)
    for name in ("a.laz", "b.las"):
        write_tile(tmp_path / name, points, label, intensity=random.integers(0, 60_000, 2500))
    write_tile(tmp_path / "bare.laz", points, np.ones(2500))
    (tmp_path / "broken.laz").write_bytes(b"LASF")
    (tmp_path / "notes.md").write_text("not a cloud")
    found = inspect_folder(tmp_path)
    assert (found.task, found.label, found.splits) == ("segmentation", "label", False)
    assert found.files == ["a.laz", "b.las", "bare.laz", "broken.laz"]
    assert found.formats == {"laz": 3, "las": 1}
    assert found.points == 7500
    assert found.classes == {1: "unclassified", 2: "ground", 6: "building"}
    assert found.counts == {1: 2500, 2: 2500, 6: 2500}
    assert found.spacing == pytest.approx(0.5, rel=1e-3)
    assert list(found.bad) == ["broken.laz"]
    assert told(found, f"Left out: {tmp_path / 'broken.laz'}: cannot be read as laz")
    assert told(found, "bare.laz has no labels")
    assert told(found, "Coordinates reach 85,02")
    assert told(found, "intensity is not scaled")
    assert told(found, "return_number is 0 everywhere")
    np.testing.assert_allclose(found.low, [85_000, 85_000, 0])
    np.testing.assert_allclose(found.high, [85_024.5, 85_024.5, 0])


def test_the_sphere_holds_the_points_that_were_asked_for(tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(0, 100, (40_000, 3)) * [1, 1, 0]
    write_ply(tmp_path / "flat.ply", points, label=points[:, 0] > 50)
    radius = inspect_folder(tmp_path, sphere=400).sphere  # 4 points in each unit of the area
    assert radius == pytest.approx((400 / 4 / np.pi) ** 0.5, rel=0.1)
    whole = inspect_folder(tmp_path, sphere=10**6).sphere
    assert 70 < whole < 150


def test_columns_are_those_of_the_files(tmp_path: Path) -> None:
    for kind in ("csv", "ply", "npz"):
        (tmp_path / kind).mkdir()
        write_scene(tmp_path / kind / f"scene.{kind}", scene())
        found = inspect_folder(tmp_path / kind)
        assert found.task == "segmentation"
        colors, data = found.columns["colors"], scene()
        assert colors.files == 1
        scale = 1 if kind == "csv" else 255  # text does not say that these are bytes
        assert colors.mean * scale == pytest.approx(data["colors"].mean())
        assert colors.deviation * scale == pytest.approx(data["colors"].std())
        assert found.counts == dict(enumerate(np.bincount(data["label"]).tolist()))
        assert list(found.classes.values()) == ["class 0", "class 1", "class 2", "class 3"]


def test_columns_that_hold_nan_are_told(tmp_path: Path) -> None:
    values = np.where(np.arange(400) < 3, np.nan, 0.5)
    np.savez(tmp_path / "a.npz", xyz=grid(20, 1.0), intensity=values, label=np.arange(400) % 2)
    found = inspect_folder(tmp_path)
    assert found.columns["intensity"].missing == 3
    assert told(found, "intensity has 3 values that are NaN or infinite")


def test_points_that_are_not_finite_make_a_bad_file(tmp_path: Path) -> None:
    points = grid(20, 1.0)
    np.savez(tmp_path / "good.npz", xyz=points, label=np.arange(400) % 2)
    points[7] = np.nan
    np.savez(tmp_path / "bad.npz", xyz=points, label=np.arange(400) % 2)
    found = inspect_folder(tmp_path)
    assert list(found.bad) == ["bad.npz"]
    assert "1 of 400 points are not finite" in found.bad["bad.npz"]


def test_duplicates_and_one_class(tmp_path: Path) -> None:
    points = np.concatenate([grid(20, 1.0)] * 2)
    np.savez(tmp_path / "a.npz", xyz=points, label=np.zeros(800, int))
    found = inspect_folder(tmp_path)
    assert told(found, "100.0% of the points lie where another point is")
    assert told(found, "one class only (class 0)")


def test_rare_classes_degrees_and_odd_spacing(tmp_path: Path) -> None:
    label = np.where(np.arange(2500) == 0, 3, 0)
    for number in range(3):
        points = grid(50, 1e-5, 4.0) + np.arange(2500)[:, None] % 30 * [0, 0, 1.0]
        np.savez(tmp_path / f"{number}.npz", xyz=points, label=label if number == 0 else 0 * label)
    found = inspect_folder(tmp_path)
    assert told(found, "The class class 3 is rare: 1 of 7,500 points.")
    assert told(found, "The class class 3 is in one file only: 0.npz.")
    assert told(found, "degrees")
    for number in range(3):
        spacing = 10.0 if number == 0 else 1.0
        np.savez(tmp_path / f"{number}.npz", xyz=grid(50, spacing), label=np.arange(2500) % 2)
    found = inspect_folder(tmp_path)
    assert told(found, "0.npz has another spacing")
    assert not told(found, "degrees")


@pytest.mark.parametrize("splits", [False, True])
def test_a_folder_per_class(tmp_path: Path, splits: bool) -> None:
    random = np.random.default_rng(0)
    for part in ("train", "test") if splits else ("",):
        for name in ("box", "ball"):
            (tmp_path / part / name).mkdir(parents=True)
        for number in range(6):
            write_mesh(tmp_path / part / "box" / f"{number}.off", (1, 2, 3 + number))
            points = random.normal(size=(4000, 3))
            points /= np.linalg.norm(points, axis=1, keepdims=True)
            write_ply(tmp_path / part / "ball" / f"{number}.ply", 100 * points)
    found = inspect_folder(tmp_path)
    assert (found.task, found.label, found.splits) == ("classification", None, splits)
    assert found.classes == {0: "ball", 1: "box"}
    assert found.counts == ({0: 12, 1: 12} if splits else {0: 6, 1: 6})
    assert found.suspicious == []
    # Random points on spheres of radius 1, in the units of the box: their nearest neighbours are half as far
    # as on a grid of that density.
    balls = [file.distances for file in found.read if "ball" in file.name]
    assert np.mean(balls) == pytest.approx((4 * np.pi / 1024) ** 0.5 / 2, rel=0.05)


def test_objects_in_las_are_no_scenes(tmp_path: Path) -> None:
    for name in ("mast", "tree"):
        (tmp_path / name).mkdir()
        write_tile(tmp_path / name / "1.laz", grid(20, 0.1), np.ones(400))
    found = inspect_folder(tmp_path)
    assert found.task == "classification"
    assert told(found, "mast, tree have fewer than 5 files")
    assert inspect_folder(tmp_path, task="segmentation").task == "segmentation"


def test_columns_of_labels_by_other_names(tmp_path: Path) -> None:
    columns = {"scalar_Classification": np.arange(400) % 3, "other": np.arange(400) % 5}
    write_ply(tmp_path / "a.ply", grid(20, 1.0), **columns)
    found = inspect_folder(tmp_path)
    assert found.label == "scalar_classification"
    assert len(found.classes) == 3
    assert len(inspect_folder(tmp_path, label="other").classes) == 5
    with pytest.raises(BadFileError, match="no file has a label per point named 'nothing'; there are scalar"):
        inspect_folder(tmp_path, label="nothing")


def test_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is missing"):
        inspect_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no file of a known format"):
        inspect_folder(tmp_path)
    (tmp_path / "a.ply").write_text("nothing")
    with pytest.raises(BadFileError, match="none of the 1 files can be read"):
        inspect_folder(tmp_path)
    with pytest.raises(ValueError, match="task must be one of"):
        inspect_folder(tmp_path, task="detection")  # type: ignore[arg-type]


def test_large_folders_are_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        write_tile(tmp_path / f"{number:02}.laz", grid(20, 1.0), np.arange(400) % 2 + 1)
    monkeypatch.setattr(inspect, "MOST_FILES", 5)
    found = inspect_folder(tmp_path)
    assert len(found.read) == 5
    assert {"00.laz", "11.laz"} <= {file.name for file in found.read}
    assert found.points == 4800  # from the headers
    assert told(found, "7 of 12 files were not read")
    monkeypatch.setattr(inspect, "MOST_POINTS", 500)
    assert len(inspect_folder(tmp_path).read) == 2


WKT = 'PROJCS["a",GEOGCS["b",UNIT["degree",0.017]],UNIT["{}",1]]'


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (WKT.format("metre"), "metre"),
        (WKT.format("US survey foot"), "US survey foot"),
        ('GEOGCS["b",UNIT["degree",0.017]]', "degree"),
    ],
)
def test_units_are_those_of_the_coordinate_system(tmp_path: Path, text: str, unit: str) -> None:
    write_tile(tmp_path / "a.las", grid(20, 1.0), np.arange(400) % 2 + 1)
    cloud = laspy.read(tmp_path / "a.las")
    cloud.header.vlrs.append(laspy.vlrs.known.WktCoordinateSystemVlr(text))
    cloud.write(str(tmp_path / "a.las"))
    found = inspect_folder(tmp_path)
    assert found.unit == unit
    assert told(found, "degrees") == (unit == "degree")


def test_large_files_are_read_in_squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).permutation(grid(300, 0.5, 1000))
    write_tile(tmp_path / "a.laz", points, np.where(points[:, 0] < 1050, 2, 6))
    whole = inspect_folder(tmp_path, sphere=100)
    monkeypatch.setattr(inspect, "LARGE", 10_000)
    monkeypatch.setattr(lidar, "SQUARE", 1000)
    part = inspect_folder(tmp_path, sphere=100)
    assert (whole.points, part.points) == (90_000, 90_000)  # as the header says
    assert 5_000 < sum(part.counts.values()) < 20_000
    assert part.spacing == pytest.approx(0.5, rel=1e-3)
    assert part.sphere == pytest.approx(whole.sphere, rel=0.2)
    assert part.counts[2] / sum(part.counts.values()) == pytest.approx(1 / 3, abs=0.1)
