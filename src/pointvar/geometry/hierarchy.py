"""Levels of ever fewer points, and the neighbourhoods within and between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointvar import ops, trees
from pointvar.cloud import PointCloud, check_cloud, is_ordinary
from pointvar.geometry.density import (
    density_and_unit,
    density_key,
    monte_carlo,
    monte_carlo_key,
    needs_no_unit,
)
from pointvar.geometry.neighborhood import (
    Needs,
    Neighborhood,
    Transposed,
    check_pair,
    spatial_order,
    tensors_of,
)
from pointvar.geometry.packing import pack, unpack
from pointvar.geometry.sampling import farthest_points, poisson_disk
from pointvar.geometry.search import ball_query, draw_seed, knn, positive_int


class _Key(NamedTuple):
    source: int
    target: int
    reach: float
    nearest: int | None = None


class Hierarchy:
    r"""Levels of a point cloud for a network, made once per batch and shared by all its layers.

    Level 0 is a Poisson disk sampling of the given cloud with ``radii[0]``, level i + 1 one of level i
    with ``radii[i + 1]``. The receptive field inside level i is ``reach * radii[i]``; between two levels
    the finer one decides. Neighbourhoods are made on first use and kept; what a random cap chooses
    depends on the generator alone, not on the order of use.

    The points of Poisson disk levels stand along a Z-shaped curve through their cloud, so that layers read
    memory in order. Random choices do not depend on that.

    What is known to be needed (``hoods``, ``needs``) is made together with the levels, on the CPU in one
    native call, with the same result as on first use. A hierarchy travels to other processes and devices as
    a few flat buffers, with all that was made of it.

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
        hoods: neighbourhoods that will be needed: the levels of support and queries (or ``Hierarchy.INPUT``,
            ``Hierarchy.QUERIES``), the reach (``None``: that of the hierarchy), and where the so many nearest
            points are meant, their number.
        needs: what will be needed of each of them, such as the ``needs`` of an estimator.

    Attributes:
        input: the given cloud, level -1 where levels are named.
        queries: the given queries, or the input.
        clouds: the cloud of each level.
        kept: for each level, the indices of its points in the level before (``clouds[i]`` is
            ``clouds[i - 1][kept[i]]``), for pooling that takes features at kept points.
    """

    INPUT = -1
    QUERIES = -3  # not next to a level, so that no step from one ends here

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
        hoods: Sequence[Sequence[Any]] = (),
        needs: Needs | None = None,
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
        self.farthest = None if farthest is None else list(farthest)
        self._seed: int | Tensor = draw_seed(generator)
        self.input = cloud
        self.queries = cloud if queries is None else queries
        check_pair(cloud, self.queries)
        self.clouds: list[PointCloud] = []
        self.kept: list[Tensor] = []
        self._hoods: dict[_Key, Neighborhood] = {}
        self._buffers: list[Tensor] = []
        needs = Needs() if needs is None else needs
        planned = [self._key(*hood) for hood in hoods]
        make = ops.at_once(cloud.points)
        if farthest is not None:
            self._choose_farthest(farthest)
        elif make is None or not self._make_at_once(make, planned, needs):
            self._choose_disks()
        for key in planned:
            if key not in self._hoods:
                _prepare(self._hood(key), needs)

    def _choose_farthest(self, farthest: Sequence[int | float]) -> None:
        cloud = self.input
        for share in farthest:
            count = share if isinstance(share, int) else None
            keep = farthest_points(cloud, count=count, ratio=None if count is not None else share)
            cloud = cloud[keep]
            self.kept.append(keep)
            self.clouds.append(cloud)

    def _choose_disks(self) -> None:
        """The levels one by one. Random choices know a point by its place in an order that is not sorted."""
        cloud = self.input
        for level, radius in enumerate(self.radii):
            keep = poisson_disk(cloud, radius, self._generator(0, level))
            offsets = torch.searchsorted(keep, cloud.offsets)
            if cloud.names is None:
                names = spatial_order(PointCloud._trusted(cloud.points.detach()[keep], offsets))
                keep = keep[names]
            else:
                names = cloud.names[keep].argsort().argsort()
            cloud = PointCloud._trusted(cloud.points[keep], offsets, names)
            self.kept.append(keep)
            self.clouds.append(cloud)

    def _make_at_once(self, make: Callable[..., Any], planned: Sequence[_Key], needs: Needs) -> bool:
        """Levels and neighbourhoods in one call, where nothing is out of the ordinary; whether it was so."""
        radii = {key: self._radius(key) for key in planned}
        given = self.input, self.queries
        if (
            any(cloud.needs_gradient or cloud.names is not None for cloud in given)
            or any(key.nearest is not None for key in planned)
            or not all(map(is_ordinary, (*self.radii, *radii.values())))
            or torch.compiler.is_compiling()
        ):
            return False
        cap = -1 if self.max_neighbors is None else self.max_neighbors
        draw = torch.Generator()
        levels = [
            (radius, draw_seed(draw.manual_seed(self._stream(0, level))))
            for level, radius in enumerate(self.radii)
        ]
        densities: dict[tuple[int, float], int] = {}
        weights: dict[_Key, int] = {}
        hoods = []
        for key, radius in radii.items():
            bandwidth = self._bandwidth(key)
            if bandwidth is None:
                bandwidth = (needs.bandwidth or 0.0) * radius
            if needs.bandwidth is not None and needs_no_unit(bandwidth):
                number = densities.setdefault((key.source, bandwidth), len(densities))
                if needs.weights:
                    weights[key] = number
            seed = 0 if cap < 0 else draw_seed(draw.manual_seed(self._stream(1, key.source, key.target)))
            hoods.append((*key[:2], radius, cap, seed, weights.get(key, -1), needs.transposed))
        queries = (None, None) if self.queries is self.input else (self.queries.points, self.queries.offsets)
        with torch.inference_mode(False):  # what is kept must serve in training, too
            cloud = self.input
            made = make(cloud.points, cloud.offsets, *queries, levels, list(densities), hoods)
            self._take(made, radii, densities, weights, needs)
        return True

    def _take(
        self,
        made: tuple[Tensor, Tensor, list[int]],
        radii: dict[_Key, float],
        densities: dict[tuple[int, float], int],
        weights: dict[_Key, int],
        needs: Needs,
    ) -> None:
        """Views of the buffers, which ``csrc/levels.hpp`` describes."""
        integers, numbers, sizes = made
        self._buffers = [integers, numbers]
        dim, places, count = self.input.dim, self.input.num_clouds + 1, len(self.radii)
        points = dict(enumerate(sizes[:count]))
        points[self.INPUT], points[self.QUERIES] = self.input.num_points, self.queries.num_points
        edges = dict(zip(radii, sizes[count:], strict=True))
        lengths = [length for n in sizes[:count] for length in (n, n, places)]
        for key, e in edges.items():
            m = points[key.target]
            lengths += [m + 1, m, e]
            if needs.transposed:
                lengths += [points[key.source] + 1, e, e]
        taken = iter(integers.split(lengths))
        lengths = [n * dim for n in sizes[:count]]
        lengths += [points[source] for source, _ in densities]
        for key, e in edges.items():
            lengths += [e * dim, e] if key in weights else [e * dim]
        given = iter(numbers.split(lengths))
        for _ in range(count):
            keep, names, offsets = next(taken), next(taken), next(taken)
            self.kept.append(keep)
            self.clouds.append(PointCloud._trusted(next(given).view(-1, dim), offsets, names))
        for source, bandwidth in densities:
            self._cloud(source).keep({density_key(self.input.dtype, bandwidth): next(given)})
        for key, radius in radii.items():
            row_offsets, total, indices = next(taken), next(taken), next(taken)
            clouds = self._cloud(key.source), self._cloud(key.target)
            hood = Neighborhood(*clouds, row_offsets, indices, total, radius, bandwidth=self._bandwidth(key))
            known: dict[Any, Any] = {"offsets": next(given).view(-1, dim)}
            if needs.transposed:
                known["transposed"] = Transposed(next(taken), next(taken), next(taken))
            if key in weights and needs.bandwidth is not None:
                known[monte_carlo_key(needs.bandwidth, hood.bandwidth)] = next(given)
            hood.keep(known)
            self._hoods[key] = hood

    def __len__(self) -> int:
        return len(self.clouds)

    @property
    def settings(self) -> dict[str, Any]:
        """With which another cloud gets levels like these: ``Hierarchy(cloud, **levels.settings)``."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {**settings, "hoods": [list(key) for key in sorted(self._hoods, key=str)]}

    def within(self, level: int, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """The neighbourhood of level ``level`` in itself; with ``nearest``, the so many nearest points."""
        return self._hood(self._key(level, level, reach, nearest))

    def down(self, level: int, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """From level ``level`` to the next coarser one; ``down(-1)`` starts at the input points."""
        return self._hood(self._key(level, level + 1, reach, nearest))

    def up(self, level: int, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """From level ``level`` to the next finer one; ``up(0)`` ends at the input points."""
        return self._hood(self._key(level, level - 1, reach, nearest))

    def out(self, reach: float | None = None, nearest: int | None = None) -> Neighborhood:
        """From level 0 to the queries."""
        return self._hood(self._key(0, self.QUERIES, reach, nearest))

    def _key(self, source: int, target: int, reach: float | None = None, nearest: int | None = None) -> _Key:
        for level in (source, target):
            if level != self.QUERIES and not self.INPUT <= level < len(self.radii):
                levels = f"levels are 0 to {len(self.radii) - 1}, -1 is the input"
                raise ValueError(f"there is no level {level}: {levels}")
        if self.queries is self.input:
            source, target = (self.INPUT if level == self.QUERIES else level for level in (source, target))
        return _Key(source, target, self.reach if reach is None else float(reach), nearest)

    def _hood(self, key: _Key) -> Neighborhood:
        if key not in self._hoods:
            support, queries = self._cloud(key.source), self._cloud(key.target)
            if key.nearest is None:
                generator = self._generator(1, key.source, key.target)
                hood = ball_query(support, queries, self._radius(key), self.max_neighbors, generator)
            else:
                hood = knn(support, queries, key.nearest)
            hood.bandwidth = self._bandwidth(key)
            self._hoods[key] = hood
        return self._hoods[key]

    def _radius(self, key: _Key) -> float:
        return key.reach * self.radii[max(min(key.source, key.target), 0)]

    def _bandwidth(self, key: _Key) -> float | None:
        return None if self.bandwidth is None else self.bandwidth * self.radii[max(key.source, 0)]

    def _cloud(self, level: int) -> PointCloud:
        if level == self.QUERIES:
            return self.queries
        return self.input if level == self.INPUT else self.clouds[level]

    def _stream(self, *key: int) -> int:
        """The seed of one stream of random numbers per use, so that the order of use does not matter."""
        stream = 0
        for part in key:
            stream = stream * 1009 + part + 2
        return (int(self._seed) + stream) % (1 << 63)

    def _generator(self, *key: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._stream(*key))

    # Copies

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Hierarchy:
        """A copy on another device, with all that was made so far."""
        if torch.device(device) == self.input.device:
            return self
        return self._moved(lambda buffer: buffer.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Hierarchy:
        return self._moved(lambda buffer: buffer.pin_memory())

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Hierarchy:
        packed, buffers = pack(self._parts(), self._buffers)
        copy = Hierarchy.__new__(Hierarchy)
        copy.__setstate__((packed, [move(buffer) for buffer in buffers]))
        return copy

    def __getstate__(self) -> tuple[Any, list[Tensor]]:
        return pack(self._parts(), self._buffers)

    def __setstate__(self, state: tuple[Any, list[Tensor]]) -> None:
        packed, self._buffers = state
        settings, clouds, self.kept, hoods = unpack(packed, self._buffers)
        self.__dict__.update(settings)
        self.input, queries, *self.clouds = (cloud and _cloud_of(*cloud) for cloud in clouds)
        self.queries = self.input if queries is None else queries
        self._hoods = {
            key: Neighborhood.of_parts(self._cloud(key.source), self._cloud(key.target), *parts)
            for key, parts in hoods.items()
        }

    def _parts(self) -> tuple[Any, ...]:
        """All that is needed to make the same again, as a tree of tensors."""
        made = "input", "queries", "clouds", "kept", "_hoods", "_buffers"
        settings = {name: value for name, value in self.__dict__.items() if name not in made}
        others = None if self.queries is self.input else self.queries
        clouds = [cloud and _parts_of(cloud) for cloud in (self.input, others, *self.clouds)]
        return settings, clouds, self.kept, {key: hood.parts() for key, hood in self._hoods.items()}

    def __repr__(self) -> str:
        sizes = ", ".join(str(cloud.num_points) for cloud in self.clouds)
        return f"Hierarchy({self.input.num_points} points -> {sizes}; radii {self.radii}, reach {self.reach})"


_SETTINGS = "radii", "reach", "max_neighbors", "farthest", "bandwidth"


def _tree(levels: Hierarchy) -> tuple[dict[str, Any], dict[str, Any]]:
    """What it is, without what was computed from it but the neighbourhoods.

    The seed is a tensor, so that two hierarchies of one network are alike but for their tensors.
    """
    keys = sorted(levels._hoods, key=str)
    hoods = [tensors_of(levels._hoods[key]) for key in keys]
    seed = torch.tensor(levels._seed) if isinstance(levels._seed, int) else levels._seed
    others = {} if levels.queries is levels.input else {"queries": levels.queries}
    made = {"clouds": levels.clouds, "kept": levels.kept, "hoods": [tensors for tensors, _ in hoods]}
    rest = {name: getattr(levels, name) for name in _SETTINGS}
    rest["hoods"] = [[list(key), numbers] for key, (_, numbers) in zip(keys, hoods, strict=True)]
    return {"input": levels.input, **others, **made, "seed": seed}, rest


def _of_tree(parts: dict[str, Any], rest: dict[str, Any]) -> Hierarchy:
    levels = Hierarchy.__new__(Hierarchy)
    levels.__dict__.update({name: rest[name] for name in _SETTINGS}, _seed=parts["seed"], _buffers=[])
    levels.input, levels.clouds, levels.kept = parts["input"], list(parts["clouds"]), list(parts["kept"])
    levels.queries = parts.get("queries", levels.input)
    levels._hoods = {}
    for (key, numbers), tensors in zip(rest["hoods"], parts["hoods"], strict=True):
        ends: dict[str, Any] = {"support": levels._cloud(key[0]), "queries": levels._cloud(key[1])}
        levels._hoods[_Key(*key)] = Neighborhood(**ends, **tensors, **numbers)
    return levels


trees.register(Hierarchy, _tree, _of_tree)


def _prepare(hood: Neighborhood, needs: Needs) -> None:
    """Makes what is needed and missing; what carries gradients is made where it is used."""
    if hood.needs_gradient or torch.is_inference_mode_enabled():  # neither would be kept
        return
    hood.relative_positions()
    if needs.transposed:
        hood.transposed()
    if needs.bandwidth is not None:
        (monte_carlo if needs.weights else density_and_unit)(hood, needs.bandwidth)


def _parts_of(cloud: PointCloud) -> tuple[Any, ...]:
    return cloud.points, cloud.offsets, cloud.names, cloud.carried()


def _cloud_of(points: Tensor, offsets: Tensor, names: Tensor | None, carried: dict[Any, Any]) -> PointCloud:
    cloud = PointCloud._trusted(points, offsets, names)
    cloud.keep(carried)
    return cloud
