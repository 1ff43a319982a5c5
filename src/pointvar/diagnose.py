"""How the variance of activations and gradients goes through the layers of any model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pointvar.init.report import table
from pointvar.layers import (
    Forward,
    Layer,
    Select,
    channels_last,
    feed,
    outermost,
    predicate,
    refuse_lazy,
    restored,
)

HEALTHY, VANISHING, EXPLODING = "healthy", "vanishing", "exploding"


@dataclass
class LayerVariance:
    """What one layer puts out, over all points and channels."""

    name: str
    kind: str
    mean: float
    variance: float
    """Second moment over all points and channels, as the initialisations mean it."""
    spatial: float
    """Variance over the points, per channel, averaged over the channels. Far below ``variance``: the features
    have collapsed to one value, which no scaling repairs."""
    dead: float
    """Share of channels that are nowhere positive: a ReLU lets nothing of them through."""
    activation_gradient: float | None = None
    """Second moment of the gradient with respect to the output."""
    weight_gradient: float | None = None
    """Second moment of the gradient with respect to the weights."""
    verdict: str = HEALTHY


@dataclass
class VarianceReport:
    """The variance of activations and gradients per layer; ``print`` shows a table, ``plot`` a figure."""

    layers: list[LayerVariance]
    verdict: str
    """Of the network: healthy, vanishing or exploding."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        head = ("layer", "type", "mean", "variance", "spatial", "dead", "d output", "d weight", "verdict")
        rows = [head] + [
            (
                x.name,
                x.kind,
                f"{x.mean:.2g}",
                f"{x.variance:.3g}",
                f"{x.spatial:.3g}",
                f"{x.dead:.0%}",
                _number(x.activation_gradient),
                _number(x.weight_gradient),
                x.verdict,
            )
            for x in self.layers
        ]
        return "\n".join([f"variance by layer: {self.verdict}", *table(rows)])

    def plot(self, path: str | Path | None = None) -> Any:
        """Draws variances by depth on a logarithmic scale; saves the figure if given a path.

        Needs matplotlib: ``pip install 'pointvar[report]'``.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plots need matplotlib: pip install 'pointvar[report]'") from error
        figure = Figure(figsize=(max(5.0, 0.25 * len(self.layers) + 3), 3.6), layout="constrained")
        axes = figure.subplots()
        depth = range(1, len(self.layers) + 1)
        curves: dict[str, list[float | None]] = {
            "output": [x.variance for x in self.layers],
            "output, over points": [x.spatial for x in self.layers],
            "gradient of output": [x.activation_gradient for x in self.layers],
            "gradient of weights": [x.weight_gradient for x in self.layers],
        }
        for (name, values), style in zip(curves.items(), ("o-", "o:", "s-", "s:"), strict=True):
            if any(v is not None for v in values):
                # A logarithm has no place for 0: such layers are left out of the line.
                shown = [v if v is not None and 0 < v < math.inf else math.nan for v in values]
                axes.plot(depth, shown, style, markersize=3, label=name)
        axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
        axes.set_yscale("log")
        axes.set_xlabel("layer")
        axes.set_ylabel("second moment")
        axes.set_title(f"variance by layer: {self.verdict}", fontsize=10)
        axes.legend(fontsize=8)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def variance_report(
    model: nn.Module,
    batch: Any,
    backward: bool = True,
    *,
    forward: Forward | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    layers: Select = None,
    mode: str | None = None,
    low: float = 0.01,
    high: float = 100.0,
) -> VarianceReport:
    r"""Measures the variance of activations, and of gradients, at every layer of any model.

    Args:
        model: any module; its layers are those that the initialisations know (``register_layer``), or, if
            there are none, all modules that have parameters of their own.
        batch: fed to the model as ``forward`` says; default: ``model(*batch)``, ``model(**batch)`` or
            ``model(batch)``.
        backward: measures gradients too.
        forward: ``forward(model, batch)``.
        loss: of the model's output, a scalar; default: a fixed Gaussian combination of its channels, summed
            over the points, so that the gradient of the output has variance 1.
        layers: which layers; types, name patterns or a predicate.
        mode: ``"train"``, ``"eval"``, or ``None``: as the model is.
        low, high: a layer whose output has a second moment below is vanishing, above exploding.

    The verdict of the network is that of the first layer that is not healthy, or of its gradients, judged by
    how much they change between the first and the last layer.

    Nothing of the model changes: no gradient is stored, statistics of batch norms and random states come
    back.
    """
    if not 0 <= low < high:
        raise ValueError(f"low and high must be 0 <= low < high, got {low} and {high}")
    watched = _watched(model, layers)
    outputs: dict[str, Tensor] = {}  # in order of execution

    def keep(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if name in outputs or not isinstance(output, Tensor):
                return None
            outputs[name] = output
            return output.clone()  # so that an activation that works in place spares what is kept

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, (module, _) in watched.items()]
    try:
        with restored(model, mode), torch.set_grad_enabled(backward):
            result = (forward or feed)(model, batch)
            weights = [w for _, owned in watched.values() for w in owned]
            gradients = _gradients(result, loss, [*outputs.values(), *weights]) if backward else {}
    finally:
        for handle in handles:
            handle.remove()
    if not outputs:
        raise ValueError(f"the forward pass reaches no layer of {type(model).__name__} to measure")
    entries = []
    for name, output in outputs.items():
        module, owned = watched[name]
        entry = _measure(name, module, output.detach())
        entry.activation_gradient = _moment([output], gradients)
        entry.weight_gradient = _moment(owned, gradients)
        entry.verdict = _judge(entry.variance, low, high)
        entries.append(entry)
    return VarianceReport(entries, _verdict(entries, low, high))


def _watched(model: nn.Module, select: Select) -> dict[str, tuple[nn.Module, list[nn.Parameter]]]:
    """Modules and their weights by name; also what an initialisation leaves alone, such as frozen layers."""
    refuse_lazy(model)
    chosen = predicate(select)
    known = [Layer(name, module, kind) for name, module, kind in outermost(model) if kind is not None]
    if known or select is not None:
        return {x.name: (x.module, x.weights) for x in known if chosen(x.name, x.module)}
    return {
        name or type(module).__name__: (module, list(module.parameters(recurse=False)))
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    }


def _gradients(result: Any, loss: Callable[[Any], Tensor] | None, inputs: list[Tensor]) -> dict[int, Tensor]:
    """Gradients by the identity of the tensor; of a loss, or of a fixed random functional of the output."""
    if loss is not None:
        value = loss(result)
    else:
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, Tensor):
            raise TypeError(f"give a loss: the model returns {type(result).__name__}, not a tensor")
        # One gradient for all points of a channel, as from a loss that averages over them: gradients that
        # differ from point to point would be smoothed away by the first layers they meet.
        shape = (1, first.shape[1]) if first.dim() == 2 else first.shape
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        value = (first * noise.to(first)).sum()
    if not value.requires_grad:
        return {}
    needed = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(value, needed, allow_unused=True)
    return {id(x): g for x, g in zip(needed, found, strict=True) if g is not None}


def _measure(name: str, module: nn.Module, output: Tensor) -> LayerVariance:
    rows = channels_last(module, output.double())
    return LayerVariance(
        name=name,
        kind=getattr(module, "method", None) or type(module).__name__,
        mean=float(rows.mean()),
        variance=float(rows.square().mean()),
        spatial=float(rows.var(0, correction=0).mean()),
        dead=float((rows <= 0).all(0).double().mean()),
    )


def _moment(tensors: Sequence[Tensor], gradients: dict[int, Tensor]) -> float | None:
    """Second moment of the gradients with respect to some tensors, where there are any."""
    known = [gradients[id(t)].double().flatten() for t in tensors if id(t) in gradients]
    return float(torch.cat(known).square().mean()) if known else None


def _judge(value: float, low: float, high: float) -> str:
    if value < low:
        return VANISHING
    return HEALTHY if value <= high else EXPLODING  # not a number is no health either


def _verdict(layers: list[LayerVariance], low: float, high: float) -> str:
    for layer in layers:
        if layer.verdict != HEALTHY:
            return layer.verdict
    known = [x.activation_gradient for x in layers if x.activation_gradient is not None]
    if len(known) > 1 and known[-1] > 0:
        return _judge(known[0] / known[-1], low, high)
    return HEALTHY


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
