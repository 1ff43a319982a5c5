"""Second moments by depth of plain networks: what the figures on variance share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pointvar.diagnose import variance_report
from pointvar.experiments.options import canvas
from pointvar.geometry import Neighborhood
from pointvar.init import standard_init, transfer_init, variance_init
from pointvar.models import PlainNet

Batch = tuple[Tensor, Neighborhood]
Curve = list[float]


def plain(
    method: str,
    depth: int,
    channels: int,
    batch: Batch,
    seed: int,
    unit: bool = False,
    orthonormal: bool = False,
) -> PlainNet:
    """A plain network for the features and the receptive field of a batch."""
    features, hood = batch
    return PlainNet(
        depth,
        channels,
        features.shape[1],
        method=method,
        unit_response=unit,
        orthonormal=orthonormal,
        radius=float(hood.radius.mean()),
        generator=torch.Generator().manual_seed(seed),
    )


def initialisers(batch: Batch, table: str) -> dict[str, Callable[[PlainNet, torch.Generator], Any]]:
    """Standard, direct and transferred weights, as functions of a network and a generator."""
    moment = float(batch[0].square().mean())
    return {
        "standard": lambda net, generator: standard_init(net, generator=generator),
        "direct": lambda net, generator: variance_init(net, batch, generator=generator),
        "direct, exact": lambda net, generator: variance_init(net, batch, exact=True, generator=generator),
        "transfer": lambda net, generator: transfer_init(
            net, table, input_moment=moment, generator=generator
        ),
    }


def activations(net: PlainNet, batch: Batch) -> Curve:
    """Second moment of the output of each convolution."""
    return [layer.variance for layer in variance_report(net, batch, backward=False).layers]


def gradients(net: PlainNet, batch: Batch) -> Curve:
    """Second moment of the gradient with respect to the output of each convolution."""
    report = variance_report(net, batch)
    return [layer.activation_gradient or 0.0 for layer in report.layers]


def picture(
    curves: dict[str, dict[str, list[Curve]]],
    colors: dict[str, str],
    what: str = "outputs",
    reach: float = 1e12,
    median: bool = False,
) -> Any:
    """One panel per method: the geometric mean (or median) of the curves of each colour, and their range.

    Values beyond 1 / reach and reach stay at the edge of the picture."""
    figure, axes = canvas(11, 4.6, 2, 5, sharex=True, sharey=True)
    for panel, (method, by_name) in zip(axes.flat, curves.items(), strict=True):
        for name, color in colors.items():
            values = (
                torch.tensor(by_name[name], dtype=torch.float64).nan_to_num(reach).clamp(1 / reach, reach)
            )
            middle = values.median(0).values if median else values.log().mean(0).exp()
            depth = range(1, values.shape[1] + 1)
            panel.plot(depth, middle, color=color, label=name, linewidth=1.4)
            panel.fill_between(depth, values.amin(0), values.amax(0), color=color, alpha=0.2, linewidth=0)
        panel.set_title(method, fontsize=10)
        panel.set(yscale="log", ylim=(1 / reach, reach))
        panel.axhline(1, color="0.8", linewidth=0.8, zorder=0)
    for panel in axes[1]:
        panel.set_xlabel("layer")
    axes[0, 0].legend(fontsize=7)
    figure.supylabel(f"second moment of the {what}")
    return figure
