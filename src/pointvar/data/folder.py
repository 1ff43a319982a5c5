"""Your own data: a folder per class, or files with a label per point."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from pointvar.data.base import Errors, PointData, Task, check_choice, path_of, require, tensor, usable
from pointvar.data.cache import Cache, converted, resolve_cache
from pointvar.data.features import apply_scale, columns_of
from pointvar.data.formats import (
    FORMATS,
    LABELS,
    MESH_POINTS,
    Array,
    Arrays,
    BadFileError,
    mesh_points,
    read_points,
    sampled,
)
from pointvar.data.names import GROUND
from pointvar.data.sample import Sample

ENDINGS = f"any name.{{{', '.join(ending[1:] for ending in FORMATS)}}}"
LAYOUTS = {
    "classification": f"ROOT/CLASS/{ENDINGS}, one object per file",
    "segmentation": f"ROOT/{ENDINGS}, one scene per file, with a label per point",
}
Classes = Sequence[str] | Mapping[int, str] | None
Region = tuple[Sequence[float], Sequence[float]]
"""Two opposite corners, of x and y or of x, y and z."""


class Folder(PointData):
    """Clouds or meshes from your own files.

    Coordinates of scenes are moved by whole units so that the smallest lie in 0..1: those of maps do not
    fit float32. Points keep the order of the file.

    Args:
        root: classification: a folder with one folder per class. Segmentation: a folder of scenes, or a file.
        task: "classification" or "segmentation".
        features: names of columns in order, such as ``["one", "colors", "intensity", "height"]`` (see
            `scaled_features`); none gives the constant 1.
        classes: classification: names of the class folders (default: all, sorted). Segmentation: names for
            the labels 0, 1, ..., or a mapping from label to name, where labels that it leaves out become -1
            (default: what the files say, else each label found, sorted).
        label: name of the column of labels (default: label, class, classification or the like).
        ignore: labels or names of classes that become -1; of a classification, folders that are left out.
        columns: names of the columns of files that do not name them, as in `read_points`.
        num_points: points sampled from a mesh, uniformly by area; clouds keep all their points.
        errors: "raise" stops at a file that cannot be used, "skip" leaves such files out with a warning.
        cache: True for the user's cache folder, a folder, or False to convert at each access.
        ground: side of the window of ``height``, in units of the points.

    ``codes`` are the labels of the classes in the files, of a segmentation. ``scale`` is the description of
    the features, shared with all parts: features are as in the file until it gets a shift and a scale.
    """

    def __init__(
        self,
        root: Path | str,
        task: Task = "classification",
        features: Sequence[str] = (),
        classes: Classes = None,
        label: str = "label",
        columns: Sequence[str] | None = None,
        num_points: int = MESH_POINTS,
        errors: Errors = "raise",
        cache: Cache | Path | str | bool = True,
        ignore: Collection[int | str] = (),
        ground: float = GROUND,
    ) -> None:
        check_choice("task", task, get_args(Task))
        if isinstance(features, str):
            raise TypeError(f"features must be a list of names, got the string {features!r}")
        self.root, self.task, self.features, self.label = Path(root), task, list(features), label
        self.columns, self.num_points, self.cache = columns, num_points, resolve_cache(cache)
        self.scale: dict[str, Any] = {"names": self.features, "ground": ground}
        self.codes: list[int] | None = None
        require(self.root, "Folder", f"{LAYOUTS[task]}\nGive the folder of your own data.")
        self._strict = not isinstance(classes, Mapping)
        self._index: dict[int, int] = {}  # of labels per point
        self._region: tuple[Region, bool] | None = None
        if task == "classification":
            self.classes = _class_names(self.root, classes, ignore)
            found = [
                (path, k) for k, name in enumerate(self.classes) for path in known_files(self.root / name)
            ]
        else:
            found = [(path, -1) for path in ([self.root] if self.root.is_file() else known_files(self.root))]
        if not found:
            text = f"Folder: there is no file of a known format in {self.root}.\nExpected: {LAYOUTS[task]}"
            raise FileNotFoundError(text)
        self.files = usable(found, lambda item: self._arrays(item[0]), errors)
        if task == "segmentation":
            self.classes, self.codes, self._index = self._point_classes(classes, ignore)
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
        self._index = {value: place[index] if index >= 0 else -1 for value, index in self._index.items()}
        self.classes = list(classes)

    def cut(self, region: Region, inside: bool) -> Folder:
        """The points of each scene inside of a region in the coordinates of the files, or those outside.

        Scenes of which nothing is left are left out.
        """
        if self.task != "segmentation":
            raise ValueError("a region can be cut out of scenes, not out of objects to classify")
        part = copy.copy(self)
        part._region = region, inside
        part.files = [item for item in self.files if len(part._sample(item))]
        if not part.files:
            which = f"{'no' if inside else 'every'} point of {self.root}"
            extents = [self._arrays(path) for path, _ in self.files]
            low = np.min([each["origin"] + each["points"].min(0) for each in extents], 0).tolist()
            high = np.max([each["origin"] + each["points"].max(0) for each in extents], 0).tolist()
            raise ValueError(
                f"{which} lies in the region from {list(region[0])} to {list(region[1])}; all lie from "
                f"{[round(x, 2) for x in low]} to {[round(x, 2) for x in high]}"
            )
        return part

    def __len__(self) -> int:
        return len(self.files)

    def load(self, index: int) -> Sample:
        return self._sample(self.files[index])

    def _sample(self, item: tuple[Path, int]) -> Sample:
        path, label = item
        arrays = self._arrays(path)
        name = path.relative_to(self.root).with_suffix("").as_posix() if path != self.root else path.stem
        labels = label if self.task == "classification" else self._labels(arrays["label"], path)
        features = apply_scale(arrays["features"], self.scale)
        sample = Sample(tensor(arrays["points"]), tensor(features), labels, name)
        if self._region is None:
            return sample
        (low, high), inside = self._region
        place = (arrays["points"] + arrays["origin"])[:, : len(low)]
        return sample[torch.from_numpy(((place >= low) & (place < high)).all(1) == inside)]

    def _labels(self, raw: Array, path: Path) -> Tensor:
        values, inverse = np.unique(raw, return_inverse=True)
        unknown = [value for value in values.tolist() if value not in self._index and value != -1]
        if unknown and self._strict:
            raise BadFileError(
                f"{path}: labels {unknown} are none of the {len(self.classes)} classes "
                f"({', '.join(self.classes)}), nor -1; name or ignore them"
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
        if "height" in self.features:
            parameters["ground"] = self.scale["ground"]
        return converted(self.cache, path, parameters, lambda: self._convert(path))

    def _convert(self, path: Path) -> Arrays:
        arrays = read_points(path, self.columns)
        if self.task == "classification" and len(arrays.get("faces", ())):
            arrays = sampled(arrays, self.num_points, path)
        points, there = arrays["points"], ", ".join(arrays)
        try:
            features = columns_of(arrays, self.features, self.scale["ground"])
        except ValueError as error:
            raise BadFileError(f"{path}: {error}") from error
        if self.task == "classification":
            return {"features": features, "points": _float32(points, path, "points")}
        labels = arrays.get(self.label)
        if labels is None and self.label.lower() in LABELS:  # the reader has given it the usual name
            labels = arrays.get("label")
        if labels is None or labels.size != len(points):
            raise BadFileError(f"{path}: no label per point named {self.label!r}; there are {there}")
        if labels.dtype.kind not in "fiub" or not _whole(labels.astype(np.float64)).all():
            raise BadFileError(f"{path}: the labels in {self.label!r} are not whole numbers")
        origin = np.floor(points.min(0)).astype(np.float64)
        moved = _float32(points - origin, path, "points")
        kept = {"features": features, "points": moved, "label": labels.reshape(-1).astype(np.int64)}
        kept["origin"] = origin
        if arrays.get("classes", labels).dtype.kind == "U":
            kept["classes"] = arrays["classes"]
        return kept

    def _point_classes(
        self, classes: Classes, ignore: Collection[int | str]
    ) -> tuple[list[str], list[int], dict[int, int]]:
        """The names of the classes, their labels in the files, and the class of each label, -1 for none."""
        if classes is None:
            classes = self._arrays(self.files[0][0]).get("classes", np.array([])).tolist() or None
        if classes is None:
            found = {
                value for path, _ in self.files for value in np.unique(self._arrays(path)["label"]).tolist()
            }
            named = {value: str(value) for value in sorted(found - {-1})}
        elif isinstance(classes, Mapping):
            named = {int(label): str(name) for label, name in classes.items()}
        else:
            named = {index: str(name) for index, name in enumerate(classes)}
        if classes is not None:
            _check_ignored(ignore, named.values())
        index = dict.fromkeys([label for label in ignore if isinstance(label, int)], -1)
        names, codes = list[str](), list[int]()
        for label, name in named.items():
            if label in ignore or name in ignore:
                index[label] = -1
                continue
            if name not in names:  # several labels may share a class, which is written as the first
                names.append(name)
                codes.append(label)
            index[label] = names.index(name)
        if not names:
            raise ValueError(f"{self.root}: no class is left, of the labels {list(named)} all are ignored")
        return names, codes, index


def _whole(values: Array) -> Array:
    return (values == np.round(values)) & (np.abs(values) < 2.0**53)


def _float32(array: Array, path: Path, what: str) -> Array:
    with np.errstate(over="ignore"):
        result = np.asarray(array, np.float32)
    if not np.isfinite(result).all():
        raise BadFileError(f"{path}: {what} hold NaN or infinity, or numbers that float32 does not have")
    return result


def from_settings(settings: Any, split: str) -> Folder:
    """The files in the folder of a split; without such folders, all files are there to be split."""
    root = path_of(settings)
    if settings.validation is None or any((root / part).is_dir() for part in ("train", "test")):
        root = root / split
    return Folder(
        root,
        settings.task,
        settings.columns if settings.features is None else settings.features,
        settings.classes,
        settings.label,
        num_points=mesh_points(settings.num_points),
        errors=settings.errors,
        ignore=settings.ignore,
        ground=settings.ground,
    )


def _class_names(root: Path, classes: Classes, ignore: Collection[int | str]) -> list[str]:
    if isinstance(classes, Mapping):
        raise TypeError("the classes of a classification are a list of folder names, got a mapping")
    found = sorted(path.name for path in root.iterdir() if path.is_dir())
    if classes is not None:
        _check_ignored(ignore, [*classes, *found])
    dropped = {str(name) for name in ignore}
    names = [name for name in (found if classes is None else classes) if name not in dropped]
    if unknown := sorted(set(found) - set(names) - dropped):
        raise ValueError(f"{root} has folders that are none of the classes: {', '.join(unknown)}")
    return names


def _check_ignored(ignore: Collection[int | str], names: Collection[str]) -> None:
    """Names that are to be ignored must be names."""
    if unknown := [name for name in ignore if isinstance(name, str) and name not in names]:
        raise ValueError(f"the ignored {', '.join(unknown)} are none of the classes {', '.join(names)}")


def known_files(folder: Path) -> list[Path]:
    """All files of known formats below a folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in FORMATS and path.is_file())
