"""Levels of ever fewer points, and the neighbourhoods within and between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pointvar.cloud import PointCloud, check_cloud
from pointvar.geometry.neighborhood import Neighborhood, check_pair
from pointvar.geometry.sampling import farthest_points, poisson_disk
from pointvar.geometry.search import ball_query, draw_seed, knn, positive_int

_INPUT = -1
_QUERIES = -3  # not next to a level, so that no step from one ends here


class Hierarchy:
    r"""Levels of a point cloud for a network, made once per batch and shared by all its layers.

    Level 0 is a Poisson disk sampling of the given cloud with ``radii[0]``, level i + 1 one of level i
    with ``radii[i + 1]``. The receptive field inside level i is ``reach * radii[i]``; between two levels
    the finer one decides. Neighbourhoods are made on first use and kept; what a random cap chooses
    depends on the generator alone, not on the order of use.

    Args:
        cloud: the input points.
        radii: Poisson radius of each level, ascending.
        reach: receptive field in units of the level's radius.
        max_neighbors: random cap on the neighbours of a point; ``None``: no cap.
        generator: source of all randomness; default: torch's global generator.
        farthest: choose the levels by farthest points instead: for each level the number of points
            per cloud (int) or the share of the level before it (float). Radii then only set the reach.
        bandwidth: of the density of a neighbourhood's support points, in units of their level's radius, for
            estimators that divide by it; ``None``: these take their own fraction of the receptive field.
        queries: points where a network's output is wanted, of the same clouds; default: the input points.

    Attributes:
        input: the given cloud, level -1 where levels are named.
        queries: the given queries, or the input.
        clouds: the cloud of each level.
        kept: for each level, the indices of its points in the level before (``clouds[i]`` is
            ``clouds[i - 1][kept[i]]``), for pooling that takes features at kept points.
    """

    def __init__(
        self,
        cloud: PointCloud,
        radii: Sequence[float],
        reach: float = 3.0,
        max_neighbors: int | None = None,
        generator: torch.Generator | None = None,
        *,
        farthest: Sequence[int | float] | None = None,
        bandwidth: float | None = None,
        queries: PointCloud | None = None,
    ) -> None:
        check_cloud(cloud)
        self.radii = [float(radius) for radius in radii]
        ascending = sorted(self.radii) == self.radii
        if not self.radii or not ascending or not all(0 < r < math.inf for r in self.radii):
            raise ValueError(f"radii must be positive and ascending, one per level, got {list(radii)}")
        if not 0 < reach < math.inf:
            raise ValueError(f"reach must be positive and finite, got {reach}")
        if max_neighbors is not None:
            positive_int(max_neighbors, "max_neighbors")
        if farthest is not None and len(farthest) != len(self.radii):
            raise ValueError(f"farthest needs one entry per level ({len(self.radii)}), got {len(farthest)}")
        if bandwidth is not None and not 0 < bandwidth < math.inf:
            raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}")
        self.reach, self.max_neighbors, self.bandwidth = float(reach), max_neighbors, bandwidth
        self._seed = draw_seed(generator)
        self.input = cloud
        self.queries = cloud if queries is None else queries
        check_pair(cloud, self.queries)
        self.clouds: list[PointCloud] = []
        self.kept: list[Tensor] = []
        for level, radius in enumerate(self.radii):
            if farthest is None:
                keep = poisson_disk(cloud, radius, self._generator(0, level))
            elif isinstance(farthest[level], int):
                keep = farthest_points(cloud, count=int(farthest[level]))
            else:
                keep = farthest_points(cloud, ratio=farthest[level])
            cloud = cloud[keep]
            self.kept.append(keep)
            self.clouds.append(cloud)
        self._hoods: dict[tuple[int, int, float, int | None], Neighborhood] = {}

    def __len__(self) -> int:
        return len(self.clouds)

    def within(self, level: int, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """The neighbourhood of level ``level`` in itself; with ``nearest``, the so many nearest points."""
        return self._hood(level, level, reach, nearest)

    def down(self, level: int, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """From level ``level`` to the next coarser one; ``down(-1)`` starts at the input points."""
        return self._hood(level, level + 1, reach, nearest)

    def up(self, level: int, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """From level ``level`` to the next finer one; ``up(0)`` ends at the input points."""
        return self._hood(level, level - 1, reach, nearest)

    def out(self, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """From level 0 to the queries."""
        return self._hood(0, _INPUT if self.queries is self.input else _QUERIES, reach, nearest)

    def _hood(self, source: int, target: int, reach: float | None, nearest: int | None) -> Neighborhood:
        support, queries = self._cloud(source), self._cloud(target)
        reach = self.reach if reach is None else float(reach)
        key = (source, target, reach, nearest)
        if key not in self._hoods:
            if nearest is None:
                radius = reach * self.radii[max(min(source, target), 0)]
                generator = self._generator(1, source, target)
                hood = ball_query(support, queries, radius, self.max_neighbors, generator)
            else:
                hood = knn(support, queries, nearest)
            if self.bandwidth is not None:
                hood.bandwidth = self.bandwidth * self.radii[max(source, 0)]
            self._hoods[key] = hood
        return self._hoods[key]

    def _cloud(self, level: int) -> PointCloud:
        if level == _QUERIES:
            return self.queries
        if not _INPUT <= level < len(self.clouds):
            raise ValueError(f"there is no level {level}: levels are 0 to {len(self) - 1}, -1 is the input")
        return self.input if level == _INPUT else self.clouds[level]

    def _generator(self, *key: int) -> torch.Generator:
        """One stream of random numbers per use, so that the order of use does not matter."""
        stream = 0
        for part in key:
            stream = stream * 1009 + part + 2
        return torch.Generator().manual_seed((self._seed + stream) % (1 << 63))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Hierarchy:
        """A copy on another device, with the neighbourhoods made so far."""
        return self._moved(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Hierarchy:
        return self._moved(lambda part: part.pin_memory())

    def _moved(self, move: Callable[[Any], Any]) -> Hierarchy:
        copy = Hierarchy.__new__(Hierarchy)
        copy.__dict__.update(self.__dict__)
        copy.input = move(self.input)
        copy.queries = copy.input if self.queries is self.input else move(self.queries)
        copy.clouds = [move(cloud) for cloud in self.clouds]
        copy.kept = [move(keep) for keep in self.kept]
        copy._hoods = {
            key: hood.rebased(copy._cloud(key[0]), copy._cloud(key[1]), move)
            for key, hood in self._hoods.items()
        }
        return copy

    def __repr__(self) -> str:
        sizes = ", ".join(str(cloud.num_points) for cloud in self.clouds)
        return f"Hierarchy({self.input.num_points} points -> {sizes}; radii {self.radii}, reach {self.reach})"
