"""A point cloud as the viewer of the page takes it: positions in 16 bits, and what to colour points by."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pointvar.report.palette import NONE, RIGHT, WRONG, color, mixed, ramp
from pointvar.report.tables import plain

Array = NDArray[Any]
MOST = 200_000
"""Points that are shown of a cloud, if nothing else is asked for."""
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
    complete: bool = False,
) -> dict[str, Any]:
    """Points and their colourings for ``viewer.js``; the arguments are those of ``Report.cloud``.

    With ``complete`` all classes are listed, so that clouds of the same classes have the same list.
    """
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
    listed = range(-1, len(names)) if complete else None
    layers = [_categories(name, item, kinds, listed) for name, item in given.items()]
    if len(given) == 2:
        state = np.where(given["labels"] < 0, -1, given["labels"] != given["predictions"])
        states = {-1: kinds[-1], 0: ("right", RIGHT), 1: ("wrong", WRONG)}
        if complete:  # what is right has a pale colour of its class
            state = np.where(state == 1, len(names), given["labels"])
            pale = {i: (name, mixed(shade, "#ffffff", 0.55)) for i, (name, shade) in kinds.items()}
            states = {**pale, len(names): states[1]}
        layers.append(_categories("errors", state, states, states if complete else None))
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


def versions(
    points: ArrayLike, labels: ArrayLike, predictions: Mapping[str, ArrayLike], classes: Sequence[str]
) -> dict[str, Any]:
    """The truth and each prediction as clouds with the same layers, and those; see ``Report.versions``."""
    made = {
        name: cloud(points, labels, item, classes, None, {}, MOST, None, complete=True)
        for name, item in {"truth": labels, **predictions}.items()
    }
    for one in made.values():
        one["layers"] = [one["layers"][2], {**one["layers"][1], "name": "classes"}]
    together = zip(*(one["layers"] for one in made.values()), strict=True)
    layers = [
        {**same[0], "counts": np.sum([s["counts"] for s in same], axis=0).tolist()} for same in together
    ]
    return {"clouds": made, "layers": layers}


def errors_from_above(
    points: ArrayLike, labels: ArrayLike, predictions: ArrayLike, classes: Sequence[str]
) -> dict[str, Any]:
    """A flat cloud with the errors first, and on top; see ``Report.map``."""
    space, label, predicted = np.asarray(points), np.asarray(labels), np.asarray(predictions)
    if space.ndim != 2 or space.shape[1] not in (2, 3):
        raise ValueError(f"points of a map must have shape [N, 2] or [N, 3], got {list(space.shape)}")
    if not len(space) == len(label) == len(predicted):
        sizes = f"{len(space)}, {len(label)} and {len(predicted)}"
        raise ValueError(f"a map needs a label and a prediction per point, got {sizes}")
    place = space[:, :2].astype(np.float64)
    wrong = (label >= 0) & (label != predicted)
    # High enough for 16 bits to tell, too low to be seen.
    height = np.where(wrong, 1e-3 * np.ptp(place, axis=0).max(initial=0), 0.0)
    flat = np.column_stack([place, height])
    made = cloud(flat, label, predicted, classes, None, {}, MOST, None)
    return {**made, "layers": made["layers"][::-1], "middle": made["middle"][:2], "above": True}


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


def _categories(
    name: str, item: Array, kinds: Mapping[int, tuple[str, str]], listed: Iterable[int] | None = None
) -> dict[str, Any]:
    """Only categories that occur are listed, if no others are asked for."""
    present = np.unique(item) if listed is None else np.array(list(listed))
    if len(present) > LEVELS:
        raise ValueError(f"{name} holds {len(present)} classes, the viewer can show {LEVELS}")
    index = np.searchsorted(present, item)
    counts = np.bincount(index, minlength=len(present))
    names, colors = zip(*(kinds[int(i)] for i in present), strict=True)
    data = index.astype(np.uint8)
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
