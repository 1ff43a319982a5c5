"""Your own data: a folder per class, or files with a label per point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from pointvar.data.base import Errors, PointData, Task, check_choice, path_of, require, tensor, usable
from pointvar.data.cache import Cache, converted, resolve_cache
from pointvar.data.formats import FORMATS, Array, Arrays, BadFileError, read_points, sampled
from pointvar.data.sample import Sample

ENDINGS = f"any name.{{{', '.join(ending[1:] for ending in FORMATS)}}}"
LAYOUTS = {
    "classification": f"ROOT/CLASS/{ENDINGS}, one object per file",
    "segmentation": f"ROOT/{ENDINGS}, one scene per file, with a label per point",
}
Classes = Sequence[str] | Mapping[int, str] | None


class Folder(PointData):
    """Clouds or meshes from your own files.

    Coordinates of scenes are moved by whole units so that the smallest lie in 0..1: those of maps do not
    fit float32. Points keep the order of the file.

    Args:
        root: classification: a folder with one folder per class. Segmentation: a folder of scenes, or a file.
        task: "classification" or "segmentation".
        features: names of columns in order, such as ``["colors", "intensity"]``; none gives the constant 1.
        classes: classification: names of the class folders (default: all, sorted). Segmentation: names for
            the labels 0, 1, ..., or a mapping from label to name, where labels that it leaves out become -1
            (default: what the files say, else each label found, sorted).
        label: name of the column of labels (default: label, class, classification or the like).
        columns: names of the columns of files that do not name them, as in `read_points`.
        num_points: points sampled from a mesh, uniformly by area; clouds keep all their points.
        errors: "raise" stops at a file that cannot be used, "skip" leaves such files out with a warning.
        cache: True for the user's cache folder, a folder, or False to convert at each access.
    """

    def __init__(
        self,
        root: Path | str,
        task: Task = "classification",
        features: Sequence[str] = (),
        classes: Classes = None,
        label: str = "label",
        columns: Sequence[str] | None = None,
        num_points: int = 2048,
        errors: Errors = "raise",
        cache: Cache | Path | str | bool = True,
    ) -> None:
        check_choice("task", task, get_args(Task))
        if isinstance(features, str):
            raise TypeError(f"features must be a list of names, got the string {features!r}")
        self.root, self.task, self.features, self.label = Path(root), task, list(features), label
        self.columns, self.num_points, self.cache = columns, num_points, resolve_cache(cache)
        require(self.root, "Folder", f"{LAYOUTS[task]}\nGive the folder of your own data.")
        self._strict = not isinstance(classes, Mapping)
        self._index: dict[int, int] = {}  # of labels per point
        if task == "classification":
            self.classes = _class_names(self.root, classes)
            found = [(path, k) for k, name in enumerate(self.classes) for path in _known(self.root / name)]
        else:
            found = [(path, -1) for path in ([self.root] if self.root.is_file() else _known(self.root))]
        if not found:
            text = f"Folder: there is no file of a known format in {self.root}.\nExpected: {LAYOUTS[task]}"
            raise FileNotFoundError(text)
        self.files = usable(found, lambda item: self._arrays(item[0]), errors)
        if task == "segmentation":
            self.classes, self._index = self._point_classes(classes)
            self.files = usable(self.files, self._sample, errors)
        self.num_features = self._arrays(self.files[0][0])["features"].shape[1]

    def align(self, classes: Sequence[str]) -> None:
        """Counts the classes by this list, such as that of the training data: a folder need not hold all."""
        if unknown := [name for name in self.classes if name not in classes]:
            raise ValueError(
                f"{self.root} has the classes {', '.join(unknown)}, which are none of the {len(classes)} "
                f"known ones ({', '.join(classes)})"
            )
        place = [list(classes).index(name) for name in self.classes]
        self.files = [(path, place[label] if label >= 0 else label) for path, label in self.files]
        self._index = {value: place[index] for value, index in self._index.items()}
        self.classes = list(classes)

    def __len__(self) -> int:
        return len(self.files)

    def load(self, index: int) -> Sample:
        return self._sample(self.files[index])

    def _sample(self, item: tuple[Path, int]) -> Sample:
        path, label = item
        arrays = self._arrays(path)
        name = path.relative_to(self.root).with_suffix("").as_posix() if path != self.root else path.stem
        labels = label if self.task == "classification" else self._labels(arrays["label"], path)
        return Sample(tensor(arrays["points"]), tensor(arrays["features"]), labels, name)

    def _labels(self, raw: Array, path: Path) -> Tensor:
        values, inverse = np.unique(raw, return_inverse=True)
        unknown = [value for value in values.tolist() if value not in self._index and value != -1]
        if unknown and self._strict:
            raise BadFileError(
                f"{path}: labels {unknown} are none of the {len(self.classes)} classes, nor -1"
            )
        return torch.tensor([self._index.get(value, -1) for value in values.tolist()])[inverse.reshape(-1)]

    def _arrays(self, path: Path) -> Arrays:
        parameters = {
            "task": self.task,
            "features": self.features,
            "label": self.label,
            "columns": None if self.columns is None else list(self.columns),
            "num_points": self.num_points,
        }
        return converted(self.cache, path, parameters, lambda: self._convert(path))

    def _convert(self, path: Path) -> Arrays:
        arrays = read_points(path, self.columns)
        if self.task == "classification" and len(arrays.get("faces", ())):
            arrays = sampled(arrays, self.num_points, path)
        points, there = arrays["points"], ", ".join(arrays)
        if missing := [name for name in self.features if name not in arrays]:
            raise BadFileError(f"{path}: no column {', '.join(missing)}; there are {there}")
        for name in self.features:
            if arrays[name].dtype.kind not in "fiub" or arrays[name].shape[:1] != (len(points),):
                given = f"{arrays[name].dtype} {list(arrays[name].shape)}"
                raise BadFileError(f"{path}: {name} must be numbers for {len(points)} points, got {given}")
        columns = [
            _float32(arrays[name], path, "features").reshape(len(points), -1) for name in self.features
        ]
        features = np.concatenate(columns or [np.ones((len(points), 1), np.float32)], 1)
        if self.task == "classification":
            return {"features": features, "points": _float32(points, path, "points")}
        labels = arrays.get(self.label)
        if labels is None or labels.size != len(points):
            raise BadFileError(f"{path}: no label per point named {self.label!r}; there are {there}")
        if labels.dtype.kind not in "fiub" or not _whole(labels.astype(np.float64)).all():
            raise BadFileError(f"{path}: the labels in {self.label!r} are not whole numbers")
        moved = _float32(points - np.floor(points.min(0)), path, "points")
        kept = {"features": features, "points": moved, "label": labels.reshape(-1).astype(np.int64)}
        if arrays.get("classes", labels).dtype.kind == "U":
            kept["classes"] = arrays["classes"]
        return kept

    def _point_classes(self, classes: Classes) -> tuple[list[str], dict[int, int]]:
        """The names of the classes, and the class of each label in the files."""
        if isinstance(classes, Mapping):
            names = list(dict.fromkeys(classes.values()))  # several labels may share a class
            return names, {int(label): names.index(name) for label, name in classes.items()}
        if classes is None:
            classes = self._arrays(self.files[0][0]).get("classes", np.array([])).tolist()
        if names := [str(name) for name in classes]:
            return names, {index: index for index in range(len(names))}
        found = {value for path, _ in self.files for value in np.unique(self._arrays(path)["label"]).tolist()}
        values = sorted(found - {-1})
        return [str(value) for value in values], {value: index for index, value in enumerate(values)}


def _whole(values: Array) -> Array:
    return (values == np.round(values)) & (np.abs(values) < 2.0**53)


def _float32(array: Array, path: Path, what: str) -> Array:
    with np.errstate(over="ignore"):
        result = np.asarray(array, np.float32)
    if not np.isfinite(result).all():
        raise BadFileError(f"{path}: {what} hold NaN or infinity, or numbers that float32 does not have")
    return result


def from_settings(settings: Any, split: str) -> Folder:
    return Folder(path_of(settings) / split, settings.task, settings.columns)


def _class_names(root: Path, classes: Classes) -> list[str]:
    if isinstance(classes, Mapping):
        raise TypeError("the classes of a classification are a list of folder names, got a mapping")
    found = sorted(path.name for path in root.iterdir() if path.is_dir())
    if classes is None:
        return found
    if unknown := sorted(set(found) - set(classes)):
        raise ValueError(f"{root} has folders that are none of the classes: {', '.join(unknown)}")
    return list(classes)


def _known(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in FORMATS and path.is_file())
