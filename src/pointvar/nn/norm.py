r"""Normalisation of packed features, per batch, per cloud, per point, or none.

Every module here takes ``(features [N, C], cloud)`` and gives ``[N, C]``:

    "none"   ``NoNorm``, or ``Bias`` where a network wants a learned bias in the place of a norm
    "batch"  ``BatchNorm``: over all points of the batch
    "group"  ``CloudGroupNorm``: over the points of one cloud and the channels of one group
    "layer"  ``LayerNorm``: over the channels of one point

Without a cloud (``None``) each row counts as a cloud of one point, as after global pooling.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar.cloud import PointCloud
from pointvar.nn.names import NORMS
from pointvar.nn.pool import check_rows, cloud_sum

Norm = str | Callable[[int], nn.Module]
"""A name, or a function that makes a norm for so many channels."""


def make_norm(norm: Norm, channels: int, bias: bool = False, momentum: float = 0.1) -> nn.Module:
    """A norm from its name, or from any function ``channels -> module`` that makes one.

    Args:
        norm: a name of ``NORMS``, or a function; the module that it makes takes ``(features, cloud)``.
        channels: C
        bias: ``"none"`` is a learned bias, not nothing.
        momentum: of the running statistics of ``"batch"``.
    """
    if callable(norm):
        return norm(channels)
    make, options = NORMS.resolve(norm), {"bias": bias, "momentum": momentum}
    named = inspect.signature(make).parameters
    return make(channels, **{name: value for name, value in options.items() if name in named})


def for_rows(norm: Norm) -> Norm:
    """The norm of a head, where each cloud is one row: groups of at least 8 channels.

    A group of two channels of a single row would be normalised to +1 and -1, whatever they were.
    """
    if norm != "group":
        return norm
    return lambda channels: CloudGroupNorm(channels, max(1, min(32, channels // 8)))


def no_norm(channels: int, bias: bool = False) -> nn.Module:
    return Bias(channels) if bias else NoNorm()


class NoNorm(nn.Module):
    """Features as they are."""

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        return features


class Bias(nn.Module):
    """A learned number per channel, 0 at first, added to the features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        return features + self.bias.to(features.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.bias)}"


class BatchNorm(nn.Module):
    r"""Batch normalisation over all points of the batch, :math:`(F - \mu_c) / \sqrt{\sigma_c^2 + \epsilon}`.

    In training it needs two rows at least: of one row, the variance is 0 and the result says nothing.
    """

    def __init__(self, channels: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels, momentum=momentum)

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        if self.training and features.shape[0] == 0:
            return features  # no statistics to take
        if self.training and features.shape[0] == 1:
            rows = "cloud" if cloud is None else "point"
            raise ValueError(
                f"batch normalisation of {self.norm.num_features} channels cannot train on a single {rows}: "
                "it has no variance; use larger batches, or another norm ('group', 'layer', 'none'), "
                "in a classifier's head by head_norm='none'"
            )
        return self.norm(features)


class LayerNorm(nn.Module):
    """Layer normalisation over the channels of each point."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        return self.norm(features)


class CloudGroupNorm(nn.Module):
    r"""Group normalisation with the statistics of each cloud, whatever else is in the batch.

    .. math:: y[x, c] = \gamma_c \, \frac{F[x, c] - \mu[b, g]}{\sqrt{\sigma^2[b, g] + \epsilon}} + \beta_c

    for a point x of cloud b and a channel c of group g, where :math:`\mu` and :math:`\sigma^2` are mean and
    variance over the points of the cloud and the channels of the group together.

    Args:
        channels: C
        groups: at most so many; the largest number is used that divides C and leaves two channels in each
            group (one channel at one point would be normalised to 0).
        eps: added to the variance.
    """

    def __init__(self, channels: int, groups: int = 32, eps: float = 1e-5) -> None:
        super().__init__()
        if min(channels, groups) < 1:
            raise ValueError(
                f"group normalisation needs channels and groups, got {channels} channels, {groups} groups"
            )
        self.channels, self.eps = channels, eps
        self.groups = max(g for g in range(1, min(groups, max(channels // 2, 1)) + 1) if channels % g == 0)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor, cloud: PointCloud | None = None) -> Tensor:
        if features.dim() != 2 or features.shape[1] != self.channels:
            raise ValueError(f"features must have shape [N, {self.channels}], got {list(features.shape)}")
        if cloud is None:
            return functional.group_norm(features, self.groups, self.weight, self.bias, self.eps)
        check_rows(features, cloud)
        wide = features.to(self.weight.dtype)  # statistics are never in low precision
        grouped = wide.view(len(wide), self.groups, self.channels // self.groups)
        count = (cloud.lengths.clamp(min=1) * grouped.shape[2])[:, None].to(wide.dtype)
        mean = cloud_sum(grouped.sum(2), cloud) / count
        centred = grouped - mean[cloud.batch, :, None]
        variance = cloud_sum(centred.square().sum(2), cloud) / count
        scale = (variance + self.eps).rsqrt()[cloud.batch, :, None]
        result = (centred * scale).view_as(wide)
        return (result * self.weight + self.bias).to(features.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, groups={self.groups}"
