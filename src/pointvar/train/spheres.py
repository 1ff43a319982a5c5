r"""Predictions from spheres that lie in the same places of the world, whatever is cut out of it.

The centres of the spheres are the nodes of a body-centred cubic lattice, the thinnest one whose spheres cover
space: with edges :math:`a = 4 r / \sqrt 5`, no place is farther than :math:`r` from a node. Each point is
predicted by the sphere of its nearest node, from the points within the context around that node, in an order
that only their coordinates decide. So a prediction depends on nothing but the points within ``radius +
context``: files, tiles and windows may be cut anywhere, and agree on what they share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pointvar.data import Sample
from pointvar.data.transforms import seeded
from pointvar.train.build import transform_of
from pointvar.train.config import DataConfig
from pointvar.train.loader import LEVELS, ORDER, SAMPLE, TEST
from pointvar.train.voting import SPHERE, evaluating, look_at

Array = NDArray[Any]
FINEST = 6
"""How often spheres that hold too many points are halved."""


class Sphere(NamedTuple):
    """What a network sees at once.

    Shapes (n points in the context):
        - rows: ``[n]``, ascending
        - inner: ``[n]``, true for the points whose nearest node is the centre
        - wanted: ``[n]``, true for those of them that are to be predicted here
        - node: ``[3]``, of the centre
    """

    rows: Array
    inner: Array
    wanted: Array
    node: Array
    level: int
    centre: Array


@torch.no_grad()
def predict_points(
    model: nn.Module,
    points: Array,
    features: Array,
    rows: Array,
    config: DataConfig,
    num_classes: int,
    votes: int = 1,
    seed: int = 0,
    sphere: int = SPHERE,
    progress: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """The classes of some points, and the probabilities given to them.

    Args:
        points: coordinates in float64, sorted by the first (as in `pointvar.data.survey.distinct`).
        features: as the network takes them, float32.
        rows: which points are to be predicted.
        num_classes: as many classes the network has to have.
        votes: passes whose probabilities are summed; with more than one, all are augmented, and each has
            spheres in other places.
        sphere: largest number of points that a network gets; where there are more, spheres are smaller.
        progress: called with the number of points that were predicted in one of the votes.

    Shapes (N points, M of them wanted):
        - points: ``[N, 3]``; features: ``[N, C]``; rows: ``[M]``
        - result: two of ``[M]``, int64 and float32
    """
    if config.poisson is not None:
        raise ValueError("clouds of a segmentation keep all their points: data.poisson must be null")
    transform = transform_of(config, "segmentation", augment=votes > 1)
    wanted = np.zeros(len(points), bool)
    wanted[rows] = True
    sums = torch.zeros(len(points), num_classes)
    with evaluating(model) as device:
        for vote in range(votes):
            shift = torch.rand(3, dtype=torch.float64, generator=seeded(seed, TEST, vote, ORDER)).numpy()
            for found in spheres(points, wanted, config.radius, config.context, shift, sphere):
                key = (seed, TEST, vote, found.level, *(int(place) % 2**32 for place in found.node))
                part = Sample(
                    torch.from_numpy((points[found.rows] - found.centre).astype(np.float32)),
                    torch.from_numpy(features[found.rows]),
                    -1,
                )
                look = transform(part, seeded(*key, SAMPLE))
                inner = torch.from_numpy(found.inner)
                probabilities = look_at(model, look, inner, seeded(*key, LEVELS), device)
                if (predicted := probabilities.shape[1]) != num_classes:
                    text = f"the network predicts {predicted} classes and names {num_classes}"
                    raise ValueError(f"{text}: save it again, with the classes it was trained on")
                # All inner points are asked for, whoever wants them: a random choice depends on how many.
                sums[found.rows[found.wanted]] += probabilities[torch.from_numpy(found.wanted[found.inner])]
                if progress is not None:
                    progress(int(found.wanted.sum()))
    share, labels = sums[rows].max(1)
    return labels, share / votes


def spheres(
    points: Array, wanted: Array, inner: float, outer: float, shift: Array, limit: int
) -> Iterator[Sphere]:
    """Spheres that together have each wanted point inside once.

    A sphere with more than ``limit`` points is left out, and its points are in smaller ones, of half the
    radii. Whether that is so depends on the points in the sphere alone.
    """
    waiting = wanted
    for level in range(FINEST + 1):
        if not waiting.any():
            return
        radius, context = inner / 2**level, outer / 2**level
        pitch = 4 / math.sqrt(5) * radius
        nodes = nearest_nodes(points, pitch, shift)
        left = np.zeros(len(points), bool)
        for node in np.unique(nodes[waiting], axis=0):
            centre = (node / 2 + shift) * pitch
            start, end = np.searchsorted(points[:, 0], [centre[0] - context, centre[0] + context])
            near = ((points[start:end] - centre) ** 2).sum(1) < context**2
            index = start + np.flatnonzero(near)
            own = (nodes[index] == node).all(1)
            mine = own & waiting[index]
            if len(index) > limit and level < FINEST:
                left[index[mine]] = True
            else:
                yield Sphere(index, own, mine, node, level, centre)
        waiting = left


def nearest_nodes(points: Array, pitch: float, shift: Array) -> Array:
    """The nearest nodes of a body-centred cubic lattice, in halves of its edge, ``[N, 3]`` int64."""
    scaled = points / pitch - shift
    corner, middle = np.rint(scaled), np.floor(scaled) + 0.5
    nearer = ((scaled - middle) ** 2).sum(1) < ((scaled - corner) ** 2).sum(1)
    return (2 * np.where(nearer[:, None], middle, corner)).astype(np.int64)
