"""Point clouds and meshes from files: one reader per format, one dictionary of arrays for all.

`read_points` gives ``points`` ``[N, 3]`` and, where the file has them, ``normals`` ``[N, 3]``, ``colors``
``[N, 3]`` in 0..1, ``faces`` ``[F, 3]``, ``label`` ``[N]`` and any other column under its own name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

POINTS = ("points", "xyz", "pos", "position", "positions", "coord", "coords", "data", "vertices")
LABELS = ("label", "labels", "class", "classification", "category", "semantic", "segment")
TRIPLES = {
    "points": [("x", "y", "z")],
    "normals": [("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")],
    "colors": [("red", "green", "blue"), ("r", "g", "b")],
}


class BadFileError(ValueError):
    """A file that cannot be used; the message begins with its name."""


def read_points(path: Path | str, columns: Sequence[str] | None = None) -> Arrays:
    """The arrays of one file, chosen by its ending.

    Args:
        path: a file that ends in one of `FORMATS`.
        columns: names of the columns of a file that does not name them (text without a header, ``npy``), such
            as ``["x", "y", "z", "nx", "ny", "nz", "label"]``; by default the first three are coordinates.

    Raises:
        BadFileError: the file is empty, truncated, corrupt or holds no points; the message names it.
    """
    path = Path(path)
    reader = FORMATS.get(path.suffix.lower())
    if reader is None:
        raise BadFileError(f"{path}: unknown format {path.suffix!r}; known are {', '.join(FORMATS)}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    if not path.stat().st_size:
        raise BadFileError(f"{path}: the file is empty")
    try:
        arrays = reader(path, columns) if reader in (_read_text, _read_npy) else reader(path)
        return _checked(_gathered(arrays))
    except (ImportError, MemoryError, PermissionError):
        raise
    except Exception as error:  # readers raise whatever they like on a broken file
        reason = str(error) or type(error).__name__
        raise BadFileError(f"{path}: cannot be read as {path.suffix[1:]}: {reason}") from error


def write_ply(path: Path | str, points: ArrayLike, **columns: ArrayLike) -> None:
    """Writes a binary PLY of points with named columns, such as ``label`` or ``confidence``.

    Args:
        path: the file to write.
        points: ``[N, 3]``; float64 stays float64.
        columns: ``[N]`` each, or ``[N, 3]`` for ``normals`` and for ``colors`` (uint8, or floats in 0..1).
    """
    plyfile = optional("plyfile", "data")
    table: Arrays = {}
    for name, values in {"points": points, **columns}.items():
        array = np.asarray(values)
        if name == "colors" and array.dtype.kind == "f":
            array = (array.clip(0, 1) * 255).round().astype(np.uint8)
        if array.dtype == np.int64:
            if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
                raise ValueError(f"PLY has no 64-bit integers, and column {name!r} does not fit 32 bits")
            array = array.astype(np.int32)
        if name in TRIPLES:
            if array.ndim != 2 or array.shape[1] != 3:
                raise ValueError(f"{name} must have shape [N, 3], got {list(array.shape)}")
            table.update(zip(TRIPLES[name][0], array.T, strict=True))
        else:
            table[name] = array
    count = len(table["x"])
    for name, array in table.items():
        if array.shape != (count,):
            raise ValueError(f"column {name!r} must have shape [{count}], got {list(array.shape)}")
    rows = np.empty(count, dtype=[(name, array.dtype) for name, array in table.items()])
    for name, array in table.items():
        rows[name] = array
    plyfile.PlyData([plyfile.PlyElement.describe(rows, "vertex")]).write(str(path))


def optional(module: str, extra: str) -> Any:
    """A module that only some formats need, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'pointvar[{extra}]'") from error


# One reader per format


def _read_ply(path: Path) -> Arrays:
    plyfile = optional("plyfile", "data")
    try:  # lists that are known to hold three are read in one go
        triangles = {"face": {"vertex_indices": 3, "vertex_index": 3}}
        content = plyfile.PlyData.read(str(path), known_list_len=triangles)
    except plyfile.PlyElementParseError:
        content = plyfile.PlyData.read(str(path))
    vertex = content["vertex"]
    # Copies: the file is mapped into memory, and may be written again while these are in use.
    arrays = {item.name: np.array(vertex[item.name]) for item in vertex.properties}
    if "face" in content and len(content["face"]):
        lists = content["face"].data[content["face"].properties[0].name]
        arrays["faces"] = np.array(lists, np.int64) if lists.ndim == 2 else _triangles(lists)
    return arrays


def _read_off(path: Path) -> Arrays:
    lines = [line.split("#")[0] for line in path.read_text().splitlines()]
    lines = [line for line in lines if line.strip()]
    first = lines[0].strip()
    if not first.startswith("OFF"):
        raise ValueError(f"an OFF file begins with OFF, this one with {first[:20]!r}")
    # Many files of ModelNet lack the line break after OFF.
    lines = lines[1:] if first == "OFF" else [first[3:], *lines[1:]]
    corners, count = (int(number) for number in lines[0].split()[:2])
    if len(lines) < 1 + corners + count:
        raise ValueError(
            f"expected {corners} corners and {count} faces, the file ends after {len(lines) - 1}"
        )
    vertices = np.loadtxt(lines[1 : 1 + corners], ndmin=2)[:, :3]
    rows = [line.split() for line in lines[1 + corners : 1 + corners + count]]
    faces = [np.array(row[1 : 1 + int(row[0])], dtype=np.int64) for row in rows]
    if any(len(face) != int(row[0]) for face, row in zip(faces, rows, strict=True)):
        raise ValueError("a face lists fewer corners than it says")
    return {"points": vertices, "faces": _triangles(faces)}


def _read_mesh(path: Path) -> Arrays:
    loaded = optional("trimesh", "data").load(str(path), process=False, force="mesh")
    arrays = {"points": np.asarray(loaded.vertices)}
    if len(loaded.faces):
        arrays["faces"] = np.asarray(loaded.faces, dtype=np.int64)
    return arrays


def _read_text(path: Path, columns: Sequence[str] | None) -> Arrays:
    with path.open() as file:
        head = file.readline()
    delimiter = next((mark for mark in (",", ";") if mark in head), None)
    names = [name.strip().strip('"') for name in head.lstrip("#/ ").strip().split(delimiter)]
    has_header = not all(_is_number(name) for name in names)
    table = np.loadtxt(path, delimiter=delimiter, skiprows=int(has_header), ndmin=2, dtype=np.float64)
    if columns is None and has_header and len(names) == table.shape[1]:
        columns = names
    return _by_column(table, columns)


def _read_npy(path: Path, columns: Sequence[str] | None) -> Arrays:
    table = np.load(path, allow_pickle=False)
    if table.dtype.names:
        return {name: table[name] for name in table.dtype.names}
    return _by_column(table, columns)


def _read_npz(path: Path) -> Arrays:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _read_h5(path: Path) -> Arrays:
    h5py = optional("h5py", "data")
    with h5py.File(path, "r") as content:
        return {name: item[()] for name, item in content.items() if isinstance(item, h5py.Dataset)}


def _read_las(path: Path) -> Arrays:
    cloud = optional("laspy", "lidar").read(str(path))
    arrays = {name: np.asarray(cloud[name]) for name in cloud.point_format.dimension_names}
    if len(cloud.x) != cloud.header.point_count:
        raise ValueError(f"expected {cloud.header.point_count} points, the file has {len(cloud.x)}")
    for name in "XYZ":  # the raw integers; scaled coordinates replace them
        del arrays[name]
    return arrays | {"points": np.stack([cloud.x, cloud.y, cloud.z], axis=1)}


FORMATS: dict[str, Callable[..., Arrays]] = {
    ".ply": _read_ply,
    ".off": _read_off,
    ".obj": _read_mesh,
    ".stl": _read_mesh,
    ".xyz": _read_text,
    ".txt": _read_text,
    ".csv": _read_text,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".h5": _read_h5,
    ".hdf5": _read_h5,
    ".las": _read_las,
    ".laz": _read_las,
}


# What they share


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _by_column(table: Array, columns: Sequence[str] | None) -> Arrays:
    if table.ndim != 2:
        raise ValueError(f"expected a table [N, columns], got shape {list(table.shape)}")
    if columns is None:
        columns = ["x", "y", "z", *(f"column{i}" for i in range(3, table.shape[1]))]
    if len(columns) != table.shape[1]:
        raise ValueError(
            f"{len(columns)} columns expected ({', '.join(columns)}), the file has {table.shape[1]}"
        )
    return dict(zip(columns, table.T, strict=True))


def _triangles(faces: Sequence[Array]) -> Array:
    """Polygons as fans of triangles, ``[F, 3]``."""
    sizes = {len(face) for face in faces}
    if sizes == {3}:
        return np.stack(faces).astype(np.int64)
    fans = [(face[0], face[i], face[i + 1]) for face in faces for i in range(1, len(face) - 1)]
    return np.array(fans, dtype=np.int64).reshape(-1, 3)


def _gathered(arrays: Arrays) -> Arrays:
    """Single columns joined to points, normals and colours; the usual synonyms under one name."""
    lower = {name.lower(): array for name, array in arrays.items()}
    for name, choices in TRIPLES.items():
        for choice in choices:
            if name not in lower and all(part in lower for part in choice):
                lower[name] = np.stack([lower.pop(part) for part in choice], axis=1)
    for name, synonyms in {"points": POINTS, "label": LABELS, "colors": ("color", "colour", "rgb")}.items():
        found = next((synonym for synonym in synonyms if synonym in lower), None)
        if name not in lower and found is not None:
            lower[name] = lower.pop(found)
    if "colors" in lower and lower["colors"].dtype.kind in "ui":
        lower["colors"] = lower["colors"] / np.float32(np.iinfo(lower["colors"].dtype).max)
    return lower


def _checked(arrays: Arrays) -> Arrays:
    if "points" not in arrays:
        raise ValueError(
            f"no coordinates; found {', '.join(arrays) or 'nothing'}, expected {', '.join(POINTS)} or x, y, z"
        )
    points = arrays["points"]
    if points.ndim != 2 or points.shape[1] != 3 or not len(points) or points.dtype.kind not in "fiu":
        raise ValueError(f"points must be numbers [N, 3] with N > 0, got {points.dtype} {list(points.shape)}")
    if points.dtype not in (np.float32, np.float64):
        arrays["points"] = points = points.astype(np.float64 if points.dtype.kind in "iu" else np.float32)
    if not np.isfinite(points).all():
        raise ValueError(f"{int((~np.isfinite(points)).any(1).sum())} of {len(points)} points are not finite")
    faces = arrays.get("faces")
    if faces is not None and len(faces) and not 0 <= faces.min() <= faces.max() < len(points):
        raise ValueError(f"a face names corner {faces.max()}, but there are {len(points)} (from 0)")
    return arrays
