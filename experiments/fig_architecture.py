"""The classifier and the U-Net, drawn from the networks themselves.

A cloud goes through each network while hooks note which layers run, in which order, at how many points and
with how many features. Each layer is a box: its height is the level of points that it ends at.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from experiments.figures import PALETTE, canvas, save
from experiments.options import Options
from pointvar import Neighborhood, PointCloud, PointConvolution
from pointvar.data import Shapes
from pointvar.models import Classifier, SegmentationUNet

POINTS = 2048


@dataclass(frozen=True)
class Drawn:
    """One layer, as it ran."""

    name: str
    kind: str
    incoming: int
    outgoing: int
    points: int
    """Rows of its result."""


def run(options: Options) -> None:
    """Writes one picture with both networks, and what is in it."""
    cloud = PointCloud(Shapes(1, num_points=POINTS)[0].points)
    random = torch.Generator().manual_seed(0)
    networks: dict[str, nn.Module] = {
        "classifier": Classifier(1, 15, generator=random),
        "U-Net": SegmentationUNet(3, 21, generator=random),
    }
    figure, axes = canvas(11, 7, len(networks), 1)
    numbers: dict[str, Any] = {"clouds": "synthetic shapes"}
    for (name, network), panel in zip(networks.items(), axes, strict=True):
        drawn = follow(network, cloud)
        draw(panel, drawn)
        count = sum(layer.kind != "linear" for layer in drawn)
        weights = sum(p.numel() for p in network.parameters())
        panel.set_title(f"{name}: {count} convolutions, {weights / 1e6:.1f} million weights", loc="left")
        numbers[name] = [asdict(layer) for layer in drawn]
    save(options, "fig-architecture", figure, numbers)


@torch.no_grad()
def follow(network: nn.Module, cloud: PointCloud) -> list[Drawn]:
    """The layers of a network in the order in which a cloud meets them."""
    found: list[Drawn] = []

    def note(name: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
            if isinstance(module, nn.Linear):
                found.append(Drawn(name, "linear", module.in_features, module.out_features, len(output)))
                return
            hood: Neighborhood = args[1]
            kind = "convolution" if hood.support is hood.queries else "between levels"
            found.append(Drawn(name, kind, module.in_channels, module.out_channels, len(output)))

        return hook

    inside = {
        part
        for m in network.modules()
        if isinstance(m, PointConvolution)
        for part in m.modules()
        if part != m
    }
    handles = [
        module.register_forward_hook(note(name))
        for name, module in network.named_modules()
        if isinstance(module, (PointConvolution, nn.Linear)) and module not in inside
    ]
    first = next(m for m in network.modules() if isinstance(m, PointConvolution))
    levels = network.hierarchy(cloud, generator=torch.Generator().manual_seed(0))  # type: ignore[operator]
    try:
        network.eval()(torch.ones(cloud.num_points, first.in_channels), levels)
    finally:
        for handle in handles:
            handle.remove()
    return found


def skips(layers: list[Drawn]) -> list[tuple[int, int]]:
    """Pairs of layers: the result of the first comes beside that of the layer before the second."""
    pairs = []
    for end in range(1, len(layers)):
        rest = layers[end].incoming - layers[end - 1].outgoing
        same = (layers[end].points, rest)
        starts = [i for i in range(end - 1) if (layers[i].points, layers[i].outgoing) == same]
        if rest > 0 and starts:
            pairs.append((starts[-1], end))
    return pairs


def draw(panel: Any, layers: list[Drawn]) -> None:
    """Boxes from left to right, the coarser the points the lower, joined by arrows."""
    heights = sorted({layer.points for layer in layers})
    places = [(i, heights.index(layer.points)) for i, layer in enumerate(layers)]
    for (x, y), layer in zip(places, layers, strict=True):
        box = {"boxstyle": "round,pad=0.3", "facecolor": PALETTE[layer.kind], "edgecolor": "0.3"}
        panel.text(
            x, y, f"{layer.incoming}\n→ {layer.outgoing}", ha="center", va="center", fontsize=6, bbox=box
        )
    for (x, y), (end, below) in pairwise(places):
        style = {"arrowstyle": "->", "color": "0.5", "shrinkA": 11, "shrinkB": 11}
        panel.annotate("", (end, below), (x, y), arrowprops=style)
    for start, end in skips(layers):
        style = {"arrowstyle": "->", "color": "0.7", "linestyle": "--", "shrinkA": 11, "shrinkB": 11}
        # Over the boxes, and down on the last one.
        style["connectionstyle"] = "arc,angleA=90,angleB=90,armA=45,armB=45,rad=8"
        panel.annotate("", places[end], places[start], arrowprops=style)
    names = [f"{points} point{'s' * (points > 1)}" for points in heights]
    panel.set_yticks(range(len(heights)), names, fontsize=7)
    panel.set(xlim=(-1, len(layers)), ylim=(-0.7, len(heights) - 0.3), xticks=[])
    for kind in dict.fromkeys(layer.kind for layer in layers):
        panel.plot([], [], "s", color=PALETTE[kind], label=kind)
    panel.legend(fontsize=7, loc="lower left")
    panel.spines[["top", "right", "bottom"]].set_visible(False)
