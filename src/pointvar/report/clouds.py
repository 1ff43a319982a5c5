"""A point cloud as the viewer of the page takes it: positions in 16 bits, and what to colour points by."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pointvar.report.palette import NONE, RIGHT, WRONG, color, ramp
from pointvar.report.tables import plain

Array = NDArray[Any]
LEVELS = 256
"""How many classes, or steps between the lowest and the highest value, the viewer can show."""


def cloud(
    points: ArrayLike,
    labels: ArrayLike | None,
    predictions: ArrayLike | None,
    classes: Sequence[str] | None,
    colors: ArrayLike | None,
    values: Mapping[str, ArrayLike],
    max_points: int,
    generator: torch.Generator | None,
) -> dict[str, Any]:
    """Points and their colourings for ``viewer.js``; the arguments are those of ``Report.cloud``."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or not 1 <= array.shape[1] <= 3 or not len(array):
        raise ValueError(f"points must have shape [N, 1], [N, 2] or [N, 3], N > 0, got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{int((~np.isfinite(array)).any(1).sum())} of {len(array)} points are not finite")
    if max_points < 1:
        raise ValueError(f"max_points must be positive, got {max_points}")
    total = len(array)
    told = {"labels": labels, "predictions": predictions}
    given = {name: _column(item, total, name, True) for name, item in told.items() if item is not None}
    largest = max((int(item.max()) for item in given.values()), default=-1)
    names = [f"class {i}" for i in range(largest + 1)] if classes is None else list(map(str, classes))
    if largest >= len(names):
        raise ValueError(f"there is a class {largest}, but only {len(names)} names of classes (from 0)")
    kinds = {-1: ("no label", NONE), **{i: (name, color(i)) for i, name in enumerate(names)}}
    layers = [_categories(name, item, kinds) for name, item in given.items()]
    if len(given) == 2:
        state = np.where(given["labels"] < 0, -1, given["labels"] != given["predictions"])
        layers.append(_categories("errors", state, {-1: kinds[-1], 0: ("right", RIGHT), 1: ("wrong", WRONG)}))
    layers += [_scale(name, _column(item, total, name)) for name, item in values.items()]
    if colors is not None:
        layers.append({"name": "colour", "data": _colors(colors, total)})
    layers = layers or [_scale("height", array[:, -1])]
    # In random order the first points show the whole cloud: a slow viewer draws fewer while it turns.
    random = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(total, generator=random)[:max_points].numpy()
    space = np.zeros((total, 3))
    space[:, : array.shape[1]] = array
    middle, extent = (space.max(0) + space.min(0)) / 2, np.ptp(space, axis=0)
    size = float(extent.max()) or 1.0
    return {
        "count": len(order),
        "total": total,
        "middle": middle.tolist(),
        "size": size,
        "radius": float(np.linalg.norm(extent)) / 2 / size or 0.5,
        "positions": _base64(((space[order] - middle) / size * 65534).round().astype("<i2")),
        "layers": [{**layer, "data": _base64(layer["data"][order])} for layer in layers],
    }


def _column(values: ArrayLike, count: int, name: str, whole: bool = False) -> Array:
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "fiub":
        given = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"{name} must be numbers [{count}], one per point, got {given}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    if whole and (array != np.floor(array)).any():
        raise TypeError(f"{name} must be whole numbers")
    return np.maximum(array.astype(np.int64), -1) if whole else array.astype(np.float64)


def _categories(name: str, item: Array, kinds: Mapping[int, tuple[str, str]]) -> dict[str, Any]:
    """Only categories that occur are listed."""
    present, index, counts = np.unique(item, return_inverse=True, return_counts=True)
    if len(present) > LEVELS:
        raise ValueError(f"{name} holds {len(present)} classes, the viewer can show {LEVELS}")
    names, colors = zip(*(kinds[int(i)] for i in present), strict=True)
    data = index.ravel().astype(np.uint8)
    return {"name": name, "names": names, "colors": colors, "counts": counts.tolist(), "data": data}


def _scale(name: str, values: Array) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    data = ((values - low) / ((high - low) or 1.0) * (LEVELS - 1)).round().astype(np.uint8)
    ends = {"low": low, "high": high, "ends": [plain(low), plain(high)]}
    return {"name": name, "colors": ramp(LEVELS), **ends, "data": data}


def _colors(colors: ArrayLike, count: int) -> Array:
    array = np.asarray(colors)
    if array.shape != (count, 3):
        raise ValueError(f"colors must have shape [{count}, 3], got {list(array.shape)}")
    return array if array.dtype == np.uint8 else (array.clip(0, 1) * 255).round().astype(np.uint8)


def _base64(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
