"""ModelNet40 and ModelNet10: CAD models of objects, as meshes or in one of the forms in common use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pointvar.data.base import (
    Errors,
    PointData,
    Task,
    check_split,
    first_points,
    read_clouds,
    require,
    sampled,
    tensor,
    usable,
)
from pointvar.data.cache import Cache, resolve_cache
from pointvar.data.files import Array, Arrays, BadFileError, read_points
from pointvar.data.sample import Sample

LAYOUT = """  ROOT/CLASS/{train,test}/*.off                                          the meshes
  ROOT/{train,test}_files.txt, shape_names.txt, ply_data_*.h5            2,048 points
  ROOT/modelnet{10,40}_{train,test,shape_names}.txt, CLASS/*.txt         10,000 points with normals
  a file *.npz with classes, {train,test}_{points,label,name} and, if there, normals_i8"""
SOURCE = (
    "The meshes: https://modelnet.cs.princeton.edu (for academic research; copyright is with their authors)."
)

Item = tuple[str, int, Callable[[], Arrays]]  # name, label, how to get points and normals


class ModelNet(PointData):
    """ModelNet, 40 or 10 classes of CAD models; up is z in the meshes and y in the h5 and txt forms.

    Args:
        root: a folder or npz file in one of the layouts; which one is found out.
        split: "train" or "test".
        num_points: the first points of each object; from meshes, so many are sampled uniformly by area
            (default: all; 2,048 from a mesh).
        normals: True gives unit normals as features (meshes, txt and some npz), False the constant 1.
        num_classes: 10 or 40, for a txt folder, which holds both; default 40.
        errors, cache: as in `Folder`; for meshes and txt.
    """

    task: Task = "classification"

    def __init__(
        self,
        root: Path | str,
        split: str = "train",
        num_points: int | None = None,
        normals: bool = False,
        num_classes: int = 40,
        errors: Errors = "raise",
        cache: Cache | Path | str | bool = True,
    ) -> None:
        check_split(split, ["train", "test"])
        root, keep = Path(root), resolve_cache(cache)
        require(root, "ModelNet", LAYOUT, SOURCE)
        if root.suffix == ".npz":
            self.classes, items = _from_npz(root, split)
        elif (root / f"{split}_files.txt").exists():
            self.classes, items = _from_h5(root, split)
        elif (root / f"modelnet{num_classes}_{split}.txt").exists():
            self.classes, items = _from_text(root, split, num_classes, keep)
        else:
            self.classes, items = _from_meshes(root, split, num_points or 2048, keep)
        self.items = usable(items, lambda item: item[2](), errors)
        self.num_points, self.normals, self.num_features = num_points, normals, 3 if normals else 1

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Sample:
        name, label, get = self.items[index]
        arrays = get()
        points = tensor(first_points(arrays["points"], self.num_points, name))
        if not self.normals:
            return Sample(points, torch.ones(len(points), 1), label, name)
        if "normals" not in arrays:
            raise ValueError(f"{name} has no normals; this form of ModelNet holds points alone")
        return Sample(points, tensor(arrays["normals"][: len(points)]), label, name)


def _from_meshes(
    root: Path, split: str, num_points: int, cache: Cache | None
) -> tuple[list[str], list[Item]]:
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    files = [
        (path, k) for k, name in enumerate(classes) for path in sorted((root / name / split).glob("*.off"))
    ]
    if not files:
        raise FileNotFoundError(f"ModelNet: no {split} data in {root}.\nExpected layout:\n{LAYOUT}\n{SOURCE}")

    def getter(path: Path) -> Callable[[], Arrays]:
        def make() -> Arrays:
            arrays = read_points(path)
            if not len(arrays["faces"]):
                raise BadFileError(f"{path}: a mesh without faces")
            return sampled(arrays, num_points, path)

        parameters = {"mesh": num_points}
        return make if cache is None else lambda: cache.get(path, parameters, make)

    return classes, [(path.stem, label, getter(path)) for path, label in files]


def _from_text(root: Path, split: str, num_classes: int, cache: Cache | None) -> tuple[list[str], list[Item]]:
    classes = _lines(root / f"modelnet{num_classes}_shape_names.txt")
    columns = ["x", "y", "z", "nx", "ny", "nz"]
    items: list[Item] = []
    for name in _lines(root / f"modelnet{num_classes}_{split}.txt"):
        group = name.rsplit("_", 1)[0]
        path = root / group / f"{name}.txt"
        if group not in classes or not path.exists():
            raise FileNotFoundError(
                f"ModelNet: {path}, listed in the {split} split, is missing or of no known class"
            )

        def make(path: Path = path) -> Arrays:
            return {key: array.astype(np.float32) for key, array in read_points(path, columns).items()}

        def get(path: Path = path, make: Callable[[], Arrays] = make) -> Arrays:
            return make() if cache is None else cache.get(path, {"columns": columns}, make)

        items.append((name, classes.index(group), get))
    return classes, items


def _from_h5(root: Path, split: str) -> tuple[list[str], list[Item]]:
    names = [Path(line).name for line in _lines(root / f"{split}_files.txt")]  # they list paths of their own
    for name in names:
        require(root / name, "ModelNet", LAYOUT, SOURCE)
    parts = [(name, *read_clouds(root / name)) for name in names]
    return _lines(root / "shape_names.txt"), [
        (f"{Path(name).stem}_{i}", int(labels[i]), _fixed(points[i]))
        for name, points, labels in parts
        for i in range(len(points))
    ]


def _from_npz(path: Path, split: str) -> tuple[list[str], list[Item]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            classes, points = content["classes"].tolist(), content[f"{split}_points"]
            labels, names = content[f"{split}_label"], content[f"{split}_name"].astype(str)
            normals = content[f"{split}_normals_i8"] if f"{split}_normals_i8" in content.files else None
    except Exception as error:
        raise BadFileError(f"{path}: cannot be read: {error}\nExpected layout:\n{LAYOUT}") from error
    return classes, [
        (str(names[i]), int(labels[i]), _fixed(points[i], None if normals is None else normals[i]))
        for i in range(len(points))
    ]


def _fixed(points: Array, normals: Array | None = None) -> Callable[[], Arrays]:
    """Points that are in memory already; normals come as int8, in steps of 1/127."""

    def get() -> Arrays:
        if normals is None:
            return {"points": points}
        real = normals.astype(np.float32)
        return {
            "points": points,
            "normals": real / np.maximum(np.linalg.norm(real, axis=1, keepdims=True), 1),
        }

    return get


def _lines(path: Path) -> list[str]:
    require(path, "ModelNet", LAYOUT, SOURCE)
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]
