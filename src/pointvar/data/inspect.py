"""What a folder of files holds: task, columns, classes, spacing of the points, and what is suspicious."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from pointvar.cloud import PointCloud
from pointvar.data.base import Task, check_choice, require
from pointvar.data.folder import LAYOUTS, known_files
from pointvar.data.formats import (
    Array,
    Arrays,
    BadFileError,
    checked,
    gathered,
    mesh_points,
    named,
    optional,
    read_points,
    sampled,
)
from pointvar.data.lidar import count_points, length_unit, read_las
from pointvar.geometry import knn
from pointvar.progress import track

ASPRS = {
    0: "never classified",
    1: "unclassified",
    2: "ground",
    3: "low vegetation",
    4: "medium vegetation",
    5: "high vegetation",
    6: "building",
    7: "low noise",
    8: "model key point",
    9: "water",
    10: "rail",
    11: "road surface",
    12: "overlap",
    13: "wire guard",
    14: "wire conductor",
    15: "transmission tower",
    16: "wire connector",
    17: "bridge deck",
    18: "high noise",
    19: "overhead structure",
    20: "ignored ground",
    21: "snow",
    22: "temporal exclusion",
}
"""Names of the classes of LAS 1.4; the others are reserved, or the producer's own."""
LAS = (".las", ".laz")
MOST_FILES = 60
MOST_POINTS = 20_000_000
"""What is read of a large folder, in files spread over it; of the others at most the headers."""
LARGE = 4_000_000
"""Points of a LAS file above which only about so many of them are kept."""
QUERIES, SPHERES = 1_000, 20
"""Points of a file to which the nearest is looked for, and those around which spheres are measured."""
FEATURES = ("intensity", "colors", "return_number", "number_of_returns")
"""Columns that help to tell classes apart."""
RARE, FEW = 0.001, 5
"""Share of the points, or number of files, of a class below which there is little to learn it from."""
FAR = 10_000  # sizes of a cloud from 0, where float32 loses its points


@dataclass
class Column:
    """The numbers of a column, over all files that were read."""

    files: int = 0
    count: int = 0
    low: float = np.inf
    high: float = -np.inf
    total: float = 0.0
    squares: float = 0.0
    missing: int = 0
    """Values that are NaN or infinite."""

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)

    @property
    def deviation(self) -> float:
        return max(self.squares / max(self.count, 1) - self.mean**2, 0.0) ** 0.5

    def add(self, values: Array) -> None:
        """The values of one more file."""
        finite = values[np.isfinite(values)].astype(np.float64)
        self.files, self.count = self.files + 1, self.count + finite.size
        self.missing += values.size - finite.size
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
            self.total += float(finite.sum())
            self.squares += float((finite**2).sum())


@dataclass(eq=False)
class InspectedFile:
    """What was found in one file."""

    name: str
    """Its path below the folder."""
    points: int
    low: Array
    high: Array
    """Corners of the box around its points, as they are in the file."""
    distances: Array
    """From some of the points to the nearest other point."""
    spheres: Array
    """Radii around some of the points within which as many points are as were asked for."""
    labels: dict[int, int] = field(default_factory=dict)
    """Points of each label; empty where there is no column of labels."""


@dataclass
class Inspection:
    """What a folder holds.

    Lengths are in units of the files. Those of a classification are in units of clouds that are scaled to a
    box from -1 to 1, as its network sees them.
    """

    root: Path
    task: Task
    files: list[str]
    """All files of known formats: their paths below the folder."""
    splits: bool
    """There are folders ``train`` and ``test``."""
    read: list[InspectedFile]
    bad: dict[str, str]
    """By name, what is wrong with files that cannot be read."""
    points: int
    """Of all files, estimated from those that were read where the others do not say it."""
    columns: dict[str, Column]
    label: str | None
    """The column of labels of a segmentation."""
    classes: dict[int, str]
    """Names by label, in the order of the labels; of a classification the folders, counted from 0."""
    counts: dict[int, int]
    """Points of each label that were read; of a classification, files."""
    unit: str | None
    """Of the coordinates, where the files say it."""
    spacing: float
    """Median distance of a point to the nearest other point."""
    sphere: float
    """Median radius of a sphere around a point that holds as many points as were asked for."""
    suspicious: list[str] = field(default_factory=list)
    """What to look at, in whole sentences."""

    @property
    def formats(self) -> dict[str, int]:
        """Number of files by ending."""
        return dict(Counter(Path(name).suffix.lower()[1:] for name in self.files).most_common())

    @property
    def low(self) -> Array:
        return np.min([file.low for file in self.read], axis=0)

    @property
    def high(self) -> Array:
        return np.max([file.high for file in self.read], axis=0)


def inspect_folder(
    root: Path | str,
    task: Task | None = None,
    label: str | None = None,
    sphere: int = 8192,
    num_points: int = 1024,
    show: bool = False,
) -> Inspection:
    """Looks at the files of a folder, and says what they hold.

    Files that cannot be read are named in the result; it is an error only if none can be read. Of large
    folders a part is read.

    Args:
        root: a folder laid out as for `Folder`, with folders ``train`` and ``test`` in it or without; or one
            file of a segmentation.
        task: "classification" or "segmentation"; default: a folder per class whose files have no label per
            point is a classification, anything else a segmentation.
        label: name of the column of labels; default: ``label`` and its synonyms, else the only column whose
            name is like one of these.
        sphere: number of points of the spheres whose radius is measured.
        num_points: points that are drawn from each cloud of a classification, or sampled on its mesh.
        show: shows how far it has come.
    """
    root = require(Path(root), "inspect_folder", "\n".join(LAYOUTS.values()))
    if task is not None:
        check_choice("task", task, get_args(Task))
    splits = (root / "train").is_dir() and (root / "test").is_dir()
    base = root.parent if root.is_file() else root
    found = [root] if root.is_file() else [path for path in known_files(root) if path.name != "classes.txt"]
    if not found:
        layouts = "\n".join(LAYOUTS.values())
        raise FileNotFoundError(f"{root}: there is no file of a known format. Expected:\n{layouts}")
    sizes = {path: size for path in found if (size := _declared(path))}
    columns, bad = dict[str, Column](), dict[str, str]()
    read, units, names, others = list[InspectedFile](), list[str](), dict[int, str](), list[str]()
    chosen = _spread(found)
    for path in track(chosen, "looking at files") if show else chosen:
        name = path.relative_to(base).as_posix()
        try:
            arrays = _read(path, sizes.get(path, 0))
            if len(arrays.get("faces", ())) and task != "segmentation":
                arrays = sampled(arrays, mesh_points(num_points), path)
        except BadFileError as error:
            bad[name] = str(error)
            continue
        if task is None:
            task = _task(path, root / "train" if splits else root, arrays)
        if task == "segmentation" and label is None:
            label = _label(arrays)
        sizes.setdefault(path, len(arrays["points"]))
        read.append(_file(name, arrays, label, task, sphere, num_points))
        if path.suffix.lower() in LAS and (unit := length_unit(path, optional("laspy", "lidar"))):
            units.append(unit)
        if "classes" in arrays and arrays["classes"].dtype.kind == "U":
            names |= dict(enumerate(arrays["classes"].tolist()))
        others += [column for column in arrays if column not in others]
        for column, values in arrays.items():
            per_point = values.dtype.kind in "fiub" and values.shape[:1] == (len(arrays["points"]),)
            if per_point and column not in ("points", "faces", label):
                columns.setdefault(column, Column()).add(values)
        if sum(file.points for file in read) > MOST_POINTS:
            break
    if task is None:
        raise BadFileError(f"none of the {len(bad)} files can be read:\n" + "\n".join(bad.values()))
    if task == "segmentation" and not any(file.labels for file in read):
        raise BadFileError(
            f"{root}: no file has a label per point{f' named {label!r}' if label else ''}; there are "
            f"{', '.join(others)}. Say which column it is, or give a folder per class for a classification"
        )
    read.sort(key=lambda file: file.name)
    files = [path.relative_to(base).as_posix() for path in found]
    unknown = len(files) - len(bad) - len(sizes)
    classes, counts = _classes(task, files, read, splits, names, label)
    result = Inspection(
        root=root,
        task=task,
        files=files,
        splits=splits,
        read=read,
        bad=bad,
        points=round(sum(sizes.values()) * (1 + unknown / len(sizes))),
        columns=columns,
        label=label if task == "segmentation" else None,
        classes=classes,
        counts=counts,
        unit=" or ".join(dict.fromkeys(units)) or None,
        spacing=_median([file.distances[file.distances > 0] for file in read]),
        sphere=_median([file.spheres for file in read]),
    )
    result.suspicious = list(_suspicious(result))
    return result


def _declared(path: Path) -> int | None:
    """Number of points by the header of a LAS file; ``None`` where that cannot be read, as of all others."""
    try:
        return count_points(path) if path.suffix.lower() in LAS else None
    except (OSError, ValueError):
        return None  # what is wrong is said when the file is read


def _read(path: Path, declared: int) -> Arrays:
    """The arrays of a file; of a large survey, those of squares that are spread over it."""
    if declared <= LARGE:
        return read_points(path)
    with named(path, path.suffix[1:]):
        return checked(gathered(read_las(path, optional("laspy", "lidar"), LARGE)))


def _spread(files: Sequence[Path]) -> list[Path]:
    """Some of the files, evenly chosen, in a mixed order: reading may stop at any of them."""
    places = np.linspace(0, len(files) - 1, min(len(files), MOST_FILES)).round().astype(int)
    return [files[place] for place in np.random.default_rng(0).permutation(places)]


def _task(path: Path, base: Path, arrays: Arrays) -> Task:
    if path.parent == base or path == base:
        return "segmentation"
    label = _label(arrays)
    labelled = label is not None and len(np.unique(arrays[label])) > 1  # LAS has a column in any case
    return "segmentation" if labelled else "classification"


def _label(arrays: Arrays) -> str | None:
    """The column of labels: of that name, or the only one of whole numbers with a name like it."""
    if "label" in arrays:
        return "label"
    like = [
        name
        for name, values in arrays.items()
        if any(part in name.lower() for part in ("label", "class", "semantic"))
        and values.dtype.kind in "fiu"
        and values.shape == arrays["points"].shape[:1]
        and (values == np.floor(values)).all()
    ]
    return like[0] if len(like) == 1 else None


def to_nearest(points: Array, chosen: Array) -> Array:
    """How far the chosen points ``[M]`` are from the nearest others; none if there are no others."""
    if len(points) < 2:
        return np.empty(0, np.float32)
    cloud = PointCloud(torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32)))
    return knn(cloud, cloud[torch.from_numpy(chosen)], 2).radius.numpy()


def _file(
    name: str, arrays: Arrays, label: str | None, task: Task, sphere: int, num_points: int
) -> InspectedFile:
    random, points = np.random.default_rng(0), arrays["points"]
    low, high = points.min(0), points.max(0)
    near = points - (low + high) / 2  # float32 has no neighbours far from 0
    if task == "classification":
        near = near[random.permutation(len(near))[:num_points]] / (float((high - low).max()) / 2 or 1.0)
    distances = to_nearest(near, random.permutation(len(near))[:QUERIES])
    thin = near[random.permutation(len(near))[:100_000]]
    rank = min(max(sphere * len(thin) // len(near), 1), len(thin)) - 1
    spheres = [np.partition(np.linalg.norm(thin - centre, axis=1), rank)[rank] for centre in thin[:SPHERES]]
    labels: dict[int, int] = {}
    given = arrays.get(label) if label is not None and task == "segmentation" else None
    if given is not None and given.shape == (len(points),) and given.dtype.kind in "fiu":
        values, counts = np.unique(given, return_counts=True)
        labels = {int(value): int(count) for value, count in zip(values, counts, strict=True)}
    return InspectedFile(name, len(points), low, high, distances, np.array(spheres), labels)


def _classes(
    task: Task,
    files: Sequence[str],
    read: Sequence[InspectedFile],
    splits: bool,
    names: dict[int, str],
    label: str | None,
) -> tuple[dict[int, str], dict[int, int]]:
    """Names of the classes, and how much there is of each."""
    if task == "classification":
        folders = Counter(
            Path(name).parts[int(splits)] for name in files if len(Path(name).parts) > splits + 1
        )
        ordered = dict(enumerate(sorted(folders)))
        return ordered, {index: folders[name] for index, name in ordered.items()}
    total: Counter[int] = Counter()
    for file in read:
        total.update(file.labels)
    if not names and label == "label" and all(Path(file.name).suffix.lower() in LAS for file in read):
        names = ASPRS
    codes = sorted(code for code in total if code != -1)
    return {code: names.get(code, f"class {code}") for code in codes}, {code: total[code] for code in codes}


def _median(parts: Sequence[Array]) -> float:
    values = np.concatenate(parts)
    return float(np.median(values)) if len(values) else 0.0


def _suspicious(found: Inspection) -> Iterator[str]:
    """What may be wrong, or should be known."""
    for message in found.bad.values():
        yield f"Left out: {message}"
    read = found.read
    unread = len(found.files) - len(read) - len(found.bad)
    if unread:
        yield f"{unread:,} of {len(found.files):,} files were not read; what is told comes from the others."
    classes = [name for code, name in found.classes.items() if found.counts[code]]
    if len(classes) < 2:
        yield f"There is one class only ({', '.join(classes) or 'none'}): nothing can be told apart."
    if found.task == "segmentation":
        useless = {-1, 0, 1} if all(Path(file.name).suffix.lower() in LAS for file in read) else {-1}
        bare = [file.name for file in read if set(file.labels) <= useless]
        if bare and len(bare) < len(read):
            yield f"{_some(bare)} {_have(bare)} no labels."
    total = sum(found.counts.values())
    if found.task == "segmentation":
        for code, name in found.classes.items():
            where = [file.name for file in read if code in file.labels]
            if found.counts[code] < RARE * total:
                yield f"The class {name} is rare: {found.counts[code]:,} of {total:,} points."
            if len(where) == 1 and len(read) > 1:
                yield f"The class {name} is in one file only: {where[0]}."
    elif few := [name for code, name in found.classes.items() if found.counts[code] < FEW]:
        yield f"{_some(few)} {_have(few)} fewer than {FEW} files."
    distances = np.concatenate([file.distances for file in read])
    twins = float((distances == 0).mean()) if len(distances) else 0.0
    if twins > 0.001:
        yield f"{twins:.1%} of the points lie where another point is (duplicates)."
    spacings = {file.name: float(np.median(file.distances)) for file in read if len(file.distances)}
    odd = [name for name, value in spacings.items() if not found.spacing / 4 <= value <= 4 * found.spacing]
    if odd:
        yield f"{_some(odd)} {_have(odd)} another spacing of points than most, by a factor of 4 or more."
    largest = float(np.abs([found.low, found.high]).max())
    far = [f.name for f in read if np.abs([f.low, f.high]).max() > FAR * (f.high - f.low).max()]
    if found.task == "classification" and far:
        yield f"{_some(far)} {_have(far)} coordinates too far from 0 for float32: move them towards 0."
    elif found.task == "segmentation" and largest > FAR:
        yield f"Coordinates reach {largest:,.0f}; they are moved towards 0 when they are read."
    sides = found.high - found.low
    if found.unit == "degree" or (sides[2] > 100 * max(sides[:2]) and np.abs(found.high[:2]).max() <= 180):
        yield "x and y seem to be degrees: project the files to metres, distances mean nothing otherwise."
    for name, column in found.columns.items():
        if column.missing:
            yield f"{name} has {column.missing:,} values that are NaN or infinite."
        if name == "intensity" and column.high > 1:
            yield f"intensity is not scaled, it goes to {column.high:,.0f}; training scales it."
        if name in FEATURES and column.files < len(read):
            yield f"{name} is missing in {len(read) - column.files} of {len(read)} files: no feature."
        elif name in FEATURES and column.low == column.high:
            yield f"{name} is {column.low:g} everywhere: no feature."


def _some(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
