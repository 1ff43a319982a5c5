"""Copies of files with predicted classes: all else in them stays as it is.

LAS and LAZ stay what they are (`pointvar.data.lidar.relabel_las`), and so do PLY and npz. The columns of
other formats go to a PLY.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pointvar.data.containers import Array, Arrays, read_npz
from pointvar.data.formats import LABELS, TRIPLES, optional, read_points, write_ply
from pointvar.data.lidar import CONFIDENCE

SAME = (".las", ".laz", ".ply", ".npz")
"""Endings that stay what they are."""


def copy_name(path: Path) -> str:
    """The name of the copy of a file. A copy has no index, and is not COPC."""
    stem = path.stem.removesuffix(".copc") if path.suffix.lower() == ".laz" else path.stem
    return stem + (path.suffix if path.suffix.lower() in SAME else ".ply")


def relabel(
    path: Path,
    file: BinaryIO,
    codes: Array,
    confidence: Array,
    names: Mapping[int, str],
    label: str = "label",
    colors: Array | None = None,
) -> None:
    """Writes a copy of a file that is no LAS, with its column of labels replaced, or with a new one.

    Args:
        path: of the file.
        file: to write to.
        codes: the classes, ``[N]``.
        confidence: the probabilities of these classes, ``[N]``, to be a column of that name.
        names: of the classes by their codes, to be kept with the copy.
        label: name of the column of labels.
        colors: ``[N, 3]``, uint8, if the file has no colours of its own.
    """
    kind = path.suffix.lower()
    if kind == ".npz":
        arrays = read_npz(path)
        name = _label_column(arrays, label)
        listed = {"codes": np.array(list(names)), "names": np.array(list(names.values()))}
        np.savez(file, **arrays | {name: codes, CONFIDENCE: confidence} | listed)  # type: ignore[arg-type]
    elif kind == ".ply":
        _relabel_ply(path, file, codes, confidence, names, label, colors)
    else:
        columns = _columns(read_points(path), len(codes))
        if colors is not None:
            columns.setdefault("colors", colors)
        columns |= {_label_column(columns, label): codes, CONFIDENCE: confidence}
        write_ply(file, columns.pop("points"), **columns)


def _relabel_ply(
    path: Path,
    file: BinaryIO,
    codes: Array,
    confidence: Array,
    names: Mapping[int, str],
    label: str,
    colors: Array | None,
) -> None:
    plyfile = optional("plyfile", "data")
    content = plyfile.PlyData.read(str(path))
    vertex = content["vertex"].data
    there = {name.lower() for name in vertex.dtype.names}
    new: Arrays = {_label_column(vertex.dtype.names, label): codes.astype(np.int32), CONFIDENCE: confidence}
    if colors is not None and not any(there.issuperset(choice) for choice in TRIPLES["colors"]):
        new |= dict(zip(TRIPLES["colors"][0], colors.T, strict=True))
    kept = [(name, vertex.dtype[name]) for name in vertex.dtype.names if name not in new]
    rows = np.empty(len(vertex), [*kept, *((name, values.dtype) for name, values in new.items())])
    for name, _ in kept:
        rows[name] = vertex[name]
    for name, values in new.items():
        rows[name] = values
    elements = [
        plyfile.PlyElement.describe(rows, "vertex") if element.name == "vertex" else element
        for element in content.elements
    ]
    listed = [f"class {code} {name}" for code, name in names.items()]
    comments = [*(comment for comment in content.comments if comment not in listed), *listed]
    options = {"text": content.text, "byte_order": content.byte_order, "obj_info": content.obj_info}
    plyfile.PlyData(elements, comments=comments, **options).write(file)


def _label_column(names: Iterable[str], label: str) -> str:
    """The column that holds labels, or the name of a new one."""
    known = {name.lower(): name for name in names}
    return next((known[name] for name in (label.lower(), *LABELS) if name in known), label)


def _columns(arrays: Arrays, count: int) -> Arrays:
    """What a PLY can hold: numbers per point, those of several channels one by one."""
    columns: Arrays = {}
    for name, values in arrays.items():
        if values.shape[:1] != (count,) or values.dtype.kind not in "fiub":
            continue
        if values.ndim == 1 or name in TRIPLES:
            columns[name] = values
        else:
            flat = values.reshape(count, -1)
            columns |= {f"{name}_{channel}": flat[:, channel] for channel in range(flat.shape[1])}
    return columns
