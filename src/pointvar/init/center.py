r"""Centred draws: weights that do not pass on what all points and clouds have in common.

Over the points, unlike over draws of the weights, the mean of an output is not 0: after a ReLU every input is
positive in the mean, and so is what the weights multiply. This common part grows with depth, while the second
moment stays and what tells clouds apart fades. A draw without it, of strength a, is

.. math:: W \leftarrow (I - a \, u u^T) W, \qquad u = \bar\phi / \|\bar\phi\|, \qquad
          \mathrm{Var}[w] = \frac{V_\mathrm{target}}{Z - (2 a - a^2) \, \mathrm{E}[(u^T \phi)^2]}

because :math:`\phi^T (I - a \, u u^T)^2 \phi = \|\phi\|^2 - (2 a - a^2) (u^T \phi)^2`. With a = 1 every
output has mean 0 on the data measured. The share of the output's second moment that is not common is then

.. math:: S = 1 - (1 - a)^2 \, \|\bar\phi\|^2 / (Z - (2 a - a^2) \, \mathrm{E}[(u^T \phi)^2])

Too much of it is not good either. A ReLU brings together what differs: of a small share S it leaves
:math:`S - \kappa S^{3/2}`, :math:`\kappa = 2 \sqrt 2 / 3 \pi`. Weights that make up for this let the least
difference between two clouds, and a gradient on its way back, grow by :math:`1 + \kappa \sqrt S` in each
layer, as in chaos. ``"auto"`` allows for a growth by B in all L layers of the network, and so for a share of

.. math:: S^* = \min(1, (B^{1/L} - 1)^2 / \kappa^2)

A layer whose share is larger by itself is not centred; all others get the least a that gives :math:`S^*`. So
what smoothing, pooling and the activations take from the differences is given back, and no more.

``norm_free`` finds L in a pass: the longest way through the layers. Beside a stream of second moment m, a
branch of second moment 1 counts as 1 / (m + 1) of its layers, since what grows by g in it grows by
(m + g) / (m + 1) in the sum. What is added to an identity matrix, as by the T-Nets of PointNet, and branches
that begin at 0 do not count.

Of a layer for which Z has no formula the output is centred instead, by the bias, if there is one.

All is measured with the layer as it is. Its output is linear in its weights, so that the mean of what they
multiply is a gradient, and :math:`u^T \phi` the output under weights u.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pointvar.convolution import PointConvolution
from pointvar.geometry import Neighborhood
from pointvar.init.report import LayerInit
from pointvar.init.walk import Call, Statistic, checked, square_mean
from pointvar.layers import Layer, channels_last, pointwise

Center = float | Literal["auto"]  # True is "auto"
GROWTH = 4.0
"""B, of the power of differences: of their size it is 2."""
KEPT = 1 << 24
"""Numbers of a projection that are kept in memory, 64 MB."""
LEAST = 1e-4
"""Share of Z that must be left: less is rounding."""


class Centering:
    """How strongly the layers of a network are centred, of which so many follow each other."""

    def __init__(self, center: Center, depth: float) -> None:
        if center is True:
            center = "auto"
        if center != "auto" and not (isinstance(center, (int, float)) and 0 <= center <= 1):
            raise ValueError(f"center must be a strength from 0 to 1, or 'auto', got {center!r}")
        self.center = center
        kappa = 2 * 2**0.5 / (3 * math.pi)
        self.share = min(1.0, ((GROWTH ** (1 / max(depth, 1)) - 1) / kappa) ** 2)

    def __bool__(self) -> bool:
        return self.center != 0

    def strength(self, z: float, common: float, mean: float) -> float:
        """a, for a layer with this Z, mean of :math:`(u^T \\phi)^2` and squared norm of the mean."""
        kept = 1.0  # (1 - a)^2
        if self.center != "auto":
            kept = (1 - self.center) ** 2
        elif mean > (1 - self.share) * common:
            kept = min(1.0, (1 - self.share) * (z - common) / (mean - (1 - self.share) * common))
        if z - (1 - kept) * common < LEAST * z:
            return 0.0
        return 1 - kept**0.5


def centred(
    layer: Layer, goal: float, centering: Centering, generator: torch.Generator | None, orthogonal: bool
) -> Generator[Statistic, Tensor, LayerInit]:
    """Measures and draws one layer."""
    found = yield _moment_and_mean
    z, mean = checked(layer, found[0], "input"), found[1:].view(layer.groups, 1, -1)
    length = mean.norm(dim=2, keepdim=True)
    direction = mean / length.where(length > 0, 1)
    rows = layer.by_channel(layer.weights[0])
    direction = direction.view(rows.shape[0], 1, *rows.shape[2:]).to(rows)
    common = float((yield partial(_common, direction)))
    squared = float(length.square().mean())
    strength = centering.strength(z, common, squared)
    left = z - (2 * strength - strength**2) * common
    layer.draw(goal / left, generator, orthogonal)
    if strength:
        drawn = layer.by_channel(layer.weight)
        flat, u = drawn.flatten(2), direction.flatten(2).mT
        layer.weight = _like(layer, torch.baddbmm(flat, flat @ u, u.mT, alpha=-strength).view_as(drawn))
    share = 1 - (1 - strength) ** 2 * squared / left
    alike = not strength and z - common < LEAST * z
    note = "not centred: its inputs are all alike" if alike else ""
    entry = LayerInit(layer.name, layer.type, goal / left, goal, z, note=note)
    entry.center, entry.share = strength, share
    return entry


def centred_by_bias(
    layer: Layer, entry: LayerInit, goal: float, centering: Centering
) -> Generator[Statistic, Tensor, bool]:
    """Centres a layer of which only the output is known: by its bias, if it has one for each channel.

    The weights are set, the biases 0. Says whether it did; else all is as it was.
    """
    mean, square = yield channel_moments
    bias = layer.bias_of(mean.numel())
    moment, common = float(square.mean()), float(mean.square().mean())
    strength = centering.strength(moment, common, common)
    if bias is None or not strength:
        return False
    left = moment - (2 * strength - strength**2) * common
    factor = (goal / left) ** 0.5
    layer.scale(factor)
    with torch.no_grad():
        bias.copy_((-strength * factor * mean).view_as(bias))
    found = float((yield lambda call: call.whole_output().double().square().mean()))
    if abs(found - goal) > 0.01 * goal:  # it is not simply added
        layer.scale(1 / factor)
        layer.zero_bias()
        return False
    entry.variance *= factor**2
    entry.center, entry.share = strength, 1 - (1 - strength) ** 2 * common / left
    entry.note += ", centred by its bias"
    return True


def channel_moments(call: Call) -> Tensor:
    """Mean and mean square of each channel, ``[2, O]``."""
    rows = channels_last(call.layer.module, call.output().double())
    return torch.stack([rows.mean(0), rows.square().mean(0)])


def _like(layer: Layer, rows: Tensor) -> Tensor:
    """A weight of the layer's own shape from its rows by channel."""
    weight = torch.empty_like(layer.weights[0])
    layer.by_channel(weight).copy_(rows)
    return weight


def _moment_and_mean(call: Call) -> Tensor:
    """Z, and the mean over outputs of what the weights multiply, one vector for each group."""
    layer = call.layer
    module: Any = layer.module
    if isinstance(module, PointConvolution):
        call.projection = _projected(module, *call.args, **call.kwargs)
    if call.projection is not None:
        moment, mean = square_mean(call.projection) * call.projection.shape[1], call.projection.mean(0)
        return torch.cat([moment.view(1), mean.double()])
    if pointwise(module):
        (input,) = (*call.args, *call.kwargs.values())
        places = 0 if isinstance(module, nn.Linear) else len(module.kernel_size)
        dims = [d for d in range(input.dim()) if d != input.dim() - places - 1]
        mean = input.to(torch.promote_types(input.dtype, torch.float32)).mean(dims) if dims else input
    else:
        with torch.enable_grad(), layer.serving() as weight:
            (gradient,) = torch.autograd.grad(_first_channels(call).mean(0).sum(), weight)
        mean = layer.by_channel(layer.published(gradient))[:, 0]
    return torch.cat([call.second_moment().view(1), mean.flatten().double()])


def _common(direction: Tensor, call: Call) -> Tensor:
    """The mean of :math:`(u^T \\phi)^2`."""
    if call.projection is not None:
        along = call.projection @ direction.flatten()
        call.projection = None
        return square_mean(along)
    with call.layer.serving(direction):
        return _first_channels(call).square().mean()


def _projected(module: PointConvolution, features: Tensor, hood: Neighborhood) -> Tensor | None:
    """The projection of a convolution, if it is not too large to be kept until all is measured."""
    numbers = hood.queries.num_points * module.basis.size * module.in_channels
    return module.project(features, hood) if 0 < numbers <= KEPT else None


def _first_channels(call: Call) -> Tensor:
    """The outputs of the first channel of each group, which stand for all, ``[M, G]``."""
    rows = channels_last(call.layer.module, call.whole_output())
    return rows[:, :: max(rows.shape[1] // call.layer.groups, 1)].double()
