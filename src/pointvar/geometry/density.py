"""How dense the points lie: the p(y) of the Monte Carlo estimator, and its weights."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from pointvar import ops
from pointvar.cloud import PointCloud, check_cloud, is_ordinary, per_cloud
from pointvar.geometry.neighborhood import Neighborhood
from pointvar.ops.grid import widest


def kernel_density(cloud: PointCloud, bandwidth: float | Sequence[float] | Tensor) -> Tensor:
    r"""Points per unit volume around each point, ``[N]``, estimated with a Gaussian kernel.

    .. math:: p(y) = \sum_k G_h(y - y_k), \qquad
              G_h(d) = (2 \pi h^2)^{-D/2} \exp(-\|d\|^2 / 2 h^2)

    The sum runs over all points of y's cloud, y itself included, and is cut at 4 h.
    Differentiable in the points. The result is kept with the cloud, unless gradients are needed.

    Args:
        cloud: a batch of clouds.
        bandwidth: h, absolute, in the units of the points; a number or one per cloud.
    """
    check_cloud(cloud)
    lengths = [bandwidth] if is_ordinary(bandwidth) else per_cloud(bandwidth, cloud, "bandwidth").tolist()

    def make() -> Tensor:
        _check_range(lengths, cloud)
        return ops.kernel_density(cloud.points, cloud.offsets, per_cloud(bandwidth, cloud, "bandwidth"))

    return cloud.derived(density_key(cloud.dtype, *lengths), make)


def density_key(dtype: torch.dtype, *bandwidths: float) -> tuple[str | float, ...]:
    """Under which a cloud keeps its densities: the bandwidth that all have in its dtype, or each one's."""
    rounds = dtype == torch.float32 and not torch.compiler.is_compiling()  # where nothing is kept
    given = [ctypes.c_float(h).value for h in bandwidths] if rounds else bandwidths
    return "density", *(given if len(set(given)) > 1 else given[:1])


def monte_carlo(hood: Neighborhood, bandwidth: float = 0.2) -> Tensor:
    r"""How much space each neighbour stands for in units of the receptive field, ``[E]``.

    .. math:: q(x, y) = \frac{|N(x)|_\mathrm{total}}{|N(x)|_\mathrm{kept}} \cdot \frac{1}{r^D p(y)}

    Where the radius is 0 there is no volume to speak of: 1 / kept.

    Args:
        hood: the neighbourhood.
        bandwidth: of the density p, as a fraction of the radius (see ``density``).
    """

    def make() -> Tensor:
        radius = hood.radius
        kept, total = hood.counts.to(radius.dtype), hood.total_counts.to(radius.dtype)
        p, unit = density_and_unit(hood, bandwidth)
        if unit is not None:
            radius = radius / unit[hood.queries.batch]
        volume = torch.where(radius > 0, radius, 1) ** hood.support.dim
        q = (total / kept / volume)[hood.rows] / p[hood.indices]
        return torch.where((radius > 0)[hood.rows], q, kept.reciprocal()[hood.rows])

    return hood.derived(monte_carlo_key(bandwidth, hood.bandwidth), make)


def monte_carlo_key(fraction: float, bandwidth: float | None) -> tuple[str, float, float | None]:
    """Under which a neighbourhood keeps its Monte Carlo weights."""
    return "monte carlo", fraction, bandwidth


def density(hood: Neighborhood, bandwidth: float = 0.2) -> Tensor:
    """How dense the support points lie, ``[N]``, in points per unit volume.

    The densities that the neighbourhood carries (``hood.density``), or else ``kernel_density`` with the
    neighbourhood's own bandwidth (``hood.bandwidth``, as a ``Hierarchy`` sets it), or else with ``bandwidth``
    times the radius of the cloud's queries (the mean radius, where they differ). In differentiation the
    bandwidth counts as constant.
    """
    if hood.density is not None:
        return hood.density
    return kernel_density(hood.support, _bandwidth(hood, bandwidth))


def density_and_unit(hood: Neighborhood, bandwidth: float) -> tuple[Tensor, Tensor | None]:
    """The density per volume in a unit of length of each cloud ``[B]``; ``None`` where that is 1 for all.

    What estimators make of a density has no unit, but the density of a tiny or a huge cloud, its square or
    its slope may not be a number of the dtype. Units are powers of two, which change no digit.
    """
    if hood.density is not None:
        return hood.density, None
    cloud, given = hood.support, _bandwidth(hood, bandwidth)
    if needs_no_unit(given):
        return kernel_density(cloud, given), None
    h = cloud.points.new_ones(cloud.num_clouds) * given
    exponent = h.to(widest(h.device)).log2().round()
    exponent = torch.where(exponent.abs() > 16, exponent, 0)
    if torch.compiler.is_compiling():  # where no number can be asked for, any unit will do
        unit = exponent.exp2().to(h)
        return ops.kernel_density(cloud.points / unit[cloud.batch, None], cloud.offsets, h / unit), unit
    if not bool(exponent.any()):
        return kernel_density(cloud, given), None
    unit = exponent.exp2().to(h)

    def rescaled() -> PointCloud:
        return PointCloud(cloud.points / unit[cloud.batch, None], cloud.lengths)

    return kernel_density(cloud.derived(("rescaled", *unit.tolist()), rescaled), h / unit), unit


def needs_no_unit(bandwidth: object) -> TypeGuard[float]:
    """Whether one point's share of the density, its square and its slope are ordinary numbers."""
    return isinstance(bandwidth, float) and 2.0**-16 < bandwidth < 2.0**16


def _bandwidth(hood: Neighborhood, fraction: float) -> float | Tensor:
    if hood.bandwidth is not None:
        return hood.bandwidth
    return fraction * (_mean_radius(hood) if hood.common_radius is None else hood.common_radius)


def _mean_radius(hood: Neighborhood) -> Tensor:
    """Mean radius of the queries of each cloud, ``[B]``; 1 where that is nothing or 0."""
    wide = widest(hood.indices.device)  # there the mean of equal float32 numbers is that number
    radius = hood.radius.detach().to(wide)
    total = radius.new_zeros(hood.queries.num_clouds).index_add(0, hood.queries.batch, radius)
    mean = (total / hood.queries.lengths.clamp(min=1)).to(hood.support.dtype)
    return torch.where(mean > 0, mean, 1.0)


def _check_range(bandwidths: list[float], cloud: PointCloud) -> None:
    """One point's share of the density, and where needed its slope, are numbers that the dtype has."""
    limits = torch.finfo(cloud.dtype)
    for h in bandwidths:
        exponents = [-cloud.dim * math.log(math.sqrt(2 * math.pi) * h)]
        if cloud.needs_gradient:
            exponents.append(exponents[0] - 2 * math.log(h))
        # A compiled graph serves clouds of any size.
        room = 0.0 if torch.compiler.is_compiling() else math.log(max(cloud.num_points, 1))
        if min(exponents) < math.log(limits.tiny) or max(exponents) + room > math.log(limits.max):
            raise ValueError(
                f"a density at bandwidth {h:.3g} in {cloud.dim}D (or its gradient) is out of the range of "
                f"{cloud.dtype}: rescale the cloud, or use float64"
            )
