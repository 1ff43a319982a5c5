"""ScanNet: rooms scanned by hand, with a class per vertex."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointvar.data.base import Errors, PointData, path_of, require, tensor, usable
from pointvar.data.cache import Cache, converted, resolve_cache
from pointvar.data.formats import Arrays, BadFileError, read_lines, read_points
from pointvar.data.sample import Sample

NYU40 = {
    1: "wall", 2: "floor", 3: "cabinet", 4: "bed", 5: "chair", 6: "sofa", 7: "table", 8: "door", 9: "window",
    10: "bookshelf", 11: "picture", 12: "counter", 14: "desk", 16: "curtain", 24: "refrigerator",
    28: "shower curtain", 33: "toilet", 34: "sink", 36: "bathtub", 39: "other furniture",
}  # fmt: skip
LAYOUT = """  ROOT/SCENE/SCENE_vh_clean_2.ply and SCENE_vh_clean_2.labels.ply (or in ROOT/scans/SCENE, ROOT)
  a text file with one SCENE per line for each split, such as scannetv2_train.txt
ScanNet is given for non-commercial use to those who sign its terms of use: http://www.scan-net.org.
The lists of the v2 split (1,201 / 312 / 100 scenes): Tasks/Benchmark of https://github.com/ScanNet/ScanNet."""


class ScanNet(PointData):
    """ScanNet's rooms: colours in 0..1 as features, 20 classes per point, in metres, up is z.

    The split is a list of scenes, because there are two: v2's (1,201 / 312 / 100) and that of the paper which
    this library follows (1,045 / 156 / 312).

    Args:
        root: the folder of the scenes.
        scenes: the names of the scenes, or a text file with one name per line.
        labelled: False for the hidden test scenes: all labels are -1.
        errors, cache: as in `Folder`.
    """

    task = "segmentation"

    def __init__(
        self,
        root: Path | str,
        scenes: Path | str | Sequence[str],
        labelled: bool = True,
        errors: Errors = "raise",
        cache: Cache | Path | str | bool = True,
    ) -> None:
        self.root, self.labelled, self.cache = Path(root), labelled, resolve_cache(cache)
        self.classes, self.num_features = list(NYU40.values()), 3
        require(self.root, "ScanNet", LAYOUT)
        if isinstance(scenes, (str, Path)):
            scenes = read_lines(require(Path(scenes), "ScanNet", LAYOUT))
        if not scenes:
            raise ValueError("ScanNet: the list of scenes is empty")
        self.scenes = usable([self._find(scene) for scene in scenes], self._arrays, errors)

    def __len__(self) -> int:
        return len(self.scenes)

    def load(self, index: int) -> Sample:
        path = self.scenes[index]
        arrays = self._arrays(path)
        points, label = tensor(arrays["points"]), torch.from_numpy(arrays["label"])
        return Sample(points, tensor(arrays["colors"]), label, path.name.removesuffix("_vh_clean_2.ply"))

    def _find(self, scene: str) -> Path:
        name = f"{scene}_vh_clean_2.ply"
        places = [self.root / scene / name, self.root / name, self.root / "scans" / scene / name]
        found = require(next(filter(Path.exists, places), places[0]), "ScanNet", LAYOUT)
        if self.labelled:
            require(_labels_of(found), "ScanNet", LAYOUT)
        return found

    def _arrays(self, path: Path) -> Arrays:
        status = _labels_of(path).stat() if self.labelled else None
        parameters = {"labels": None if status is None else [status.st_size, status.st_mtime_ns]}
        return converted(self.cache, path, parameters, lambda: self._convert(path))

    def _convert(self, path: Path) -> Arrays:
        arrays = read_points(path)
        points, colors = arrays["points"].astype(np.float32), arrays.get("colors")
        if colors is None:
            raise BadFileError(f"{path}: no colours; there are {', '.join(arrays)}")
        label = np.full(len(points), -1, dtype=np.int64)
        if self.labelled:
            found = read_points(_labels_of(path)).get("label")
            if found is None or len(found) != len(points):
                count = "no labels" if found is None else f"{len(found)} labels"
                raise BadFileError(f"{_labels_of(path)}: {count} for {len(points)} points")
            for index, identity in enumerate(NYU40):
                label[found == identity] = index
        return {"points": points, "colors": colors.astype(np.float32), "label": label}


def from_settings(settings: Any, split: str) -> ScanNet:
    if settings.scenes is None or split not in settings.scenes:
        raise ValueError(f"data.scenes must name the list of {split} scenes: {{train: FILE, test: FILE}}")
    return ScanNet(path_of(settings), settings.scenes[split])


def _labels_of(path: Path) -> Path:
    return path.with_name(path.name.replace("_vh_clean_2.ply", "_vh_clean_2.labels.ply"))
