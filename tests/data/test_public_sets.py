"""ScanObjectNN, ModelNet and ScanNet in every layout they come in."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from plyfile import PlyData, PlyElement
from writers import write_mesh

from pointvar.data import BadFileError, ModelNet, ScanNet, ScanObjectNN
from pointvar.data.scanobjectnn import VARIANTS

RANDOM = np.random.default_rng(0)


def write_h5(path: Path, count: int, num_points: int = 64, classes: int = 15) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = RANDOM.normal(size=(count, num_points, 3)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["data"], file["label"] = data, (np.arange(count) % classes).astype(np.uint8)[:, None]
    return data


# ScanObjectNN


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
def test_scanobjectnn(variant: str, background: bool, split: str, tmp_path: Path) -> None:
    folder = tmp_path / ("main_split" if background else "main_split_nobg")
    name = {"train": "training", "test": "test"}[split] + "_objectdataset" + VARIANTS[variant] + ".h5"
    wanted = write_h5(folder / name, 16)
    data = ScanObjectNN(tmp_path, split, variant, background, num_points=32)
    assert (len(data), len(data.classes), data.num_features, data.task) == (16, 15, 1, "classification")
    assert np.array_equal(data[3].points, wanted[3, :32])
    assert [data[i].label for i in range(16)] == [*range(15), 0]
    assert torch.equal(data[0].features, torch.ones(32, 1))


def test_scanobjectnn_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)training_objectdataset.h5 is missing.*hkust.*terms"):
        ScanObjectNN(tmp_path)
    with pytest.raises(ValueError, match="variant must be one of OBJ, PB_T25"):
        ScanObjectNN(tmp_path, variant="hardest")
    path = tmp_path / "some.h5"
    write_h5(path, 4, classes=3)
    with pytest.raises(ValueError, match="has 64 points, num_points=65"):
        ScanObjectNN(path, num_points=65)[0]
    with pytest.raises(BadFileError, match=r"some\.h5: label 2, but there are 2 classes"):
        ScanObjectNN(path, classes=["a", "b"])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BadFileError, match=r"some\.h5"):
        ScanObjectNN(path)


def test_a_real_file_in_that_layout(real_data: Path) -> None:
    names = [str(i) for i in range(10)]
    train, test = (ScanObjectNN(real_data / f"bimnet10_{s}.h5", classes=names) for s in ("train", "test"))
    assert (len(train), len(test)) == (165, 51)
    assert train[7].points.shape == (2048, 3)


# ModelNet


def test_modelnet_meshes(tmp_path: Path) -> None:
    for name in ("chair", "bed"):
        for split in ("train", "test"):
            (tmp_path / name / split).mkdir(parents=True)
            write_mesh(tmp_path / name / split / f"{name}_0001.off")
    data = ModelNet(tmp_path, "train", num_points=100, normals=True)
    assert data.classes == ["bed", "chair"]
    assert [(s.name, s.label) for s in (data[0], data[1])] == [("bed_0001", 0), ("chair_0001", 1)]
    on_face = (data[0].points.abs() - torch.tensor([0.5, 1, 1.5])).abs() < 1e-6
    assert on_face.any(1).all()
    assert (data[0].features.abs()[on_face] > 0.99).sum() == 100  # each normal along the axis of its face
    assert not torch.equal(data[0].points, data[1].points)
    (tmp_path / "bed" / "train" / "bed_0002.off").write_text("OFF\n3 1 0\n0 0 0\n0 0 0\n0 0 0\n3 0 1 2\n")
    with pytest.warns(UserWarning, match=r"(?s)1 of 3 files.*bed_0002.off: a surface needs .* positive area"):
        assert len(ModelNet(tmp_path, errors="skip")) == 2


def test_modelnet_h5(tmp_path: Path) -> None:
    wanted = [write_h5(tmp_path / f"ply_data_train{i}.h5", 3 + i, classes=2) for i in range(2)]
    (tmp_path / "shape_names.txt").write_text("airplane\nbathtub\n")
    listed = "".join(f"data/modelnet40_ply_hdf5_2048/ply_data_train{i}.h5\n" for i in range(2))
    (tmp_path / "train_files.txt").write_text(listed)
    data = ModelNet(tmp_path)
    assert (len(data), data.classes) == (7, ["airplane", "bathtub"])
    assert np.array_equal(data[4].points, wanted[1][1])
    assert data[4].label == 1
    with pytest.raises(ValueError, match="no normals"):
        ModelNet(tmp_path, normals=True)[0]


def test_modelnet_text(tmp_path: Path) -> None:
    (tmp_path / "night_stand").mkdir()
    table = RANDOM.normal(size=(50, 6)).round(6)
    np.savetxt(tmp_path / "night_stand" / "night_stand_0007.txt", table, delimiter=",")
    (tmp_path / "modelnet10_shape_names.txt").write_text("bed\nnight_stand\n")
    (tmp_path / "modelnet10_train.txt").write_text("night_stand_0007\n")
    data = ModelNet(tmp_path, num_points=20, normals=True, num_classes=10)
    assert (len(data), data[0].label, data[0].name) == (1, 1, "night_stand_0007")
    assert np.allclose(torch.cat([data[0].points, data[0].features], 1), table[:20], atol=1e-6)
    (tmp_path / "modelnet10_test.txt").write_text("bed_0001\n")
    with pytest.raises(FileNotFoundError, match=r"bed_0001\.txt, listed in the test split"):
        ModelNet(tmp_path, "test", num_classes=10)


def test_missing_modelnet(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"(?s)CLASS/.train,test.*princeton"):
            ModelNet(root)
    with pytest.raises(ValueError, match="train, test"):
        ModelNet(tmp_path, "validation")
    (tmp_path / "a.npz").write_bytes(b"PK")
    with pytest.raises(BadFileError, match=r"a\.npz"):
        ModelNet(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("name", "sizes", "classes", "points", "normals"),
    [
        ("modelnet10_small", (1000, 499), 10, 1024, True),
        ("modelnet40_small", (1200, 600), 40, 1024, True),
        ("modelnet40_256", (9520, 2385), 40, 256, False),
    ],
)
def test_real_modelnet(
    name: str, sizes: tuple[int, int], classes: int, points: int, normals: bool, real_data: Path
) -> None:
    for split, size in zip(("train", "test"), sizes, strict=True):
        data = ModelNet(real_data / f"{name}.npz", split, normals=normals)
        assert (len(data), len(data.classes)) == (size, classes)
        sample = data[size // 2]
        assert sample.points.shape == (points, 3)
        assert 0.9 < sample.points.norm(dim=1).max() < 1.001  # a subset of what had norm 1
        assert torch.allclose(sample.features.norm(dim=1), torch.ones(points), atol=1e-5)
        assert sample.name.startswith(data.classes[sample.label])


def test_real_meshes(real_data: Path) -> None:
    data = ModelNet(real_data / "modelnet_off", "train", num_points=200, normals=True)
    assert len(data) + len(ModelNet(real_data / "modelnet_off", "test")) == 16
    for index in range(len(data)):
        assert len(data[index]) == 200
        assert data[index].name.startswith(data.classes[data[index].label])


# ScanNet


def write_scannet(folder: Path, scene: str, ids: np.ndarray, labels: int | None = None) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [*((name, "f4") for name in "xyz"), *((name, "u1") for name in ("red", "green", "blue", "alpha"))]
    vertex = np.zeros(len(ids), dtype=kinds)
    for name, _ in kinds:
        vertex[name] = RANDOM.integers(0, 256, len(ids))
    face = np.array([([0, 1, 2],)], dtype=[("vertex_indices", "i4", (3,))])
    elements = [PlyElement.describe(vertex, "vertex"), PlyElement.describe(face, "face")]
    PlyData(elements).write(str(folder / f"{scene}_vh_clean_2.ply"))
    named = np.zeros(len(ids) if labels is None else labels, dtype=[*kinds, ("label", "u2")])
    named["label"] = ids[: len(named)]
    PlyData([PlyElement.describe(named, "vertex")]).write(str(folder / f"{scene}_vh_clean_2.labels.ply"))
    return np.stack([vertex[name] for name in "xyz"], 1)


@pytest.mark.parametrize("layout", ["SCENE", "scans/SCENE", "."])
def test_scannet(layout: str, tmp_path: Path) -> None:
    ids = np.arange(41).astype(np.uint16)
    scenes = ["scene0000_00", "scene0001_00"]
    points = [write_scannet(tmp_path / layout.replace("SCENE", scene), scene, ids) for scene in scenes]
    (tmp_path / "train.txt").write_text("\n".join(scenes) + "\n")
    data = ScanNet(tmp_path, tmp_path / "train.txt")
    assert (len(data), len(data.classes), data.num_features, data.task) == (2, 20, 3, "segmentation")
    assert np.array_equal(data[1].points, points[1])
    assert data[1].name == "scene0001_00"
    assert data[1].features.max() <= 1
    benchmark = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24, 28, 33, 34, 36, 39]
    assert data[0].label.tolist() == [benchmark.index(i) if i in benchmark else -1 for i in range(41)]
    assert (ScanNet(tmp_path, scenes, labelled=False)[0].label == -1).all()


def test_scannet_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)list.txt is missing.*scan-net.org"):
        ScanNet(tmp_path, tmp_path / "list.txt")
    with pytest.raises(FileNotFoundError, match=r"(?s)scene0000_00_vh_clean_2.ply is missing.*terms of use"):
        ScanNet(tmp_path, ["scene0000_00"])
    write_scannet(tmp_path, "short", np.arange(41), labels=40)
    write_scannet(tmp_path, "good", np.arange(41))
    with pytest.raises(BadFileError, match=r"short_vh_clean_2.labels.ply: 40 labels for 41 points"):
        ScanNet(tmp_path, ["short"])[0]
    with pytest.warns(UserWarning, match=r"(?s)1 of 2 files.*short_vh_clean_2"):
        data = ScanNet(tmp_path, ["short", "good"], errors="skip")
    assert [data[0].name] == ["good"]
    (tmp_path / "good_vh_clean_2.labels.ply").unlink()
    with pytest.raises(FileNotFoundError, match=r"good_vh_clean_2\.labels\.ply is missing"):
        ScanNet(tmp_path, ["good"])


def test_new_labels_of_a_scene_are_noticed(tmp_path: Path) -> None:
    write_scannet(tmp_path, "a", np.full(5, 1))
    assert ScanNet(tmp_path, ["a"])[0].label.tolist() == [0] * 5
    path = tmp_path / "a_vh_clean_2.labels.ply"
    content = PlyData.read(str(path), mmap=False)
    content["vertex"].data["label"] = 2
    content.write(str(path))
    assert ScanNet(tmp_path, ["a"])[0].label.tolist() == [1] * 5
