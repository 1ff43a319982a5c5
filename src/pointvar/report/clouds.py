"""A point cloud as the viewer of the page takes it: positions in 16 bits, and what to colour points by."""

from __future__ import annotations

import base64
import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

PALETTE = (0x4C78D8, 0xE4793C, 0x3FA56B, 0xC8508F, 0xC9A227, 0x7B61D1, 0x2BA6B8, 0xD64550, 0x8A9A2F, 0x8B6B57)
"""Colours of classes that can be told apart on light and on dark ground."""
NONE = "#9aa0a8"
ERRORS = {-1: NONE, 0: "#b4bfcb", 1: "#d6293e"}
LEVELS = 255


def payload(
    points: ArrayLike,
    labels: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    colors: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    max_points: int = 200_000,
    generator: torch.Generator | None = None,
) -> dict[str, Any]:
    """Points and their colourings as JSON; the arguments are those of ``Report.cloud``."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or not 1 <= array.shape[1] <= 3 or not len(array):
        raise ValueError(
            f"points must have shape [N, 1], [N, 2] or [N, 3] with N > 0, got {list(array.shape)}"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{int((~np.isfinite(array)).any(1).sum())} of {len(array)} points are not finite")
    if max_points < 1:
        raise ValueError(f"max_points must be positive, got {max_points}")
    total = len(array)
    known = {
        "labels": _whole(labels, total, "labels"),
        "predictions": _whole(predictions, total, "predictions"),
    }
    given = {name: item for name, item in known.items() if item is not None}
    names = {-1: "no label", **dict(enumerate(_names(classes, given)))}
    shades = {-1: NONE, **{i: class_color(i) for i in names if i >= 0}}
    layers = [_categories(name, item, names, shades) for name, item in given.items()]
    if len(given) == 2:
        state = np.where(given["labels"] < 0, -1, given["labels"] != given["predictions"])
        layers.append(_categories("errors", state, {-1: "no label", 0: "right", 1: "wrong"}, ERRORS))
    for name, item in (values or {}).items():
        layers.append(_values(name, _column(item, total, name)))
    if colors is not None:
        layers.append(_colors(colors, total))
    if not layers:
        layers.append(_values("height", array[:, -1]))
    # In random order the first points show the whole cloud: a slow viewer draws fewer while it turns.
    random = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(total, generator=random)[:max_points].numpy()
    low, high = array.min(0), array.max(0)
    size = float((high - low).max()) or 1.0
    steps = np.zeros((len(order), 3))
    steps[:, : array.shape[1]] = (array[order] - low) / size * 65535
    for layer in layers:
        layer["data"] = _base64(layer["data"][order])
    return {
        "count": len(order),
        "total": total,
        "low": [*map(float, low), *[0.0] * (3 - len(low))],
        "size": size,
        "positions": _base64(steps.round().astype("<u2")),
        "layers": layers,
    }


def class_color(number: int) -> str:
    """A colour for any class: of the palette, a lighter one of it, and then hues at golden steps."""
    if number < 2 * len(PALETTE):
        color = PALETTE[number % len(PALETTE)]
        parts = [color >> 16, color >> 8 & 255, color & 255]
        if number >= len(PALETTE):
            parts = [part + (255 - part) * 45 // 100 for part in parts]
    else:
        hue, saturation = number * 0.618034 % 1, 0.55 + 0.15 * (number % 3)
        parts = [round(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, 0.85)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def _names(classes: Sequence[str] | None, given: dict[str, Array]) -> list[str]:
    largest = max((int(item.max()) for item in given.values()), default=-1)
    if classes is None:
        return [f"class {i}" for i in range(largest + 1)]
    if largest >= len(classes):
        raise ValueError(f"there is a class {largest}, but only {len(classes)} names of classes (from 0)")
    return [str(name) for name in classes]


def _whole(values: ArrayLike | None, count: int, name: str) -> Array | None:
    if values is None:
        return None
    array = _column(values, count, name)
    if (array != np.floor(array)).any():
        raise TypeError(f"{name} must be whole numbers")
    return np.maximum(array.astype(np.int64), -1)


def _column(values: ArrayLike, count: int, name: str) -> Array:
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} must be numbers [{count}], one per point, got {array.dtype} {list(array.shape)}"
        )
    return array


def _categories(
    name: str, item: Array, names: Mapping[int, str], colors: Mapping[int, str]
) -> dict[str, Any]:
    """Only categories that occur are listed."""
    present, index = np.unique(item, return_inverse=True)
    if len(present) > LEVELS + 1:
        raise ValueError(f"{name} holds {len(present)} classes, the viewer can show {LEVELS + 1}")
    return {
        "name": name,
        "kind": "class",
        "names": [names[int(i)] for i in present],
        "colors": [colors[int(i)] for i in present],
        "counts": np.bincount(index.ravel()).tolist(),
        "data": index.ravel().astype(np.uint8),
    }


def _values(name: str, item: Array) -> dict[str, Any]:
    values = item.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite")
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / ((high - low) or 1.0) * LEVELS
    return {"name": name, "kind": "value", "low": low, "high": high, "data": scaled.round().astype(np.uint8)}


def _colors(colors: ArrayLike, count: int) -> dict[str, Any]:
    array = np.asarray(colors)
    if array.shape != (count, 3):
        raise ValueError(f"colors must have shape [{count}, 3], got {list(array.shape)}")
    if array.dtype != np.uint8:
        array = (array.astype(np.float64).clip(0, 1) * 255).round().astype(np.uint8)
    return {"name": "colour", "kind": "color", "data": array}


def _base64(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
