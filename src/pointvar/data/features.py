"""Features from the columns of a file, scaled by what was measured on the training data.

A description of features is a dictionary, kept with a saved network (``notes["features"]``):

==========  ============================================================================================
``names``   of the columns in order; none gives the constant 1
``shift``   what is subtracted from each channel (``colors`` and ``normals`` have three)
``scale``   what each channel is divided by
``ground``  side of the window in which the lowest points are the ground, for ``height``
==========  ============================================================================================

Beside the columns of `read_points` there are two more: ``one``, the constant 1, which shows a network where
points are at all, and ``height`` above the ground, where a file has no column of that name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from pointvar.data.formats import Array
from pointvar.data.names import GROUND

LIMIT = 5.0
UNSCALED = ("one", "normals")
"""Channels that have a scale of their own."""
_CELLS = 16  # of a window
_LARGEST = 2**26  # cells of a map of the ground
_DEVIATIONS = 2 * 1.6448536  # between the quantiles 0.05 and 0.95 of a normal distribution
_MEASURED = 20_000  # points per cloud


def scaled_features(arrays: Mapping[str, Array], features: Mapping[str, Any]) -> Array:
    r"""The features of points, ``[N, C]`` float32.

    .. math:: f = \mathrm{clip}((x - shift) / scale, -5, 5)

    Args:
        arrays: of one file, as `read_points` gives them.
        features: their description; without ``shift`` and ``scale`` columns are as they are in the file.

    Raises:
        ValueError: a column is missing, or holds no finite number per point.
    """
    values = columns_of(arrays, features["names"], features.get("ground", GROUND))
    return apply_scale(values, features)


def apply_scale(values: Array, features: Mapping[str, Any]) -> Array:
    """Channels ``[N, C]`` shifted, scaled and clipped, if the description says by how much."""
    if features.get("shift") is None:
        return values
    shift, scale = (np.asarray(features[name], np.float32) for name in ("shift", "scale"))
    if shift.shape != (values.shape[1],) or scale.shape != shift.shape:
        raise ValueError(
            f"the features {', '.join(features['names'])} have {values.shape[1]} channels here, "
            f"their scales are for {len(shift)}"
        )
    # Numbers that float32 does not have are clipped, too.
    with np.errstate(over="ignore"):
        return ((values - shift) / scale).clip(-LIMIT, LIMIT)


def columns_of(arrays: Mapping[str, Array], names: Sequence[str], ground: float = GROUND) -> Array:
    """The columns of these names side by side, ``[N, C]`` float32; none gives the constant 1."""
    points = arrays["points"]
    made = {"one": lambda: np.ones(len(points)), "height": lambda: height(points, ground)}
    if missing := [name for name in names if name not in arrays and name not in made]:
        raise ValueError(f"no column {', '.join(missing)}; there are {', '.join(arrays)}")
    parts = []
    for name in names or ["one"]:
        values = arrays[name] if name in arrays else made[name]()
        if values.dtype.kind not in "fiub" or values.shape[:1] != (len(points),):
            given = f"{values.dtype} {list(values.shape)}"
            raise ValueError(f"{name} must be numbers for {len(points)} points, got {given}")
        with np.errstate(over="ignore"):
            part = np.asarray(values, np.float32).reshape(len(points), -1)
        if not np.isfinite(part).all():
            raise ValueError(f"{name} holds NaN or infinity, or numbers that float32 does not have")
        parts.append(part)
    return np.concatenate(parts, 1)


def measure_scale(names: Sequence[str], clouds: Iterable[Array], ground: float = GROUND) -> dict[str, Any]:
    """The description of features whose channels are scaled by the median and the spread of these clouds.

    The spread is the distance between the quantiles 0.05 and 0.95 in units of that of a normal distribution,
    which a few retro-reflectors among the intensities do not change, as they do a standard deviation. Where
    nine of ten points have the same value (return numbers), it is the standard deviation. A channel that is
    constant is only shifted. ``one`` and ``normals`` stay as they are.

    Args:
        names: of the columns.
        clouds: channels ``[N, C]`` of each cloud, of which points at even distances are looked at.
    """
    taken = [values[:: -(-len(values) // _MEASURED)] for values in clouds if len(values)]
    seen = np.concatenate(taken).astype(np.float64)
    low, shift, high = np.quantile(seen, [0.05, 0.5, 0.95], axis=0)
    scale = (high - low) / _DEVIATIONS
    scale = np.where(scale > 0, scale, seen.std(0))
    keep = np.repeat([name in UNSCALED for name in names], widths(names))
    if len(keep) != seen.shape[1]:
        raise ValueError(
            f"the features {', '.join(names)} must have {len(keep)} channels, three for colors and normals, "
            f"one for any other, got {seen.shape[1]}"
        )
    shift, scale = np.where(keep, 0.0, shift), np.where(keep | (scale == 0), 1.0, scale)
    return {"names": list(names), "shift": shift.tolist(), "scale": scale.tolist(), "ground": ground}


def widths(names: Sequence[str]) -> list[int]:
    """How many channels each column has."""
    return [3 if name in ("colors", "normals") else 1 for name in names]


def height(points: Array, window: float) -> Array:
    r"""Height of points above the ground, ``[N]``, in units of the points; up is z.

    The ground is the lowest point in each cell of a map, without pits that are narrower than three cells
    (noise), opened by a window: what rises and is narrower than the window is on the ground, a hill is the
    ground. Cells are where they are in the world, so that two tiles agree where they see the same window.

    Args:
        window: side of the window, larger than the largest building, in units of the points.
    """
    side = window / _CELLS
    cells = np.floor(points[:, :2] / side)
    cells -= cells.min(0)
    rows, columns = (int(size) + 1 for size in cells.max(0))
    if rows * columns > _LARGEST:
        extent = " x ".join(f"{size:g}" for size in np.ptp(points[:, :2], axis=0))
        raise ValueError(
            f"the points lie in {extent} units, which is too wide for a map of the ground with cells of "
            f"{side:g}: remove points that lie far away, or give a larger data.ground than {window:g}"
        )
    place = (cells[:, 0] * columns + cells[:, 1]).astype(np.int64)
    lowest = np.full(rows * columns, np.inf)
    np.minimum.at(lowest, place, points[:, 2])
    surface = torch.from_numpy(lowest.reshape(rows, columns))
    surface = _erode(_dilate(surface, 3), 3)
    surface = _dilate(_erode(surface, _CELLS + 1), _CELLS + 1)
    return points[:, 2] - surface.reshape(-1).numpy()[place]


def _erode(surface: Tensor, size: int) -> Tensor:
    """The lowest in a square of cells; infinite where nothing is known."""
    return -_dilate_known(-surface, size)


def _dilate(surface: Tensor, size: int) -> Tensor:
    highest = _dilate_known(surface.where(surface.isfinite(), -math.inf), size)
    return highest.where(highest.isfinite(), math.inf)


def _dilate_known(surface: Tensor, size: int) -> Tensor:
    """The highest in a square of cells, by rows and then by columns."""
    pooled = max_pool2d(surface[None], (size, 1), 1, (size // 2, 0))
    return max_pool2d(pooled, (1, size), 1, (0, size // 2))[0]
