"""How dense the points lie: the p(y) of the Monte Carlo estimator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pointvar import ops
from pointvar.cloud import PointCloud, check_cloud, per_cloud


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
    h = per_cloud(bandwidth, cloud, "bandwidth")
    lengths = h.tolist()
    _check_range(lengths, cloud)
    key = ("density", *lengths)
    return cloud.derived(key, lambda: ops.kernel_density(cloud.points, cloud.offsets, h))


def _check_range(bandwidths: list[float], cloud: PointCloud) -> None:
    """One point's share of the density, and where needed its slope, are numbers that the dtype has."""
    limits = torch.finfo(cloud.dtype)
    for h in bandwidths:
        exponents = [-cloud.dim * math.log(math.sqrt(2 * math.pi) * h)]
        if cloud.needs_gradient:
            exponents.append(exponents[0] - 2 * math.log(h))
        room = math.log(max(cloud.num_points, 1))
        if min(exponents) < math.log(limits.tiny) or max(exponents) + room > math.log(limits.max):
            raise ValueError(
                f"a density at bandwidth {h:.3g} in {cloud.dim}D (or its gradient) is out of the range of "
                f"{cloud.dtype}: rescale the cloud, or use float64"
            )
