r"""Axis 2 of the zoo: how much each neighbour counts, a weight q(x, y) for the integral's estimate.

.. math:: \int F(x + \tau) b_i(\tau) \, d\tau \approx \sum_{y \in N(x)} q(x, y) \, b_i((y - x) / r) \, F(y)

``basis.py`` is the other axis, and shows the known pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from pointvar.cloud import PointCloud
from pointvar.geometry import Neighborhood, kernel_density

__all__ = ["Average", "Estimator", "LearnedDensity", "MonteCarlo", "Sum", "density"]


class Estimator(nn.Module, ABC):
    """An estimate of the integral over the receptive field. A new one defines ``forward``."""

    @abstractmethod
    def forward(self, hood: Neighborhood) -> Tensor:
        """q, one weight per edge, ``[E]``, in the dtype of the points."""

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the estimator's own parameters anew; most estimators have none."""


class Sum(Estimator):
    """Every neighbour counts 1: q = 1."""

    def forward(self, hood: Neighborhood) -> Tensor:
        return hood.kept("sum", lambda: hood.support.points.new_ones(hood.num_edges))


class Average(Estimator):
    """The neighbours of a point count 1 together: ``q = 1 / |N(x)|``, of those that a cap has kept."""

    def forward(self, hood: Neighborhood) -> Tensor:
        return hood.kept("average", lambda: hood.counts.to(hood.support.dtype).reciprocal()[hood.rows])


class MonteCarlo(Estimator):
    r"""A neighbour counts as much as the space it stands for, by the density p of the points there.

    .. math:: q(x, y) = \frac{|N(x)|_\mathrm{total}}{|N(x)|_\mathrm{kept}} \cdot \frac{1}{r^D p(y)}

    p counts points per volume, so :math:`r^D p(y)` counts them per unit of the receptive field. The ratio
    of counts makes the estimate unbiased where a random cap has kept only some of the neighbours.
    Where the radius is 0 (k nearest neighbours that coincide with the query) there is no volume to speak
    of, and the neighbours are averaged.

    Args:
        bandwidth: of the density, as a fraction of the radius (see ``density``).
    """

    def __init__(self, bandwidth: float = 0.2) -> None:
        super().__init__()
        self.bandwidth = _positive(bandwidth)

    def forward(self, hood: Neighborhood) -> Tensor:
        if hood.needs_gradient:
            return self._weights(hood)
        return hood.kept(("monte carlo", self.bandwidth, hood.bandwidth), lambda: self._weights(hood))

    def _weights(self, hood: Neighborhood) -> Tensor:
        radius = hood.radius
        kept, total = hood.counts.to(radius.dtype), hood.total_counts.to(radius.dtype)
        p, unit = _density_and_unit(hood, self.bandwidth)
        if unit is not None:
            radius = radius / unit[hood.queries.batch]
        volume = torch.where(radius > 0, radius, 1) ** hood.support.dim
        q = (total / kept / volume)[hood.rows] / p[hood.indices]
        return torch.where((radius > 0)[hood.rows], q, kept.reciprocal()[hood.rows])

    def extra_repr(self) -> str:
        return f"bandwidth={self.bandwidth:.4g}"


class LearnedDensity(Estimator):
    r"""A network decides how much a neighbour counts, from its density among the neighbours.

    .. math:: q(x, y) = \mathrm{mlp}\!\left(\frac{1 / p(y)}{\max_{y' \in N(x)} 1 / p(y')}\right),
              \qquad 1 \to 16 \to 1

    with a ReLU between the maps and a sigmoid at the end.

    Args:
        bandwidth: of the density, as a fraction of the radius (see ``density``).
        batch_norm: normalises after each map, over the edges of a batch.
        generator: where the maps come from; default: torch's global generator.
    """

    def __init__(
        self, bandwidth: float = 0.2, batch_norm: bool = False, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.bandwidth = _positive(bandwidth)
        norms = (nn.BatchNorm1d(16), nn.BatchNorm1d(1)) if batch_norm else (nn.Identity(), nn.Identity())
        self.mlp = nn.Sequential(
            *(nn.Linear(1, 16), norms[0], nn.ReLU()),
            *(nn.Linear(16, 1), norms[1], nn.Sigmoid()),
        )
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the maps as ``nn.Linear`` does."""
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                bound = layer.in_features**-0.5
                nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
            elif isinstance(layer, nn.BatchNorm1d):
                layer.reset_parameters()

    def forward(self, hood: Neighborhood) -> Tensor:
        p = _density_and_unit(hood, self.bandwidth)[0][hood.indices]
        least = p.new_zeros(hood.queries.num_points)
        least = least.scatter_reduce(0, hood.rows, p, "amin", include_self=False)
        return self.mlp((least[hood.rows] / p)[:, None]).squeeze(1)

    def extra_repr(self) -> str:
        return f"bandwidth={self.bandwidth:.4g}"


def density(hood: Neighborhood, bandwidth: float = 0.2) -> Tensor:
    """How dense the support points lie, ``[N]``, in points per unit volume.

    The densities that the neighbourhood carries (``hood.density``), or else ``kernel_density`` with the
    neighbourhood's own bandwidth (``hood.bandwidth``, as a ``Hierarchy`` sets it), or else with ``bandwidth``
    times the radius of the cloud's queries (the mean radius, where they differ). In differentiation the
    bandwidth counts as constant.

    A layer that is compiled as one graph needs them carried: ``hood.density = density(hood, 0.2)``.
    """
    if hood.density is not None:
        return hood.density
    return kernel_density(hood.support, _bandwidth(hood, bandwidth))


def _bandwidth(hood: Neighborhood, fraction: float) -> float | Tensor:
    return fraction * _mean_radius(hood) if hood.bandwidth is None else hood.bandwidth


def _density_and_unit(hood: Neighborhood, bandwidth: float) -> tuple[Tensor, Tensor | None]:
    """The density per volume in a unit of length of each cloud ``[B]``; ``None`` where that is 1 for all.

    What estimators make of a density has no unit, but the density of a tiny or a huge cloud, its square or
    its slope may not be a number of the dtype. Units are powers of two, which change no digit.
    """
    if hood.density is not None:
        return hood.density, None
    cloud = hood.support
    h = cloud.points.new_ones(cloud.num_clouds) * _bandwidth(hood, bandwidth)
    exponent = h.double().log2().round()
    exponent = torch.where(exponent.abs() > 16, exponent, 0)
    if not bool(exponent.any()):
        return kernel_density(cloud, _bandwidth(hood, bandwidth)), None
    unit = exponent.exp2().to(h)

    def rescaled() -> PointCloud:
        return PointCloud(cloud.points / unit[cloud.batch, None], cloud.lengths)

    return kernel_density(cloud.derived(("rescaled", *unit.tolist()), rescaled), h / unit), unit


def _mean_radius(hood: Neighborhood) -> Tensor:
    """Mean radius of the queries of each cloud, ``[B]``; 1 where that is nothing or 0."""
    radius = hood.radius.detach().double()  # in float64 the mean of equal float32 numbers is that number
    total = radius.new_zeros(hood.queries.num_clouds).index_add(0, hood.queries.batch, radius)
    mean = (total / hood.queries.lengths.clamp(min=1)).to(hood.support.dtype)
    return torch.where(mean > 0, mean, 1.0)


def _positive(bandwidth: float) -> float:
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth}")
    return float(bandwidth)
