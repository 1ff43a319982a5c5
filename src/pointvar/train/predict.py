"""Files of any size labelled by a network: each point by those around it, also by those of other files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pointvar.atomic import writing
from pointvar.data import read_points
from pointvar.data.features import scaled_features, widths
from pointvar.data.formats import optional
from pointvar.data.inspect import QUERIES, to_nearest
from pointvar.data.lidar import largest_code, open_las, relabel_las
from pointvar.data.names import GROUND
from pointvar.data.relabel import relabel
from pointvar.data.survey import LASER, Survey, Window, distinct
from pointvar.train.build import features_of
from pointvar.train.config import DataConfig
from pointvar.train.spheres import predict_points
from pointvar.train.voting import SPHERE

MADE = ("one", "height")
"""Features that no file needs to have."""
GROUND_REACH = 9 / 8
"""How far the ground at a place is looked for, in windows of `pointvar.data.features.height`."""


class Prediction(NamedTuple):
    """What was found in a file."""

    counts: list[int]
    """Points of each class."""
    warnings: list[str]
    """What may make it worse: neighbours that cannot be read, columns that are empty, few points."""


def feature_notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The description of the features that a saved network takes, also of one that has no scales."""
    return notes.get("features") or features_of(DataConfig(**notes["data"]))


def class_codes(notes: Mapping[str, Any]) -> list[int]:
    """The numbers that stand for the classes in files."""
    classes = notes["classes"]
    codes = notes.get("codes") or range(len(classes))
    if len(codes) != len(classes):
        raise ValueError(
            f"the network predicts {len(codes)} classes and names {len(classes)} ({', '.join(classes)}): "
            "save it again, with the classes it was trained on"
        )
    return [index if code is None else int(code) for index, code in enumerate(codes)]


def survey_of(
    files: Sequence[Path], notes: Mapping[str, Any], folder: Path, halo: float | None = None
) -> Survey:
    """The LAS and LAZ files among these, as a network has to see them."""
    config, features = DataConfig(**notes["data"]), feature_notes(notes)
    around = config.radius + config.context
    if "height" in features["names"]:
        around += GROUND_REACH * features.get("ground", GROUND)
    columns = [name for name in features["names"] if name not in MADE]
    return Survey([path for path in files if path.suffix.lower() in LASER], columns, around, folder, halo)


class Predictor:
    """Labels files by a network that segments.

    Args:
        model: the network.
        notes: what was saved with it: classes, their codes, features, settings of the data.
        survey: the LAS and LAZ files that may be neighbours.
        votes, seed, sphere: as in `predict_points`.
        confidence: adds the probability of its class to each point of LAS and LAZ; others always have it.
        palette: ``[classes, 3]``, uint8: colours for PLY files that have none.
    """

    def __init__(
        self,
        model: nn.Module,
        notes: Mapping[str, Any],
        survey: Survey,
        votes: int = 1,
        seed: int = 0,
        sphere: int = SPHERE,
        confidence: bool = False,
        palette: NDArray[Any] | None = None,
    ) -> None:
        self.model, self.notes, self.survey, self.confidence = model, notes, survey, confidence
        self.config, self.features = DataConfig(**notes["data"]), feature_notes(notes)
        self.codes, self.palette = np.array(class_codes(notes)), palette
        self.options = {"votes": votes, "seed": seed, "sphere": sphere}
        self.filled = _filled(self.features)

    def __call__(
        self, path: Path, target: Path, progress: Callable[[float], None] | None = None
    ) -> Prediction:
        """Writes the copy of a file with the predicted classes; it is whole, or not there.

        Args:
            path: of the file.
            target: of the copy; of LAZ if it ends so.
            progress: called with the share of the points that was done since the last call.
        """
        predict = self._laser if path.suffix.lower() in LASER else self._whole
        return predict(path, target, progress or (lambda share: None))

    def _laser(self, path: Path, target: Path, progress: Callable[[float], None]) -> Prediction:
        laspy = optional("laspy", "lidar")
        counts = np.zeros(len(self.codes), np.int64)
        with self.survey.squares(path) as squares:
            with open_las(path, laspy) as reader:
                self._check_codes(path, largest_code(reader.header))
            total, empty, distances = sum(squares.own.values()), self.filled, []
            codes = _on_disk(squares.folder / "codes", np.uint8, total)
            shares = _on_disk(squares.folder / "confidence", np.float32, total) if self.confidence else None
            for window in squares.windows():
                labels, share = self._window(window, total, progress)
                empty = _empty(window, empty)
                distances.append(_distances(window))
                codes[window.places] = self.codes[labels]
                if shares is not None:
                    shares[window.places] = share
                counts += np.bincount(labels, minlength=len(counts))
            with writing(target) as file:
                relabel_las(path, file, laspy, codes, shares, target.suffix.lower() == ".laz")
            warnings = [f"without a neighbour: {problem}" for problem in squares.missing]
            return Prediction(counts.tolist(), warnings + (self._doubts(empty, distances) if total else []))

    def _whole(self, path: Path, target: Path, progress: Callable[[float], None]) -> Prediction:
        arrays = read_points(path)
        points = arrays["points"].astype(np.float64)
        names = [name for name in self.features["names"] if name in arrays]
        if missing := [name for name in self.features["names"] if name not in (*names, *MADE)]:
            raise ValueError(f"{path} has no {', '.join(missing)}, which the network was trained with")
        columns = {name: np.asarray(arrays[name], np.float32) for name in names}
        wide = [column.reshape(len(points), -1) for column in columns.values()]
        first, inverse = distinct(np.column_stack([points, *wide]))
        chosen = {name: column[first] for name, column in columns.items()} | {"points": points[first]}
        window = Window(chosen, inverse, np.arange(len(points)))
        labels, share = self._window(window, len(points), progress)
        codes = self.codes[labels]
        named = dict(zip(self.codes.tolist(), self.notes["classes"], strict=True))
        colors = None if self.palette is None else self.palette[labels]
        with writing(target) as file:
            relabel(path, file, codes, share, named, self.config.label, colors)
        warnings = self._doubts(_empty(window, self.filled), [_distances(window)])
        return Prediction(np.bincount(labels, minlength=len(self.codes)).tolist(), warnings)

    def _window(
        self, window: Window, total: int, progress: Callable[[float], None]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        features = scaled_features(window.arrays, self.features)
        all_votes = total * self.options["votes"]
        labels, share = predict_points(
            self.model,
            window.arrays["points"],
            features,
            window.rows,
            self.config,
            len(self.codes),
            **self.options,
            progress=lambda done: progress(done / all_votes),
        )
        return labels.numpy(), share.numpy()

    def _doubts(self, empty: Mapping[str, float], distances: Sequence[NDArray[Any]]) -> list[str]:
        """What a file lacks of what the network was trained on."""
        lacks = [
            f"{name} is 0 everywhere, its median in training was {median:.3g}"
            for name, median in empty.items()
        ]
        every, finest = np.concatenate(distances), min(getattr(self.model, "radii", ()), default=np.inf)
        if len(every) and (spacing := float(np.median(every))) > finest:
            lacks.append(f"points lie {spacing:.3g} apart, the finest radius of the network is {finest:.3g}")
        return [f"{text}: classes may be wrong" for text in lacks]

    def _check_codes(self, path: Path, largest: int) -> None:
        if self.codes.min() < 0 or self.codes.max() > largest:
            wrong = int(self.codes.max() if self.codes.min() >= 0 else self.codes.min())
            raise ValueError(f"{path}: its points hold classes from 0 to {largest}, the network has {wrong}")


def _filled(features: Mapping[str, Any]) -> dict[str, float]:
    """Columns that were not 0 at most points of the training, with their median there."""
    if features.get("shift") is None:
        return {}
    names, channels = features["names"], widths(features["names"])
    medians = dict(zip(np.repeat(names, channels).tolist(), features["shift"], strict=False))
    return {name: median for name, median in medians.items() if median and name not in MADE}


def _empty(window: Window, columns: Mapping[str, float]) -> dict[str, float]:
    """Those of the columns that are 0 at all points to be predicted."""
    return {name: median for name, median in columns.items() if not window.arrays[name][window.rows].any()}


def _distances(window: Window) -> NDArray[Any]:
    """How far some of the points to be predicted are from the nearest others."""
    points, rows = window.arrays["points"], np.unique(window.rows)
    return to_nearest(points - points.min(0), rows[:: len(rows) // QUERIES + 1])


def _on_disk(path: Path, kind: Any, count: int) -> NDArray[Any]:
    """An array that need not fit into memory."""
    return np.memmap(path, kind, "w+", shape=(count,)) if count else np.empty(0, kind)
