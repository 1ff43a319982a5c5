"""LAS and LAZ files of any number and size, as windows: points to be predicted, and the points around them.

LAZ can only be read from its beginning to its end. So a file is read once, and its points go to the disk by
the square of a map that they lie in; the points of neighbouring files that are near enough go there, too. A
window is some of these squares with a ring of squares around them, so that memory holds one window.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pointvar.atomic import writing
from pointvar.data.containers import Array, Arrays
from pointvar.data.formats import TRIPLES, BadFileError, gathered, named, optional
from pointvar.data.lidar import coordinates, open_las, parts_of

LASER = (".las", ".laz")
WINDOW = 500_000
"""Points of a window without its surroundings, where a single square does not have more."""
BUFFER = 64 * 2**20
"""Bytes that wait in memory for the disk."""


class Window(NamedTuple):
    """Points to be predicted, and those around them, in an order that does not depend on files.

    Shapes (N points, M to be predicted):
        - arrays: ``points`` ``[N, 3]``, float64, sorted, and the columns
        - rows: ``[M]``, which of them are to be predicted
        - places: ``[M]``, their places in the file
    """

    arrays: Arrays
    rows: Array
    places: Array


class Tile(NamedTuple):
    """What the header of a file says, and the state of the file."""

    low: tuple[float, float]
    high: tuple[float, float]
    scale: float
    num_points: int
    state: tuple[int, int]


class Survey:
    """LAS and LAZ files that lie beside each other, or overlap.

    Args:
        files: of the survey; what cannot be read is nobody's neighbour.
        columns: names of the columns that are wanted beside the coordinates, as `read_points` names them.
        around: how far a prediction looks, in units of the files.
        folder: for what is kept on the disk meanwhile; on a disk that all workers share.
        halo: how far around a file points of its neighbours are looked at; default ``around``.
    """

    def __init__(
        self,
        files: Sequence[Path],
        columns: Sequence[str],
        around: float,
        folder: Path,
        halo: float | None = None,
    ) -> None:
        self.columns, self.around, self.folder = list(columns), around, folder
        self.halo = around if halo is None else halo
        self.tiles: dict[Path, Tile] = {}
        for path in files:
            with suppress(BadFileError):
                self.tiles[path] = _tile(path)
        # Coordinates of a place may differ by rounding from file to file.
        self.quantum = min((tile.scale for tile in self.tiles.values()), default=1.0) / 8
        width = sum(3 if name in TRIPLES else 1 for name in columns)
        self.row = np.dtype([("place", "<i8"), ("points", "<f8", (3,)), ("columns", "<f4", (width,))])

    def neighbors(self, path: Path) -> list[Path]:
        """The files whose extent comes near that of this one."""
        if path not in self.tiles:
            return []
        (left, bottom), (right, top) = self._around(path)
        return [
            other
            for other, ((x, y), (far_x, far_y), *_) in self.tiles.items()
            if left <= far_x and x <= right and bottom <= far_y and y <= top and other != path
        ]

    @contextmanager
    def squares(self, path: Path) -> Iterator[Squares]:
        """The points of a file and of its neighbours around it, on the disk for a while."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            squares = Squares(folder, self)
            for rows in self._read(path):
                squares.add(rows)
            for other in self.neighbors(path):
                try:
                    for rows in self._border(other):
                        squares.add(rows[_inside(rows["points"], *self._around(path))])
                except BadFileError as error:  # which is that file's own problem
                    squares.missing.append(str(error))
            squares.flush()
            yield squares
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _around(self, path: Path) -> tuple[Array, Array]:
        tile = self.tiles[path]
        return np.array(tile.low) - self.halo, np.array(tile.high) + self.halo

    def _read(self, path: Path, boxes: Sequence[tuple[Array, Array]] | None = None) -> Iterator[Array]:
        """The points of a file as rows, some at once; if boxes are given, those that lie in one of them."""
        laspy = optional("laspy", "lidar")
        with named(path, path.suffix[1:]), open_las(path, laspy) as reader:
            there = {name.lower() for name in reader.header.point_format.dimension_names}
            is_copc = any(record.user_id == "copc" for record in reader.header.vlrs)
            for name in self.columns:
                if not any(there.issuperset(parts) for parts in ([name], *TRIPLES.get(name, []))):
                    raise ValueError(f"it has no {name}, which the network was trained with")
            place = 0
            # COPC can be asked for a part of a file.
            for part in _query(path, laspy, boxes) if boxes is not None and is_copc else parts_of(reader):
                rows = self._rows(part)
                rows["place"] = -1 if boxes is not None else np.arange(place, place + len(part))
                place += len(part)
                if boxes is not None:
                    rows = rows[np.any([_inside(rows["points"], *box) for box in boxes], 0)]
                yield rows

    def _rows(self, part: Any) -> Array:
        wanted = {
            each for name in self.columns for choice in ((name,), *TRIPLES.get(name, [])) for each in choice
        }
        names = [name for name in part.point_format.dimension_names if name.lower() in wanted]
        arrays = gathered({name: np.asarray(part[name]) for name in names})
        rows = np.empty(len(part), self.row)
        points = coordinates(part)
        if not np.isfinite(points).all():
            raise ValueError("its scales or offsets are no finite numbers")
        rows["points"] = np.rint(points / self.quantum) * self.quantum
        if self.columns:
            values = [np.asarray(arrays[name], np.float32).reshape(len(part), -1) for name in self.columns]
            rows["columns"] = np.concatenate(values, 1)
        return rows

    def _border(self, path: Path) -> Iterator[Array]:
        """The points of a file that its neighbours look at; found once, and kept for all of them."""
        boxes = [self._around(other) for other in self.neighbors(path)]
        places = [[side.tolist() for side in box] for box in boxes]
        state = [str(path.resolve()), self.tiles[path].state, places, self.columns, self.quantum]
        name = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]
        kept = self.folder / f"{name}.border"
        if not kept.exists():
            with writing(kept) as file:
                for rows in self._read(path, boxes):
                    file.write(rows.tobytes())
        with kept.open("rb") as file:
            while content := file.read(self.row.itemsize * (BUFFER // self.row.itemsize)):
                yield np.frombuffer(content, self.row)

    def arrays(self, rows: Array) -> Arrays:
        """Coordinates and columns by their names."""
        arrays, first = {"points": rows["points"]}, 0
        for name in self.columns:
            width = 3 if name in TRIPLES else 1
            values = rows["columns"][:, first : first + width]
            arrays[name], first = values if width == 3 else values[:, 0], first + width
        return arrays


class Squares:
    """Rows of a survey on the disk, a file per square of a map with sides of ``survey.around``."""

    def __init__(self, folder: Path, survey: Survey) -> None:
        self.folder, self.survey = folder, survey
        self.missing: list[str] = []  # what is wrong with neighbours that were left out
        self.own: dict[tuple[int, int], int] = defaultdict(int)  # points of the file itself
        self.all: dict[tuple[int, int], int] = defaultdict(int)
        self._waiting: dict[tuple[int, int], list[Array]] = defaultdict(list)
        self._size = 0

    def add(self, rows: Array) -> None:
        keys = np.floor(rows["points"][:, :2] / self.survey.around).astype(np.int64)
        order = np.lexsort(keys.T)
        keys, rows = keys[order], rows[order]
        starts = np.flatnonzero(np.diff(keys, axis=0, prepend=keys[:1] - 1).any(1))
        for part in np.split(np.arange(len(rows)), starts[1:]) if len(rows) else []:
            key = (int(keys[part[0], 0]), int(keys[part[0], 1]))
            self._waiting[key].append(rows[part])
            self.all[key] += len(part)
            self.own[key] += int((rows["place"][part] >= 0).sum())
        self._size += rows.nbytes
        if self._size > BUFFER:
            self.flush()

    def flush(self) -> None:
        for key, parts in self._waiting.items():
            with self._file(key).open("ab") as file:
                for part in parts:
                    file.write(part.tobytes())
        self._waiting.clear()
        self._size = 0

    def windows(self, limit: int = WINDOW) -> Iterator[Window]:
        """All points of the file, each in one window."""
        size = 1
        while (
            len(blocks := self._blocks(2 * size)) < len(self._blocks(size)) and max(blocks.values()) <= limit
        ):
            size *= 2
        wanted = {(i // size, j // size) for (i, j), count in self.own.items() if count}
        for i, j in sorted(wanted):
            inner = set(product(range(i * size, (i + 1) * size), range(j * size, (j + 1) * size)))
            ring = product(range(i * size - 1, (i + 1) * size + 1), range(j * size - 1, (j + 1) * size + 1))
            parts = [(key, np.fromfile(self._file(key), self.survey.row)) for key in ring if key in self.all]
            rows = np.concatenate([part for _, part in parts])
            first, inverse = distinct(np.column_stack([rows["points"], rows["columns"]]))
            asked = np.concatenate([(part["place"] >= 0) & (key in inner) for key, part in parts])
            yield Window(self.survey.arrays(rows[first]), inverse[asked], rows["place"][asked])

    def _blocks(self, size: int) -> dict[tuple[int, int], int]:
        """Points in blocks of so many squares by as many."""
        blocks: dict[tuple[int, int], int] = defaultdict(int)
        for (i, j), count in self.all.items():
            blocks[i // size, j // size] += count
        return blocks

    def _file(self, key: tuple[int, int]) -> Path:
        return self.folder / f"{key[0]}_{key[1]}"


def distinct(rows: Array) -> tuple[Array, Array]:
    """Which of the rows ``[N, K]`` are left, sorted, if each is there once; and where each one is then.

    The order does not depend on that of the rows. Points that two files share are one point.
    """
    order = np.lexsort(rows.T[::-1])
    arranged = rows[order]
    new = np.ones(len(rows), bool)
    new[1:] = (arranged[1:] != arranged[:-1]).any(1)
    inverse = np.empty(len(rows), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return order[new], inverse


def _tile(path: Path) -> Tile:
    with named(path, path.suffix[1:]), open_las(path, optional("laspy", "lidar")) as reader:
        header, status = reader.header, path.stat()
        low, high, scale = (np.asarray(each, float) for each in (header.mins, header.maxs, header.scales))
        if not (np.isfinite([low, high, scale]).all() and (scale > 0).all()):
            raise ValueError("the extents or scales in its header are no finite numbers")
        state = (status.st_size, status.st_mtime_ns)
        return Tile(tuple(low[:2]), tuple(high[:2]), float(scale.min()), header.point_count, state)


def _query(path: Path, laspy: Any, boxes: Sequence[tuple[Array, Array]]) -> Iterator[Any]:
    """The points of a COPC file in boxes; some may be there twice."""
    with laspy.CopcReader.open(str(path)) as reader:
        for low, high in boxes:
            yield reader.query(laspy.copc.Bounds(low, high))


def _inside(points: Array, low: Array, high: Array) -> Array:
    return np.all((points[:, :2] >= low) & (points[:, :2] <= high), axis=1)
