r"""What is left of the differences between points and between clouds, by depth.

The second moment of a layer's output has three parts: what all points have in common, what differs between
the points of a cloud, and what differs between clouds,

.. math:: \mathrm{E}[x^2] = \bar x^2 + \mathrm{E}[(x - \bar x_\mathrm{cloud})^2]
          + \mathrm{E}[(\bar x_\mathrm{cloud} - \bar x)^2]

A network whose features are mostly the first tells nothing apart, whatever its second moment. Weights are set
on some clouds; the same is measured on these and on others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments import figures
from experiments.options import Options
from pointvar.models import PlainNet
from pointvar.nn import global_mean

DEPTH, CHANNELS, CALIBRATION, UNSEEN = 25, 64, 12, 12
METHODS = ("PCCNN", "KPConvN", "MCConv", "SPHConv")
QUANTITIES = ("second moment", "share around the mean", "share between clouds")


def run(options: Options) -> None:
    """Writes a row of panels per quantity and a column per method; dashed are clouds not calibrated on."""
    clouds = figures.surface_clouds(options, CALIBRATION + UNSEEN)
    batches = {
        "calibrated": clouds.packed(0, CALIBRATION),
        "unseen": clouds.packed(CALIBRATION, CALIBRATION + UNSEEN),
    }
    curves: dict[str, Any] = {}
    for method in METHODS:
        print(f"fig-collapse: {method}", flush=True)
        for kind in figures.DRAWN:
            net = figures.drawn(kind, method, DEPTH, CHANNELS, batches["calibrated"])
            found = {name: follow(net, batch) for name, batch in batches.items()}
            curves.setdefault(method, {})[kind] = found
    about = {"clouds": clouds.name, "calibrated_on": CALIBRATION, "unseen": UNSEEN, "channels": CHANNELS}
    figures.save(options, "fig-collapse", _picture(curves), {**about, "by_layer": curves})


@torch.no_grad()
def follow(net: PlainNet, batch: figures.Batch) -> dict[str, figures.Curve]:
    """The three quantities behind each convolution."""
    features, hood = batch
    rows = []
    for block in net.blocks:
        features = block(features, hood)
        rows.append(moments(features.double(), hood.queries))
    return {name: [row[place] for row in rows] for place, name in enumerate(QUANTITIES)}


def moments(features: Tensor, cloud: Any) -> tuple[float, float, float]:
    """Second moment, and its shares around the mean and between clouds; each point has the same weight."""
    moment = features.square().mean()
    mean = features.mean(0)
    around = (features - mean).square().mean()
    between = (global_mean(features, cloud)[cloud.batch] - mean).square().mean()
    return float(moment), float(around / moment), float(between / moment)


def _picture(curves: dict[str, Any]) -> Any:
    figure, axes = figures.canvas(
        11, 6.2, len(QUANTITIES), len(curves), squeeze=False, sharex=True, sharey="row"
    )
    for column, (method, by_kind) in enumerate(curves.items()):
        axes[0, column].set_title(method, fontsize=10)
        axes[-1, column].set_xlabel("layer")
        for row, quantity in enumerate(QUANTITIES):
            panel = axes[row, column]
            for kind, found in by_kind.items():
                for name, style in {"calibrated": "-", "unseen": "--"}.items():
                    values = torch.tensor(found[name][quantity], dtype=torch.float64).clamp(1e-12, 1e12)
                    label = kind if name == "calibrated" else None
                    depth = range(1, len(values) + 1)
                    panel.plot(depth, values, style, color=figures.DRAWN[kind], label=label, linewidth=1.3)
            if column == 0:
                panel.set_ylabel(quantity)
    axes[0, 0].set(yscale="log", ylim=(1e-8, 1e8))
    axes[1, 0].set(ylim=(0, 1.05))
    axes[2, 0].set(yscale="log")
    axes[1, 0].plot([], [], "-", color="0.4", label="calibrated on")
    axes[1, 0].plot([], [], "--", color="0.4", label="other clouds")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8)
    return figure
