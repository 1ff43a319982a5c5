r"""Axis 2 of the zoo: how much each neighbour counts, a weight q(x, y) for the integral's estimate.

.. math:: \int F(x + \tau) b_i(\tau) \, d\tau \approx \sum_{y \in N(x)} q(x, y) \, b_i((y - x) / r) \, F(y)

``basis.py`` is the other axis, and shows the known pairs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from pointvar.geometry import Needs, Neighborhood
from pointvar.geometry.density import density, density_and_unit, monte_carlo

__all__ = ["Average", "Estimator", "LearnedDensity", "MonteCarlo", "Sum", "density"]


class Estimator(nn.Module, ABC):
    """An estimate of the integral over the receptive field. A new one defines ``forward``.

    ``needs`` says what can be made in advance, along with a neighbourhood (see ``Hierarchy``); what is not
    is made when it is asked for.
    """

    @property
    def needs(self) -> Needs:
        return Needs()

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

    @property
    def needs(self) -> Needs:
        return Needs(self.bandwidth, weights=True)

    def forward(self, hood: Neighborhood) -> Tensor:
        return monte_carlo(hood, self.bandwidth)

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

    @property
    def needs(self) -> Needs:
        return Needs(self.bandwidth)

    def forward(self, hood: Neighborhood) -> Tensor:
        p = density_and_unit(hood, self.bandwidth)[0][hood.indices]
        least = p.new_zeros(hood.queries.num_points)
        least = least.scatter_reduce(0, hood.rows, p, "amin", include_self=False)
        return self.mlp((least[hood.rows] / p)[:, None]).squeeze(1)

    def extra_repr(self) -> str:
        return f"bandwidth={self.bandwidth:.4g}"


def _positive(bandwidth: float) -> float:
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}")
    return float(bandwidth)
