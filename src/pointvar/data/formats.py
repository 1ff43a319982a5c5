"""Point clouds and meshes from files: one reader per format, one dictionary of arrays for all.

`read_points` gives ``points`` ``[N, 3]`` and, where the file has them, ``normals`` ``[N, 3]``, ``colors``
``[N, 3]`` in 0..1, ``faces`` ``[F, 3]``, ``label`` ``[N]`` and any other column under its own name.

Files may come from anywhere. Nothing in them is executed, no other file is opened for them, and what they
declare is checked against their size before memory is taken for it (`pointvar.limits`).
"""

from __future__ import annotations

import hashlib
import importlib
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from pointvar.atomic import writing
from pointvar.data.containers import Array as Array
from pointvar.data.containers import Arrays as Arrays
from pointvar.data.containers import read_hdf5, read_npy, read_npz
from pointvar.data.lidar import read_las
from pointvar.data.mesh import Mesh, sample_surface
from pointvar.limits import BadFileError as BadFileError
from pointvar.limits import check_size

POINTS = ("points", "xyz", "pos", "position", "positions", "coord", "coords", "data", "vertices")
LABELS = ("label", "labels", "class", "classification", "category", "semantic", "segment")
MESH_POINTS = 2048
PLY_BYTES = {
    **dict.fromkeys(("char", "uchar", "int8", "uint8"), 1),
    **dict.fromkeys(("short", "ushort", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32", "uint32", "float32"), 4),
    **dict.fromkeys(("double", "float64"), 8),
}
TRIPLES = {
    "points": [("x", "y", "z")],
    "normals": [("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")],
    "colors": [("red", "green", "blue"), ("r", "g", "b")],
}


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
    with named(path, path.suffix[1:]):
        return checked(gathered(reader(path, columns)))


def write_ply(path: Path | str | BinaryIO, points: ArrayLike, **columns: ArrayLike) -> None:
    """Writes a binary PLY of points with named columns, such as ``label`` or ``confidence``.

    Args:
        path: the file to write, which is whole or not there, or one that is open.
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
        if name not in TRIPLES:
            table[name] = array
        elif array.ndim == 2 and array.shape[1] == 3:
            table.update(zip(TRIPLES[name][0], array.T, strict=True))
        else:
            raise ValueError(f"{name} must have shape [N, 3], got {list(array.shape)}")
    for name, array in table.items():
        if array.shape != table["x"].shape:
            raise ValueError(f"column {name!r} must have shape [{len(table['x'])}], got {list(array.shape)}")
    rows = np.rec.fromarrays(list(table.values()), [(name, array.dtype) for name, array in table.items()])
    with writing(path) if isinstance(path, (str, Path)) else nullcontext(path) as file:
        plyfile.PlyData([plyfile.PlyElement.describe(rows, "vertex")]).write(file)


def mesh_points(num_points: int | None = None) -> int:
    """How many points are sampled on a mesh of which so many are drawn in each epoch."""
    return max(num_points or 0, MESH_POINTS)


def sampled(arrays: Arrays, num_points: int, path: Path) -> Arrays:
    """Points and normals on the surface of a mesh that was read from ``path``; the same each time."""
    seed = hashlib.sha256(path.name.encode()).digest()[:8]
    random = np.random.default_rng(int.from_bytes(seed, "big"))
    try:
        points, normals = sample_surface(Mesh(arrays["points"], arrays["faces"]), num_points, random)
    except ValueError as error:
        raise BadFileError(f"{path}: {error}") from error
    return {"points": points, "normals": normals}


def read_clouds(path: Path) -> tuple[Array, Array]:
    """Many clouds of as many points from one h5 file: ``data`` ``[M, N, 3]`` and ``label`` ``[M]``."""
    names = ("data", "label")
    with named(path, "h5 with data and label"):
        arrays = read_hdf5(path, optional("h5py", "data"), lambda _: names)
        return check_clouds(*(arrays[name] for name in names))


def check_clouds(points: Array, labels: Array) -> tuple[Array, Array]:
    """Clouds ``[M, N, 3]`` and their labels ``[M]``, or a ValueError if they do not fit."""
    labels = labels.reshape(-1)
    if points.ndim != 3 or points.shape[2] != 3 or not points.size or len(points) != len(labels):
        raise ValueError(f"data {list(points.shape)} and label {list(labels.shape)} do not fit")
    if points.dtype.kind not in "fiu" or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(f"points must be numbers ({points.dtype}) and labels count from 0 ({labels.dtype})")
    if not np.isfinite(points).all():
        raise ValueError("data holds NaN or infinity")
    return points, labels.astype(np.int64)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    with named(path, "text"):
        return [line.strip() for line in path.read_text("utf8").splitlines() if line.strip()]


@contextmanager
def named(path: Path, kind: str) -> Iterator[None]:
    """Whatever goes wrong in a broken file is a BadFileError that names it."""
    if not path.stat().st_size:
        raise BadFileError(f"{path}: the file is empty")
    try:
        with warnings.catch_warnings():  # of values that make no sense
            warnings.simplefilter("ignore")
            yield
    except (ImportError, MemoryError, PermissionError):
        raise
    except BaseException as error:  # readers raise whatever they like; a panic in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error)[:500] or type(error).__name__
        raise BadFileError(f"{path}: cannot be read as {kind}: {reason}") from error


def optional(module: str, extra: str) -> Any:
    """A module that only some formats need, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'pointvar[{extra}]'") from error


def read_arrays(path: Path, names: Collection[str] | None = None) -> Arrays:
    """The arrays of an ``npz`` file that are named, or all."""
    with named(path, "npz"):
        return read_npz(path, names)


# One reader per format; columns name those of a file that does not


def _read_ply(path: Path, columns: Sequence[str] | None) -> Arrays:
    plyfile = optional("plyfile", "data")
    _check_ply(path)
    try:  # lists that are known to hold three are read in one go
        triangles = {"face": {"vertex_indices": 3, "vertex_index": 3}}
        content = plyfile.PlyData.read(str(path), known_list_len=triangles)
    except plyfile.PlyElementParseError:
        content = plyfile.PlyData.read(str(path))
    vertex = content["vertex"]
    # Copies: the file is mapped into memory, and may be written again while these are in use.
    arrays = {item.name: np.array(vertex[item.name]) for item in vertex.properties}
    if "face" in content and len(content["face"]) and content["face"].properties:
        lists = content["face"].data[content["face"].properties[0].name]
        arrays["faces"] = np.array(lists, np.int64) if lists.ndim == 2 else _triangles(lists)
    return arrays


def _read_off(path: Path, columns: Sequence[str] | None) -> Arrays:
    """Own, for trimesh takes a file that ends too early for one with fewer faces."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    first, *lines = [line for line in lines if line] or [""]
    if not first.startswith("OFF"):
        raise ValueError(f"an OFF file begins with OFF, this one with {first[:20]!r}")
    if first != "OFF":  # many files of ModelNet lack the line break
        lines = [first[3:], *lines]
    corners, count = (int(number) for number in lines[0].split()[:2])
    if corners < 0 or count < 0:
        raise ValueError(f"the numbers of corners and faces must not be negative, got {corners} and {count}")
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


def _read_mesh(path: Path, columns: Sequence[str] | None) -> Arrays:
    # From memory, so that no materials or textures are looked for in other files.
    content, kind = BytesIO(path.read_bytes()), path.suffix[1:].lower()
    options = {"skip_materials": True} if kind == "obj" else {}
    mesh = optional("trimesh", "data").load(content, kind, process=False, force="mesh", **options)
    return {"points": np.asarray(mesh.vertices)} | (
        {"faces": np.asarray(mesh.faces, np.int64)} if len(mesh.faces) else {}
    )


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


def _read_h5(path: Path, columns: Sequence[str] | None) -> Arrays:
    def chosen(shapes: dict[str, tuple[int, ...]]) -> list[str]:
        """Points, what has as many rows as they, and faces; nothing else is read."""
        lengths = {name.lower(): shape[0] for name, shape in shapes.items() if shape}
        count = next((lengths[name] for name in (*POINTS, "x") if name in lengths), None)
        if count is None:
            raise ValueError(f"no coordinates; found {', '.join(shapes) or 'nothing'}")
        return [name for name in shapes if name.lower() == "faces" or shapes[name][:1] == (count,)]

    return read_hdf5(path, optional("h5py", "data"), chosen)


def _read_numpy(path: Path, columns: Sequence[str] | None) -> Arrays:
    with path.open("rb") as file:
        single = file.read(6) == b"\x93NUMPY"
    return _by_column(read_npy(path), columns) if single else read_npz(path)


def _read_las(path: Path, columns: Sequence[str] | None) -> Arrays:
    return read_las(path, optional("laspy", "lidar"))


FORMATS: dict[str, Callable[[Path, Sequence[str] | None], Arrays]] = {
    ".ply": _read_ply,
    ".off": _read_off,
    **dict.fromkeys((".obj", ".stl"), _read_mesh),
    **dict.fromkeys((".xyz", ".txt", ".csv"), _read_text),
    **dict.fromkeys((".npy", ".npz"), _read_numpy),
    **dict.fromkeys((".h5", ".hdf5"), _read_h5),
    **dict.fromkeys((".las", ".laz"), _read_las),
}


# What they share


def _check_ply(path: Path) -> None:
    """That the elements which the header declares fit into the file."""
    with path.open("rb") as file:
        head = [line.split() for line in takewhile(lambda line: line.strip() != b"end_header", file)]
    text = [b"format", b"ascii"] in [words[:2] for words in head]
    elements: list[list[int]] = []  # number of rows, and the least that one takes in bytes
    for words in head:
        if words[:1] == [b"element"]:
            elements.append([int(words[2]), 0])
        elif words[:1] == [b"property"] and elements:
            kind = words[2 if words[1] == b"list" else 1].decode()
            elements[-1][1] += 2 if text else PLY_BYTES[kind]
    if any(count < 0 or (count and not width) for count, width in elements):
        raise ValueError("an element has a negative number of rows, or no properties")
    # The last line of a text may lack its end.
    check_size(path, sum(count * width for count, width in elements) - text, "elements", 1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _by_column(table: Array, columns: Sequence[str] | None) -> Arrays:
    if table.dtype.names:
        return {name: table[name] for name in table.dtype.names}
    if table.ndim != 2:
        raise ValueError(f"expected a table [N, columns], got shape {list(table.shape)}")
    width = table.shape[1]
    if columns is None:
        columns = ["x", "y", "z", *(f"column{i}" for i in range(3, width))]
    if twice := sorted({name for name in columns if list(columns).count(name) > 1}):
        raise ValueError(f"the column {', '.join(twice)} is there twice")
    if len(columns) != width:
        raise ValueError(f"{len(columns)} columns expected ({', '.join(columns)}), the file has {width}")
    return dict(zip(columns, table.T, strict=True))


def _triangles(faces: Sequence[Array]) -> Array:
    """Polygons as fans of triangles, ``[F, 3]``."""
    if {len(face) for face in faces} == {3}:
        return np.stack(faces).astype(np.int64)
    fans = [(face[0], face[i], face[i + 1]) for face in faces for i in range(1, len(face) - 1)]
    return np.array(fans, dtype=np.int64).reshape(-1, 3)


def gathered(arrays: Arrays) -> Arrays:
    """Single columns joined to points, normals and colours; the usual synonyms under one name."""
    lower = {name.lower(): array for name, array in arrays.items()}
    if len(lower) < len(arrays):
        raise ValueError(f"two columns have the same name; there are {', '.join(arrays)}")
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


def checked(arrays: Arrays) -> Arrays:
    """The arrays of a file, whose points are finite numbers."""
    if "points" not in arrays:
        raise ValueError(
            f"no coordinates; found {', '.join(arrays) or 'nothing'}, expected {', '.join(POINTS)} or x, y, z"
        )
    points = arrays["points"]
    if points.ndim == 3:
        raise ValueError(
            f"it holds {len(points)} clouds {list(points.shape[1:])}: write each to a file of its own"
        )
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
