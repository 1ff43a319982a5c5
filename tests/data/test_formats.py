"""Every format is read back as it was written, and a broken file is named."""

import sys
from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData, PlyElement
from writers import scene, write_mesh, write_scene

from pointvar.data import BadFileError, read_points, write_ply

CLOUDS = [
    "a.ply",
    "ascii.ply",
    "a.npy",
    "a.npz",
    "a.h5",
    "a.hdf5",
    "a.csv",
    "a.txt",
    "a.xyz",
    "a.las",
    "a.laz",
]
MESHES = ["a.off", "a.obj", "a.stl", "a.ply"]
UNNAMED = ["x", "y", "z", "red", "green", "blue", "label"]


@pytest.mark.parametrize("name", CLOUDS)
def test_clouds_come_back(name: str, tmp_path: Path) -> None:
    data = scene()
    write_scene(tmp_path / name, data)
    unnamed = name.split(".")[1] in ("npy", "txt", "xyz")
    found = read_points(tmp_path / name, columns=UNNAMED if unnamed else None)
    assert np.array_equal(found["points"], data["points"])
    assert np.array_equal(found["label"], data["label"])
    integers = found["colors"].max() > 1  # a table of floats does not say what its columns mean
    assert np.allclose(found["colors"] * (1 if integers else 255), data["colors"])
    assert integers == (unnamed or name == "a.csv")


@pytest.mark.parametrize("name", MESHES)
def test_meshes_come_back(name: str, tmp_path: Path) -> None:
    write_mesh(tmp_path / name)
    found = read_points(tmp_path / name)
    assert found["points"].min(0) == pytest.approx([-0.5, -1, -1.5])
    assert found["points"].max(0) == pytest.approx([0.5, 1, 1.5])
    corner = found["points"][found["faces"]]
    area = (
        np.linalg.norm(np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]), axis=1).sum() / 2
    )
    assert area == pytest.approx(2 * (2 + 3 + 6))


@pytest.mark.parametrize(
    "text",
    [
        "OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n",
        "OFF4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n",  # ModelNet's flaw
        "OFF 4 1 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n4 0 1 2 3\n",
        "# made by hand\nOFF\n\n4 1 0 # counts\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n4 0 1 2 3 255 0 0\n",
    ],
)
def test_ways_to_write_off(text: str, tmp_path: Path) -> None:
    path = tmp_path / "square.off"
    path.write_text(text)
    found = read_points(path)
    assert found["points"].tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    assert found["faces"].tolist() == [[0, 1, 2], [0, 2, 3]]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1 2 3\n4 5 6\n", {"points"}),
        ("1 2 3 7\n4 5 6 8\n", {"points", "column3"}),
        ("x,y,z,class\n1,2,3,7\n4,5,6,8\n", {"points", "label"}),
        ("# X Y Z Classification\n1 2 3 7\n4 5 6 8\n", {"points", "label"}),
        ("//x;y;z;nx;ny;nz\n1;2;3;0;0;1\n4;5;6;0;1;0\n", {"points", "normals"}),
    ],
)
def test_ways_to_write_text(text: str, names: set[str], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    found = read_points(path)
    assert set(found) == names
    assert found["points"].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", [*CLOUDS, "b.off", "b.obj", "b.stl"])
@pytest.mark.parametrize("how", ["empty", "half", "noise"])
def test_a_broken_file_is_named(name: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_mesh(path) if name.startswith("b") else write_scene(path, scene(400))
    content = path.read_bytes()
    if name in ("b.obj",) and how == "half":
        content = content[: content.index(b"\nf ") + 5]  # OBJ has no counts: only a broken line can be seen
    half = content[: len(content) // 2].rstrip()
    if path.suffix in (".txt", ".xyz", ".csv"):
        half = half.rpartition(b"\n")[0] + b"\n1 2"  # text has no counts either
    noise = np.random.default_rng(0).bytes(len(content))
    path.write_bytes({"empty": b"", "half": half, "noise": noise}[how])
    with pytest.raises(BadFileError, match=path.name):
        read_points(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"label": np.zeros(3)}, "no coordinates; found label"),
        ({"points": np.zeros((0, 3))}, "N > 0"),
        ({"points": np.zeros((4, 2))}, r"\[4, 2\]"),
        ({"data": np.zeros((5, 9, 3))}, r"it holds 5 clouds \[9, 3\]: write each to a file of its own"),
        ({"points": np.full((4, 3), np.nan)}, "4 of 4 points are not finite"),
        ({"points": np.zeros((4, 3)), "faces": np.array([[0, 1, 4]])}, "corner 4"),
        ({"points": np.array([["a", "b", "c"]])}, "numbers"),
    ],
)
def test_a_file_without_usable_points(arrays: dict, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(BadFileError, match=f"odd.npz.*{message}"):
        read_points(tmp_path / "odd.npz")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", points=np.array([object()], dtype=object))
    with pytest.raises(BadFileError, match=r"evil\.npz"):
        read_points(tmp_path / "evil.npz")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("a.ply", "plyfile", "data"),
        ("a.h5", "h5py", "data"),
        ("b.stl", "trimesh", "data"),
        ("a.laz", "laspy", "lidar"),
    ],
)
def test_a_missing_library_says_how_to_get_it(
    name: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mesh(tmp_path / name) if name.startswith("b") else write_scene(tmp_path / name, scene())
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}: pip install 'pointvar\[{extra}\]'"):
        read_points(tmp_path / name)


def test_unknown_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"unknown format '.doc'.*\.ply"):
        read_points(tmp_path / "a.doc")
    with pytest.raises(FileNotFoundError, match=r"a\.ply: there is no such file"):
        read_points(tmp_path / "a.ply")
    (tmp_path / "a.txt").write_text("1 2 3 4\n")
    with pytest.raises(BadFileError, match=r"3 columns expected .* the file has 4"):
        read_points(tmp_path / "a.txt", columns=["x", "y", "z"])


@pytest.mark.parametrize("text", [True, False])
def test_polygons_of_a_ply_become_triangles(text: bool, tmp_path: Path) -> None:
    vertex = np.array([(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0)], dtype=[(n, "f4") for n in "xyz"])
    face = np.empty(1, dtype=[("vertex_indices", "i4", (4,))])
    face["vertex_indices"] = [[0, 1, 2, 3]]
    elements = [PlyElement.describe(vertex, "vertex"), PlyElement.describe(face, "face")]
    PlyData(elements, text=text).write(str(tmp_path / "a.ply"))
    assert read_points(tmp_path / "a.ply")["faces"].tolist() == [[0, 1, 2], [0, 2, 3]]


def test_predictions_are_written(tmp_path: Path) -> None:
    data = scene()
    path = tmp_path / "out.ply"
    confidence = np.linspace(0, 1, 40)
    write_ply(path, data["points"], colors=data["colors"] / 255, label=data["label"], confidence=confidence)
    found = read_points(path)
    assert np.array_equal(found["points"], data["points"])
    assert np.allclose(found["colors"] * 255, data["colors"])
    assert np.array_equal(found["label"], data["label"])
    assert np.array_equal(found["confidence"], confidence)
    write_ply(path, np.zeros((1, 3)))  # over the file that was read
    assert np.array_equal(found["points"], data["points"])
    with pytest.raises(ValueError, match=r"'label' must have shape \[40\], got \[3\]"):
        write_ply(path, data["points"], label=np.zeros(3))
    with pytest.raises(ValueError, match=r"\[N, 3\]"):
        write_ply(path, np.zeros((4, 2)))
    with pytest.raises(ValueError, match="32 bits"):
        write_ply(path, np.zeros((1, 3)), label=np.array([2**40]))
