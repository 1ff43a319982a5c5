"""ModelNet40 and ModelNet10: CAD models of objects, as meshes or in one of the forms in common use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointvar.data.base import Errors, PointData, check_choice, first_points, path_of, require, tensor, usable
from pointvar.data.cache import Cache, converted, resolve_cache
from pointvar.data.formats import (
    Arrays,
    BadFileError,
    check_clouds,
    read_arrays,
    read_clouds,
    read_lines,
    read_points,
    sampled,
)
from pointvar.data.sample import Sample

LAYOUT = """  ROOT/CLASS/{train,test}/*.off                                          the meshes
  ROOT/{train,test}_files.txt, shape_names.txt, ply_data_*.h5            2,048 points
  ROOT/modelnet{10,40}_{train,test,shape_names}.txt, CLASS/*.txt         10,000 points with normals
  a file *.npz with classes, {train,test}_{points,label,name} and, if there, normals_i8
The meshes: https://modelnet.cs.princeton.edu (for academic research; copyright is with their authors)."""
COLUMNS = ["x", "y", "z", "nx", "ny", "nz"]

Item = tuple[str, int, Path | Arrays]  # name, label, a file or what was in one


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

    task = "classification"

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
        check_choice("split", split, ("train", "test"))
        root = require(Path(root), "ModelNet", LAYOUT)
        self.num_points, self.normals, self.num_features = num_points, normals, 3 if normals else 1
        self.cache = resolve_cache(cache)
        if root.suffix == ".npz":
            self.classes, items = _from_npz(root, split)
        elif (root / f"{split}_files.txt").exists():
            self.classes, items = _from_h5(root, split)
        elif (root / f"modelnet{num_classes}_{split}.txt").exists():
            self.classes, items = _from_text(root, split, num_classes)
        else:
            self.classes, items = _from_meshes(root, split)
        self.items = usable(items, self._arrays, errors)

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Sample:
        name, label, _ = self.items[index]
        arrays = self._arrays(self.items[index])
        points = tensor(first_points(arrays["points"], self.num_points, name))
        if not self.normals:
            return Sample(points, torch.ones(len(points), 1), label, name)
        if "normals" not in arrays:
            raise ValueError(f"{name} has no normals; this form of ModelNet holds points alone")
        normals = arrays["normals"][: len(points)].astype(np.float32)
        if arrays["normals"].dtype == np.int8:  # in steps of 1/127
            normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1)
        return Sample(points, tensor(normals), label, name)

    def _arrays(self, item: Item) -> Arrays:
        source = item[2]
        if isinstance(source, dict):
            return source
        count = self.num_points or 2048
        parameters = {"mesh": count} if source.suffix == ".off" else {"columns": COLUMNS}
        return converted(self.cache, source, parameters, lambda: _convert(source, count))


def from_settings(settings: Any, split: str) -> ModelNet:
    classes = int(settings.variant or 40)
    return ModelNet(path_of(settings), split, normals=settings.normals, num_classes=classes)


def _convert(path: Path, num_points: int) -> Arrays:
    if path.suffix == ".txt":
        return {name: array.astype(np.float32) for name, array in read_points(path, COLUMNS).items()}
    arrays = read_points(path)
    if not len(arrays["faces"]):
        raise BadFileError(f"{path}: a mesh without faces")
    return sampled(arrays, num_points, path)


def _from_meshes(root: Path, split: str) -> tuple[list[str], list[Item]]:
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    folders = enumerate(root / name / split for name in classes)
    items: list[Item] = [
        (path.stem, label, path) for label, folder in folders for path in sorted(folder.glob("*.off"))
    ]
    if not items:
        raise FileNotFoundError(f"ModelNet: no {split} data in {root}.\nExpected layout:\n{LAYOUT}")
    return classes, items


def _from_text(root: Path, split: str, num_classes: int) -> tuple[list[str], list[Item]]:
    classes = _lines(root / f"modelnet{num_classes}_shape_names.txt")
    items: list[Item] = []
    for name in _lines(root / f"modelnet{num_classes}_{split}.txt"):
        group = name.rsplit("_", 1)[0]
        path = root / group / f"{name}.txt"
        if group not in classes or not path.exists():
            raise FileNotFoundError(
                f"ModelNet: {path}, listed in the {split} split, is missing or of no known class"
            )
        items.append((name, classes.index(group), path))
    return classes, items


def _from_h5(root: Path, split: str) -> tuple[list[str], list[Item]]:
    items: list[Item] = []
    for line in _lines(root / f"{split}_files.txt"):
        path = require(root / Path(line).name, "ModelNet", LAYOUT)  # they list folders of their own
        for i, (points, label) in enumerate(zip(*read_clouds(path), strict=True)):
            items.append((f"{path.stem}_{i}", int(label), {"points": points}))
    return _lines(root / "shape_names.txt"), items


def _from_npz(path: Path, split: str) -> tuple[list[str], list[Item]]:
    kinds = ("points", "label", "name", "normals_i8")
    content = read_arrays(path, ["classes", *(f"{split}_{kind}" for kind in kinds)])
    found = {kind: content[f"{split}_{kind}"] for kind in kinds if f"{split}_{kind}" in content}
    try:
        classes = content["classes"].astype(str).reshape(-1).tolist()
        points, labels = check_clouds(found["points"], found["label"])
        names, normals = found["name"].astype(str), found.get("normals_i8")
        if names.shape != labels.shape or (normals is not None and normals.shape != points.shape):
            raise ValueError("there are not as many names or normals as clouds")
        if labels.max() >= len(classes):
            raise ValueError(f"label {labels.max()}, but there are {len(classes)} classes")
    except (KeyError, ValueError) as error:
        raise BadFileError(f"{path}: cannot be used: {error}\nExpected layout:\n{LAYOUT}") from error
    clouds = {"points": points} | ({} if normals is None else {"normals": normals})
    return classes, [
        (str(names[i]), int(labels[i]), {kind: array[i] for kind, array in clouds.items()})
        for i in range(len(points))
    ]


def _lines(path: Path) -> list[str]:
    return read_lines(require(path, "ModelNet", LAYOUT))
