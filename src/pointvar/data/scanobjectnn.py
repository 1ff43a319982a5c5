"""ScanObjectNN: scanned household objects, with background and occlusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pointvar.data.base import PointData, check_choice, first_points, path_of, require, tensor
from pointvar.data.formats import BadFileError, read_clouds
from pointvar.data.sample import Sample

CLASSES = [
    "bag", "bin", "box", "cabinet", "chair", "desk", "display", "door",
    "shelf", "table", "bed", "pillow", "sink", "sofa", "toilet",
]  # fmt: skip
VARIANTS = {
    "OBJ": "",
    "PB_T25": "_augmented25_norot",
    "PB_T25_R": "_augmented25rot",
    "PB_T50_R": "_augmentedrot",
    "PB_T50_RS": "_augmentedrot_scale75",
}
LAYOUT = """  ROOT/main_split/{training,test}_objectdataset*.h5        with background
  ROOT/main_split_nobg/{training,test}_objectdataset*.h5   without background
  (split1 ... split4 and their _nobg likewise)
Get h5_files.zip from https://hkust-vgd.github.io/scanobjectnn/ under the terms of use given there
(the scans come from SceneNN and ScanNet, whose terms apply too)."""


class ScanObjectNN(PointData):
    """ScanObjectNN, 15 classes of scanned objects, 2,048 points each; up is y.

    Args:
        root: the folder that holds ``main_split`` and ``main_split_nobg``, or one h5 file of that layout
            (``data`` ``[M, N, 3]``, ``label`` ``[M]``).
        split: "train" or "test".
        variant: "OBJ" (OBJ_ONLY or OBJ_BG), or perturbed: "PB_T25", "PB_T25_R", "PB_T50_R", "PB_T50_RS".
        background: whether the surroundings of the objects are kept.
        fold: "main_split", or "split1" to "split4".
        num_points: the first points of each object; default all.
        classes: names of the classes of another data set in this layout.
    """

    task = "classification"

    def __init__(
        self,
        root: Path | str,
        split: str = "train",
        variant: str = "OBJ",
        background: bool = False,
        fold: str = "main_split",
        num_points: int | None = None,
        classes: list[str] | None = None,
    ) -> None:
        check_choice("split", split, ("train", "test"))
        check_choice("variant", variant, VARIANTS)
        path = Path(root)
        if path.suffix != ".h5":
            stem = "training" if split == "train" else "test"
            folder = fold if background else f"{fold}_nobg"
            path = path / folder / f"{stem}_objectdataset{VARIANTS[variant]}.h5"
        self.points, self.labels = read_clouds(require(path, "ScanObjectNN", LAYOUT))
        self.classes = CLASSES if classes is None else list(classes)
        self.num_features, self.num_points, self.name = 1, num_points, path.stem
        if self.labels.max() >= len(self.classes):
            raise BadFileError(
                f"{path}: label {self.labels.max()}, but there are {len(self.classes)} classes"
            )

    def __len__(self) -> int:
        return len(self.points)

    def load(self, index: int) -> Sample:
        name = f"{self.name}_{index}"
        points = tensor(first_points(self.points[index], self.num_points, name))
        return Sample(points, torch.ones(len(points), 1), int(self.labels[index]), name)


def from_settings(settings: Any, split: str) -> ScanObjectNN:
    return ScanObjectNN(path_of(settings), split, settings.variant or "OBJ")
