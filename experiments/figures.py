"""What the figures share: clouds, second moments by depth of plain networks, and how pictures are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import FIGURES
from experiments.options import Options
from pointvar import Hierarchy, Neighborhood, PointCloud, methods, variance_report
from pointvar.atomic import write_atomically
from pointvar.data import Shapes
from pointvar.init import standard_init, variance_init
from pointvar.models import PlainNet

POISSON, REACH, NEIGHBORS = 0.1, 3.0, 16
"""Poisson radius, receptive field in units of it, and the cap on neighbours."""
PALETTE = {
    "standard": "tab:red",
    "direct": "tab:blue",
    "direct, exact": "black",
    "transfer": "tab:orange",
    "closed form": "tab:purple",
    "unit response": "tab:green",
    "centred": "tab:cyan",
    "centred, unit response": "tab:olive",
    "images": "tab:pink",
    "Monte Carlo": "tab:blue",
    "Average": "tab:orange",
    "Sum": "tab:green",
    "true integral": "black",
    "queries": "tab:red",
    "convolution": "#9ecae1",
    "between levels": "#6baed6",
    "linear": "#fdd0a2",
}
"""One colour for one thing, in all figures."""
DRAWN = {
    "standard": PALETTE["standard"],
    "direct": PALETTE["direct"],
    "centred": PALETTE["centred"],
    "centred, unit response": PALETTE["centred, unit response"],
    "unit response": PALETTE["unit response"],
}
"""Weights that ``drawn`` knows, and their colours."""
METHODS = tuple(methods.METHODS)

Batch = tuple[Tensor, Neighborhood]
Curve = list[float]
Curves = dict[str, dict[str, list[Curve]]]
"""By method and by initialisation, a curve for each draw."""


@dataclass(frozen=True)
class Clouds:
    """Clouds with normals as features, each cloud by itself."""

    name: str
    samples: Sequence[tuple[Tensor, Tensor]]

    def packed(self, first: int, last: int) -> Batch:
        """Some of the clouds, thinned to a Poisson disk sampling: normals and the neighbourhood."""
        return thinned(self.samples[first:last], POISSON)


def thinned(samples: Sequence[tuple[Tensor, Tensor]], radius: float) -> Batch:
    """Points and features of clouds as one batch: a Poisson disk sampling and its neighbourhood."""
    cloud = PointCloud.from_list([points for points, _ in samples])
    levels = Hierarchy(cloud, [radius], REACH, NEIGHBORS, torch.Generator().manual_seed(0))
    return torch.cat([features for _, features in samples])[levels.kept[0]], levels.within(0)


def surface_clouds(options: Options, count: int, synthetic: bool = False) -> Clouds:
    """``count`` clouds of many classes: ModelNet40's where they are, else the built-in shapes."""
    path = None if synthetic else options.file("modelnet40_small.npz")
    if path is None:
        shapes = Shapes(count, normals=True)
        samples = [shapes[index] for index in range(count)]
        return Clouds("synthetic shapes", [(sample.points, sample.features) for sample in samples])
    with np.load(path) as arrays:
        order = np.random.default_rng(0).permutation(len(arrays["train_label"]))[:count]
        points = torch.from_numpy(arrays["train_points"][order].astype(np.float32))
        normals = torch.from_numpy(arrays["train_normals_i8"][order].astype(np.float32) / 127)
    return Clouds("ModelNet40", list(zip(points, normals, strict=True)))


def announced(name: str) -> Iterator[str]:
    """The methods one by one, with a line for each."""
    for number, method in enumerate(METHODS, 1):
        print(f"{name}: {method}, {number} of {len(METHODS)}", flush=True)
        yield method


def plain(method: str, depth: int, channels: int, batch: Batch, seed: int, **more: Any) -> PlainNet:
    """A plain network for the features and the receptive field of a batch; as published, if not told else."""
    features, hood = batch
    published = {"unit_response": False, "precondition": False}
    return PlainNet(
        depth,
        channels,
        features.shape[1],
        method=method,
        radius=float(hood.radius.mean()),
        generator=torch.Generator().manual_seed(seed),
        **published | more,
    )


def drawing(seed: int) -> torch.Generator:
    """Of the weights that an initialisation draws; ``plain`` has a stream of its own."""
    return torch.Generator().manual_seed(1000 + seed)


def drawn(kind: str, method: str, depth: int, channels: int, batch: Batch) -> PlainNet:
    """A plain network with weights of a kind, measured on a batch; centred ones with full strength."""
    net = plain(method, depth, channels, batch, 0, unit_response=kind.endswith("unit response"))
    if kind == "standard":
        standard_init(net, generator=drawing(0))
    else:
        variance_init(net, batch, generator=drawing(0), center=float(kind.startswith("centred")))
    return net


def activations(net: PlainNet, batch: Batch) -> Curve:
    """Second moment of the output of each convolution."""
    return [layer.variance for layer in variance_report(net, batch, backward=False).layers]


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, without a window. Needs matplotlib: ``pip install 'pointvar[report]'``."""
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'pointvar[report]'") from error
    rcParams["svg.hashsalt"] = "pointvar"  # the same picture gives the same file
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def caption(name: str) -> str:
    """What a figure shows, as a sentence."""
    text = next(text for known, text in FIGURES.items() if name.startswith(known))
    return f"{text[0].upper()}{text[1:]}."


def save(options: Options, name: str, figure: Any, numbers: Mapping[str, Any], of: str | None = None) -> None:
    """Writes NAME.png, NAME.svg and NAME.json, with the caption of the figure that it is ``of``."""
    path = options.output / name
    figure.savefig(path.with_suffix(".png"), dpi=150)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    content = {"caption": caption(of or name), **numbers}
    write_atomically(path.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    print(f"{path}.png, .svg, .json")


def picture(
    curves: Curves,
    colors: Mapping[str, str],
    what: str = "outputs",
    reach: float = 1e12,
    middle: Callable[[Tensor], Tensor] = lambda values: values.log().mean(0).exp(),
) -> Any:
    """One panel per method: the geometric mean (or another middle) of the curves of a colour, and the range.

    Values beyond 1 / reach and reach stay at the edge of the picture."""
    figure, axes = canvas(11, 4.6, 2, -(-len(curves) // 2), sharex=True, sharey=True, squeeze=False)
    for panel, (method, by_name) in zip(axes.flat, curves.items(), strict=False):
        for name, color in colors.items():
            values = torch.tensor(by_name[name], dtype=torch.float64).nan_to_num(reach)
            values = values.clamp(1 / reach, reach)
            depth = range(1, values.shape[1] + 1)
            panel.plot(depth, middle(values), color=color, label=name, linewidth=1.4)
            panel.fill_between(depth, values.amin(0), values.amax(0), color=color, alpha=0.2, linewidth=0)
        panel.set_title(method, fontsize=10)
        panel.set(yscale="log", ylim=(1 / reach, reach))
        panel.axhline(1, color="0.8", linewidth=0.8, zorder=0)
    for panel in axes[1]:
        panel.set_xlabel("layer")
    axes[0, 0].legend(fontsize=7)
    figure.supylabel(f"second moment of the {what}")
    return figure
