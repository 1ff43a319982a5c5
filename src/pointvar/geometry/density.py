"""How dense the points lie: the p(y) of the Monte Carlo estimator."""

from __future__ import annotations

from collections.abc import Sequence

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
    key = ("density", *h.tolist())
    return cloud.derived(key, lambda: ops.kernel_density(cloud.points, cloud.offsets, h))
