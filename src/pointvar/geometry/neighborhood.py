"""Which points see which: neighbourhoods as compressed rows (CSR)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointvar import ops, trees
from pointvar.cloud import Keeper, PointCloud, is_traced, kind_of, per_cloud
from pointvar.geometry.packing import replaced


class Transposed(NamedTuple):
    """The same edges, grouped by support point: who sees it, and through which edge."""

    row_offsets: Tensor
    """``[N + 1]``: the edges of support point ``y`` stand at ``row_offsets[y]:row_offsets[y + 1]``."""
    indices: Tensor
    """``[E]``: the query point of each edge, ascending within a row."""
    edges: Tensor
    """``[E]``: the number of the edge in the neighbourhood itself."""


class Needs(NamedTuple):
    """What a layer asks of a neighbourhood beside relative positions, so that it can be made in advance."""

    bandwidth: float | None = None
    """Of the densities of the support points, as a fraction of the receptive field; ``None``: none."""
    weights: bool = False
    """Whether the Monte Carlo weights with these densities (see ``monte_carlo``) are needed."""
    transposed: bool = False
    """Whether the edges by support point are needed."""


class Neighborhood(Keeper):
    r"""For each query point x, the support points y in N(x), as compressed rows.

    The neighbours of query ``i`` are ``indices[row_offsets[i]:row_offsets[i + 1]]``, ascending.
    Made by ``ball_query``, ``knn`` or ``from_edge_index``; layers of one level share one of these.

    Shapes (M queries, N support points, E pairs):
        - row_offsets: ``[M + 1]``, int64; indices, rows: ``[E]``, int64
        - counts: ``[M]``, neighbours kept; total_counts: ``[M]``, neighbours before any random cap
        - radius: ``[M]``, the receptive field of each query (for ``knn``: distance to the farthest)
        - bandwidth: of the densities of the support points, absolute; ``None``: estimators choose their own
        - density: ``[N]`` or ``None``: densities of the support points, for estimators to use in place
          of their own; set by whoever knows better (points per unit volume, as ``kernel_density``)
    """

    def __init__(
        self,
        support: PointCloud,
        queries: PointCloud,
        row_offsets: Tensor,
        indices: Tensor,
        total_counts: Tensor,
        radius: Tensor | float | None = None,
        farthest: Tensor | None = None,
        density: Tensor | None = None,
        bandwidth: float | None = None,
    ) -> None:
        """For the functions of this room, which pass consistent parts. Exactly one of ``radius`` (one or [M])
        and ``farthest`` [M] (the support point whose distance is the radius, -1 for none) is given."""
        self.support, self.queries = support, queries
        self.row_offsets, self.indices, self.total_counts = row_offsets, indices, total_counts
        self._radius, self._farthest, self._density = radius, farthest, density
        self.bandwidth = bandwidth
        self._cache, self._traced = {}, is_traced()

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        support: PointCloud,
        queries: PointCloud | None = None,
        radius: float | Tensor | None = None,
    ) -> Neighborhood:
        """A neighbourhood from pairs in PyTorch Geometric's form: sources above targets.

        Args:
            edge_index: ``[2, E]`` int64; row 0 names support points, row 1 query points. Any order.
            support: the points that are seen.
            queries: the points that see; default: the support itself.
            radius: a number, one per cloud, or ``[M]``; default: each query's farthest neighbour.
        """
        queries = support if queries is None else queries
        check_pair(support, queries)
        _check_edges(edge_index, support, queries)
        source, target = edge_index.to(support.device)
        order = source.argsort(stable=True)
        order = order[target[order].argsort(stable=True)]
        source, target = source[order], target[order]
        numbers = torch.arange(queries.num_points + 1, device=target.device)
        row_offsets = torch.searchsorted(target, numbers)
        counts = row_offsets.diff()
        if radius is None:
            farthest = _farthest(support, queries, source, target)
            return cls(support, queries, row_offsets, source, counts, farthest=farthest)
        if isinstance(radius, Tensor) and radius.shape == (queries.num_points,):
            values = radius.detach().to(support.points)
            if not bool((torch.isfinite(values) & (values > 0)).all()):
                raise ValueError("radius must be positive and finite at every query")
        else:
            values = per_cloud(radius, queries, "radius")[queries.batch]
        return cls(support, queries, row_offsets, source, counts, radius=values)

    @property
    def counts(self) -> Tensor:
        return self.row_offsets.diff()

    @property
    def rows(self) -> Tensor:
        """``[E]``: the query point of each edge."""
        return self.kept("rows", lambda: torch.repeat_interleave(self.counts, output_size=self.num_edges))

    @property
    def num_edges(self) -> int:
        return self.indices.shape[0]

    @property
    def edge_index(self) -> Tensor:
        """``[2, E]``: support (source) above query (target), as PyTorch Geometric expects."""
        return torch.stack([self.indices, self.rows])

    @property
    def radius(self) -> Tensor:
        """``[M]``; follows the points where it is a distance between them and they need gradients."""
        if isinstance(self._radius, float):
            return self._one_radius(self._radius).expand(self.queries.num_points)
        return self.derived("radius", self._reach) if self._radius is None else self._radius

    @property
    def common_radius(self) -> float | None:
        """The radius of all queries, where it was given as one number."""
        return self._radius if isinstance(self._radius, float) else None

    def _one_radius(self, radius: float) -> Tensor:
        return self.kept("one radius", lambda: self.support.points.new_full((1,), radius))

    @property
    def density(self) -> Tensor | None:
        return self._density

    @density.setter
    def density(self, value: Tensor | None) -> None:
        points = self.support.points
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"density must be a tensor, one number per support point, got {kind_of(value)}")
        if value is not None and (value.shape, value.dtype) != (points.shape[:1], points.dtype):
            wanted = f"a {points.dtype} tensor of shape {list(points.shape[:1])}"
            raise ValueError(f"density must be {wanted}, one number per support point, got {kind_of(value)}")
        self._density = value
        self._cache.clear()  # what was made with other densities

    @property
    def needs_gradient(self) -> bool:
        given = self._density is not None and self._density.requires_grad
        return given or self.support.points.requires_grad or self.queries.points.requires_grad

    def _reach(self) -> Tensor:
        if self._farthest is None:
            raise RuntimeError("a neighbourhood has either a radius or farthest neighbours")
        alone = self._farthest < 0
        if not self.support.num_points:
            return self.queries.points.new_zeros(self.queries.num_points)
        offset = self.support.points[self._farthest.clamp(min=0)] - self.queries.points
        squared = (offset * offset).sum(1)
        # The root's slope is infinite at 0: coinciding points keep a radius of 0 and send nothing back.
        still = alone | (squared.detach() == 0)
        return torch.where(still, 0.0, torch.where(still, 1.0, squared).sqrt())

    def relative_positions(self) -> Tensor:
        r"""Offsets in units of the receptive field, :math:`(y - x) / r(x)`, ``[E, D]``.

        Differentiable in the points of both clouds. Where the radius is 0, so is the offset.
        """

        def make() -> Tensor:
            if isinstance(self._radius, float):
                scale = self._one_radius(self._radius)
            else:
                scale = torch.where(self.radius > 0, self.radius, 1.0)[self.rows, None]
            return (self.support.points[self.indices] - self.queries.points[self.rows]) / scale

        return self.derived("offsets", make)

    def edge_radius(self) -> Tensor:
        """The radius of each edge's query, ``[E, 1]``."""
        if isinstance(self._radius, float):
            return self._one_radius(self._radius).expand(self.num_edges, 1)
        return self.derived("edge_radius", lambda: self.radius[self.rows, None])

    def transposed(self) -> Transposed:
        """The edges grouped by support point; computed once."""
        size = self.support.num_points
        return self.kept(
            "transposed", lambda: Transposed(*ops.transpose(self.row_offsets, self.indices, size))
        )

    def orders(self) -> tuple[Any, Any]:
        """Queries ``[M]`` and support points ``[N]`` along a curve through space; computed once.

        Points that follow each other share neighbours, so that these are read from memory once. Where both
        clouds are sorted along it already, there is no other order to visit them in: ``(None, None)``.
        """
        if self.queries.names is not None and self.support.names is not None:
            return None, None
        return spatial_order(self.queries), spatial_order(self.support)

    def _versions(self) -> Any:
        return self.support._versions(), self.queries._versions()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Neighborhood:
        """A copy on another device."""
        return self._moved(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Neighborhood:
        return self._moved(lambda part: part.pin_memory())

    def _moved(self, move: Callable[[Any], Any]) -> Neighborhood:
        support = move(self.support)
        return self.rebased(support, support if self.queries is self.support else move(self.queries), move)

    def rebased(self, support: PointCloud, queries: PointCloud, move: Callable[[Any], Any]) -> Neighborhood:
        """The same edges between copies of the two clouds; ``move`` copies a tensor."""
        return Neighborhood.of_parts(support, queries, *replaced(self.parts(), Tensor, move))

    def parts(self) -> tuple[Any, ...]:
        """All but the clouds: ``of_parts`` makes the same of it, also between copies of the clouds."""
        edges = self.row_offsets, self.indices, self.total_counts
        return *edges, self._radius, self._farthest, self._density, self.bandwidth, self.carried()

    @classmethod
    def of_parts(cls, support: PointCloud, queries: PointCloud, *parts: Any) -> Neighborhood:
        hood = cls(support, queries, *parts[:-1])
        hood.keep(parts[-1])
        return hood

    def __repr__(self) -> str:
        mean = self.num_edges / max(self.queries.num_points, 1)
        return (
            f"Neighborhood({self.queries.num_points} queries, {self.support.num_points} support points, "
            f"{self.num_edges} edges, {mean:.1f} per query, {self.indices.device})"
        )


def tensors_of(hood: Neighborhood) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a neighbourhood is made of but for its clouds: tensors, and what is none."""
    edges = {"row_offsets": hood.row_offsets, "indices": hood.indices, "total_counts": hood.total_counts}
    given = {"radius": hood._radius, "farthest": hood._farthest, "density": hood._density}
    numbers = {name: part for name, part in given.items() if isinstance(part, float)}
    others = {name: part for name, part in given.items() if part is not None and name not in numbers}
    return {**edges, **others}, {**numbers, "bandwidth": hood.bandwidth}


def _parts(hood: Neighborhood) -> tuple[dict[str, Any], dict[str, Any]]:
    clouds = {"support": hood.support}
    if hood.queries is not hood.support:
        clouds["queries"] = hood.queries
    tensors, rest = tensors_of(hood)
    return {**clouds, **tensors}, rest


trees.register(
    Neighborhood, _parts, lambda parts, rest: Neighborhood(**{"queries": parts["support"], **parts, **rest})
)


def spatial_order(cloud: PointCloud) -> Tensor:
    """The points ``[N]``, cloud by cloud, along a Z-shaped curve: what is near in space is near there."""
    if cloud.names is not None:
        return cloud.kept("spatial order", lambda: torch.arange(cloud.num_points, device=cloud.device))
    return cloud.kept("spatial order", lambda: ops.spatial_order(cloud.points.detach(), cloud.offsets))


def check_pair(support: PointCloud, queries: PointCloud) -> None:
    """Both must be batches of the same clouds, in the same space."""
    for cloud in (support, queries):
        if not isinstance(cloud, PointCloud):
            raise TypeError(f"support and queries must be PointClouds, got {type(cloud).__name__}")
    for name in ("dim", "dtype", "device", "num_clouds"):
        a, b = getattr(support, name), getattr(queries, name)
        if a != b:
            raise ValueError(f"support and queries must agree in {name}, got {a} and {b}")


def _check_edges(edge_index: Tensor, support: PointCloud, queries: PointCloud) -> None:
    if not isinstance(edge_index, Tensor) or edge_index.dtype != torch.int64:
        raise TypeError("edge_index must be an int64 tensor of shape [2, E]")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, E], got {list(edge_index.shape)}")
    bounds = torch.stack(edge_index.aminmax(dim=1), 1).tolist() if edge_index.numel() else []
    for (low, high), cloud, name in zip(bounds, (support, queries), ("support", "query"), strict=False):
        if not 0 <= low <= high < cloud.num_points:
            raise ValueError(
                f"edge_index names {name} points {low} to {high}, but there are {cloud.num_points}"
            )
    source, target = edge_index.to(support.device)
    if bool((support.batch[source] != queries.batch[target]).any()):
        raise ValueError("edge_index joins points of different clouds")


def _farthest(support: PointCloud, queries: PointCloud, source: Tensor, target: Tensor) -> Tensor:
    offset = support.points.detach()[source] - queries.points.detach()[target]
    squared = (offset * offset).sum(1)
    largest = squared.new_zeros(queries.num_points).scatter_reduce(0, target, squared, "amax")
    result = target.new_full((queries.num_points,), -1)
    return result.scatter_reduce(0, target, torch.where(squared == largest[target], source, -1), "amax")
