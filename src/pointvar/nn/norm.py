r"""Normalisation of packed features, per batch, per cloud, per point, or none.

Every module here takes ``(features [N, C], cloud)`` and gives ``[N, C]``:

    "none"   ``NoNorm``, or ``Bias`` where a network wants a learned bias in the place of a norm
    "batch"  ``BatchNorm``: over all points of the batch
    "group"  ``CloudGroupNorm``: over the points of one cloud and the channels of one group
    "layer"  ``LayerNorm``: over the channels of one point

Without a cloud (``None``) each row counts as a cloud of one point, as after global pooling.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar.cloud import PointCloud
from pointvar.layers import check_model, is_norm
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


class Affine(nn.Module):
    r"""A gain and a bias for each channel, :math:`\gamma_c F + \beta_c`: a norm without its statistics.

    Args:
        gain, bias: ``[C]``, what they are at first.
        last: the channels are the last dimensions; default: the second.
    """

    def __init__(self, gain: Tensor, bias: Tensor, last: bool = False) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(gain.detach().clone()), nn.Parameter(bias.detach().clone())
        self.last = last

    def forward(self, features: Tensor, *_: Any, **__: Any) -> Tensor:
        """Whatever else a norm is given, such as the cloud of each point, does not matter."""
        shape = self.gain.shape if self.last else (1, -1, *[1] * (features.dim() - 2))
        return features * self.gain.view(shape).to(features) + self.bias.view(shape).to(features)

    def extra_repr(self) -> str:
        return f"{tuple(self.gain.shape)}"


class Unnormed(nn.Module):
    """A batch norm of a type with a ``forward`` of its own, such as one with an activation, without its
    statistics: it stays in evaluation, with a mean of 0 and a variance of 1. All else that it does, it does.

    Args:
        norm: the module, of which a copy is taken.
        affine: the gain and the bias that it gets.
    """

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, affine: Affine) -> None:
        super().__init__()
        self.norm = copy.deepcopy(norm)
        self.norm.weight, self.norm.bias = affine.gain, affine.bias
        self.norm.track_running_stats = True
        self.norm.running_mean = torch.zeros_like(affine.gain.detach())
        self.norm.running_var = torch.full_like(affine.gain.detach(), 1 - norm.eps)
        self.train(norm.training)

    def train(self, mode: bool = True) -> Unnormed:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.norm(*args, **kwargs)


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
        grouped = wide.view(wide.shape[0], self.groups, self.channels // self.groups)
        count = (cloud.lengths.clamp(min=1) * grouped.shape[2])[:, None].to(wide.dtype)
        mean = cloud_sum(grouped.sum(2), cloud) / count
        centred = grouped - mean[cloud.batch, :, None]
        variance = cloud_sum(centred.square().sum(2), cloud) / count
        scale = (variance + self.eps).rsqrt()[cloud.batch, :, None]
        result = (centred * scale).view_as(wide)
        return (result * self.weight + self.bias).to(features.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, groups={self.groups}"


def remove_norms(model: nn.Module, norms: str = "batch", fold: bool = False) -> dict[str, str]:
    """Puts a gain and a bias per channel (``Affine``) in the place of each norm: name -> type that it had.
    A batch norm of a type with a ``forward`` of its own keeps that (``Unnormed``).

    They start from those of the norm, so that one that starts at 0 on purpose, at the end of a residual
    branch, still does. Norms inside of other modules that call them are found too.

    Args:
        model: any module; changed in place.
        norms: ``"batch"``: what normalises over the batch (torch's, also synchronised; PyTorch Geometric's;
            ours); ``"all"``: others too (group, layer, instance, root mean square).
        fold: takes the running statistics of batch norms into gain and bias, so that the model computes what
            it did in evaluation.
    """
    if norms not in ("batch", "all"):
        raise ValueError(f"norms must be 'batch' or 'all', got {norms!r}")
    if _replaceable(model, norms):
        raise ValueError(f"the model is itself a norm, {type(model).__name__}")
    check_model(model)
    replaced: dict[str, str] = {}
    made: dict[nn.Module, nn.Module] = {}  # a norm in two places stays one
    for name, parent in list(model.named_modules()):
        for child_name, child in list(parent._modules.items()):
            inside = parent in made or isinstance(parent, Unnormed)
            if child is None or inside or not _replaceable(child, norms):
                continue
            path = f"{name}.{child_name}" if name else child_name
            if child not in made:
                affine = _affine_of(child, path, fold)
                made[child] = Unnormed(child, affine) if _has_own_forward(child) else affine
                replaced[path] = type(child).__name__
            parent._modules[child_name] = made[child]
            if isinstance(parent, nn.TransformerEncoderLayer):
                parent.activation_relu_or_gelu = 0  # its fused kernel for evaluation has its own layer norm
    return replaced


_PYG_BATCH_NORM = "torch_geometric.nn.norm.batch_norm.BatchNorm"


def _replaceable(module: nn.Module, norms: str) -> bool:
    kind = type(module)
    batch = isinstance(module, (nn.modules.batchnorm._BatchNorm, BatchNorm))
    batch = batch or f"{kind.__module__}.{kind.__qualname__}" == _PYG_BATCH_NORM
    return batch or (norms == "all" and is_norm(module) and _parts(module) is not None)


def _has_own_forward(norm: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    known = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward)
    return isinstance(norm, nn.modules.batchnorm._BatchNorm) and type(norm).forward not in known


def _parts(norm: nn.Module) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]] | None:
    """Gain and bias of a norm, if it has them, and their shape; ``None`` if that cannot be told."""
    gain, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    for name in ("normalized_shape", "num_features", "num_channels", "channels", "in_channels"):
        shape = getattr(norm, name, None)
        if shape is not None:
            return gain, bias, tuple(shape) if isinstance(shape, Iterable) else (int(shape),)
    return None if gain is None else (gain, bias, tuple(gain.shape))


def _affine_of(norm: nn.Module, name: str, fold: bool) -> Affine:
    inner: Any = norm
    for attribute in ("norm", "module"):  # ours and PyTorch Geometric's have torch's inside
        inside = getattr(inner, attribute, None)
        inner = inside if isinstance(inside, nn.Module) else inner
    parts = _parts(inner)
    assert parts is not None
    gain, bias, shape = parts
    like = next((x for x in (gain, bias, *norm.buffers()) if x is not None and x.is_floating_point()), None)
    options: Any = {} if like is None else {"dtype": like.dtype, "device": like.device}
    gain = torch.ones(shape, **options) if gain is None else gain.detach()
    bias = torch.zeros(shape, **options) if bias is None else bias.detach()
    if fold and isinstance(inner, nn.modules.batchnorm._BatchNorm):
        if inner.running_mean is None or inner.running_var is None:
            raise ValueError(f"{name} has no running statistics to fold in")
        gain = gain * (inner.running_var + inner.eps).rsqrt()
        bias = bias - gain * inner.running_mean
    affine = Affine(gain, bias, last=isinstance(inner, (nn.LayerNorm, nn.RMSNorm)))
    for parameter, old in zip((affine.gain, affine.bias), parts[:2], strict=True):
        parameter.requires_grad_(old is None or old.requires_grad)
    return affine.train(norm.training)
