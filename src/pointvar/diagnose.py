"""How the variance of activations and gradients goes through the layers of any model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pointvar.init.report import table
from pointvar.layers import (
    Clouds,
    Forward,
    Layer,
    Select,
    between_clouds,
    channels_last,
    feed,
    first_tensor,
    is_norm,
    outermost,
    predicate,
    restored,
)

HEALTHY, VANISHING, EXPLODING, COLLAPSED = "healthy", "vanishing", "exploding", "collapsed"

NEVER_CALLED = "never called"


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
    normalised: float | None = None
    """Second moment behind the normalisation that takes the output, where one does: judged instead of
    ``variance``, since the next layer sees it."""
    relative_gradient: float | None = None
    """How strongly the loss depends on this output, as a multiple of how strongly it depends on that of the
    last layer; see ``variance_report``."""
    verdict: str = HEALTHY
    between: float | None = None
    """Share of the second moment that differs between clouds: of their means, per channel. ``None`` where it
    is not known which row belongs to which cloud, or there is only one."""
    rows: int | None = None
    """How many points, or clouds, the output is of; ``None`` where it is not known which is whose."""
    calls: int = 1
    """How often a pass calls the layer."""
    call: int = 1
    """Which of these the numbers are of: the one whose second moment is farthest from 1."""


@dataclass
class VarianceReport:
    """The variance of activations and gradients per layer; ``print`` shows a table, ``plot`` a figure."""

    layers: list[LayerVariance]
    verdict: str
    """Of the network: healthy, vanishing, exploding or collapsed."""
    reason: str = ""
    """Which layer is not healthy, and by which number; empty if all are."""
    unmeasured: dict[str, str] = field(default_factory=dict)
    """Layers without numbers, and why."""

    @property
    def headline(self) -> str:
        """The verdict and its reason, in one line."""
        return f"variance by layer: {self.verdict}" + (f": {self.reason}" if self.reason else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        sizes = ("mean", "variance", "spatial", "between", "dead")
        head = ("layer", "type", *sizes, "d output", "d weight", "relative d", "verdict", "")
        rows = [head] + [
            (
                x.name,
                x.kind,
                f"{x.mean:.2g}",
                f"{x.variance:.3g}",
                f"{x.spatial:.3g}",
                _number(x.between),
                f"{x.dead:.0%}",
                _number(x.activation_gradient),
                _number(x.weight_gradient),
                _number(x.relative_gradient),
                x.verdict,
                f"call {x.call} of {x.calls}" if x.calls > 1 else "",
            )
            for x in self.layers
        ]
        lines = [self.headline, *table(rows)]
        if self.unmeasured:
            lines += ["not measured:", *table(list(self.unmeasured.items()))]
        return "\n".join(lines)

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
            "gradient, relative to the last layer": [x.relative_gradient for x in self.layers],
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
        axes.set_title(self.headline, fontsize=10, wrap=True)
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
    targets: Mapping[str, float] | None = None,
) -> VarianceReport:
    r"""Measures the variance of activations, and of gradients, at every layer of any model.

    Args:
        model: any module; its layers are those that the initialisations know (``register_layer``), and others
            that have a weight of their own (a parameter of two dimensions at least) and do not normalise; if
            there are none, all modules that have parameters.
        batch: fed to the model as ``forward`` says; default: ``model(*batch)``, ``model(**batch)`` or
            ``model(batch)``.
        backward: measures gradients too.
        forward: ``forward(model, batch)``.
        loss: of the model's output, a scalar; default: a fixed Gaussian combination of its channels, summed
            over the points, so that the gradient of the output has variance 1.
        layers: which layers; types, name patterns or a predicate.
        mode: ``"train"``, ``"eval"``, or ``None``: as the model is.
        low, high: a second moment below ``low`` is vanishing, one above ``high`` is exploding. They apply to
            the output of each layer (behind its normalisation, if it has one), and to the gradient at each
            layer relative to the last.

        targets: second moments that layers are meant to have, by name, where it is not 1: what is judged is
            how far they are from these.

    Gradients per element say little across layers: before a mean over n points each is 1/n of what it is
    behind it. What can be compared is how much the loss changes if all points change by the same fraction of
    their size, :math:`\sum_c (\sum_x s_x g_{xc})^2`, with the gradient :math:`g` of the output at point x and
    channel c, and the root mean square :math:`s_x` of the output at x. Neither pooling (mean, sum or
    maximum) nor the width or scale of the layers changes it much. Points that pull in different directions
    cancel in the inner sum; with :math:`|g_{xc}|` they cannot. ``relative_gradient`` is that number divided
    by the last layer's. It is computed both ways and the value nearest to 1 in between counts, so that there
    is an alarm only if both agree.

    Second moments may be right and features collapsed: the same for all points or clouds. That is judged at
    the last layer, if it is known which of its rows belong to which cloud: they have collapsed where less
    than ``low`` of the second moment is variance around the mean of each channel.

    The reason names the first layer whose output is not healthy or, if there is none, the layer whose
    gradient is farthest from that of the last. Of a layer that is called several times, the call counts whose
    second moment is farthest from 1.

    Nothing of the model changes: no gradient is stored, statistics of batch norms and random states come
    back.
    """
    if not 0 <= low < high:
        raise ValueError(f"low and high must be 0 <= low < high, got {low} and {high}")
    watched = _watched(model, layers)
    record = _Record(Clouds(batch))
    handles = [
        module.register_forward_hook(record.keep(name), with_kwargs=True)
        for name, (module, _) in watched.items()
    ]
    norms = [module for module in model.modules() if is_norm(module)]
    handles += [norm.register_forward_hook(record.norm) for norm in norms]
    try:
        with restored(model, mode), torch.set_grad_enabled(backward):
            result = (forward or feed)(model, batch)
            record.complete = True
            chosen = {name: max(calls, key=_Output.distance) for name, calls in record.outputs.items()}
            weights = [w for _, owned in watched.values() for w in owned]
            inputs = [*(output.value for output in chosen.values()), *weights]
            gradients = _gradients(result, loss, inputs) if backward else {}
    finally:
        for handle in handles:
            handle.remove()
    if not chosen:
        raise ValueError(f"the forward pass reaches no layer of {type(model).__name__} to measure")
    entries, sums = [], dict[str, tuple[float, float]]()
    for name, output in chosen.items():
        module, owned = watched[name]
        entry = _measure(name, module, output)
        entry.activation_gradient = _moment([output.value], gradients)
        entry.weight_gradient = _moment(owned, gradients)
        entry.calls, entry.call = len(record.outputs[name]), 1 + record.outputs[name].index(output)
        if id(output.value) in gradients:
            pair = output.value, gradients[id(output.value)]
            sums[name] = _sensitivity(*(channels_last(module, tensor) for tensor in pair))
        entries.append(entry)
    last = _compare(entries, sums)
    missing = {name: record.strange.get(name, NEVER_CALLED) for name in watched if name not in chosen}
    return VarianceReport(entries, *_verdict(entries, last, low, high, targets or {}), unmeasured=missing)


@dataclass(eq=False)
class _Output:
    """What one call of a layer gave."""

    value: Tensor
    passed_on: Tensor
    """A copy, so that an activation that works in place spares what is kept."""
    clouds: Tensor | None
    moment: float
    normalised: float | None = None

    def distance(self) -> float:
        """From a second moment of 1, by its logarithm."""
        size = self.moment if self.normalised is None else self.normalised
        return abs(math.log(size)) if 0 < size < math.inf else math.inf


class _Record:
    """Outputs of the watched layers by name, in order of execution, and what norms make of them."""

    def __init__(self, clouds: Clouds) -> None:
        self.outputs: dict[str, list[_Output]] = {}
        self.strange: dict[str, str] = {}
        """Layers that return no tensor."""
        self.complete = False
        """After the pass: checkpointing calls layers again in the backward pass."""
        self._clouds = clouds

    def keep(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            first = first_tensor(output)
            if first is None:
                self.strange[name] = f"it returns {type(output).__name__}, without a tensor"
                return None
            passed_on = first.clone()
            if self.complete or not first.numel():
                return _replaced(output, first, passed_on)
            rows = channels_last(module, first).shape[0]
            clouds = self._clouds.of(first, rows, (args, kwargs))
            moment = float(first.detach().double().square().mean())
            self.outputs.setdefault(name, []).append(_Output(first, passed_on, clouds, moment))
            return _replaced(output, first, passed_on)

        return hook

    def norm(self, module: nn.Module, args: Any, output: Any) -> None:
        """A hook of modules that normalise. Those inside others come first, and the first one counts."""
        if not (args and isinstance(output, Tensor)):
            return
        for one in chain.from_iterable(self.outputs.values()):
            if args[0] is one.passed_on and one.normalised is None:
                one.normalised = float(output.detach().double().square().mean())


def _replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """The same with another tensor in the place of one."""
    if output is old:
        return new
    if isinstance(output, dict):
        return type(output)({name: _replaced(value, old, new) for name, value in output.items()})
    if isinstance(output, (tuple, list)):
        parts = [_replaced(value, old, new) for value in output]
        return output._make(parts) if hasattr(output, "_make") else type(output)(parts)
    return output


def _watched(model: nn.Module, select: Select) -> dict[str, tuple[nn.Module, list[nn.Parameter]]]:
    """Modules and their weights by name; also what an initialisation leaves alone, such as frozen layers."""
    chosen = predicate(select)
    found: dict[str, tuple[nn.Module, list[nn.Parameter]]] = {}
    for name, module, kind in outermost(model):
        if kind is not None:
            layer = Layer(name, module, kind)
            found[layer.name] = module, layer.weights
        elif module is not model and not is_norm(module):
            owned = [p for p in module.parameters(recurse=False) if p.dim() > 1]
            found |= {name: (module, owned)} if owned else {}
    if found or select is not None:
        return {name: x for name, x in found.items() if chosen(name, x[0])}
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


def _measure(name: str, module: nn.Module, output: _Output) -> LayerVariance:
    rows = channels_last(module, output.value.detach().double())
    return LayerVariance(
        name=name,
        kind=getattr(module, "method", None) or type(module).__name__,
        mean=float(rows.mean()),
        variance=output.moment,
        spatial=float(rows.var(0, correction=0).mean()),
        dead=float((rows <= 0).all(0).double().mean()),
        normalised=output.normalised,
        between=between_clouds(rows, output.clouds),
        rows=None if output.clouds is None else len(rows),
    )


def _sensitivity(output: Tensor, gradient: Tensor) -> tuple[float, float]:
    """How much the loss depends on rows of channels: with signs, and without."""
    size = output.detach().double().square().mean(1, keepdim=True).sqrt()
    rows = size * gradient.double()
    return float(rows.sum(0).square().sum()), float(rows.abs().sum(0).square().sum())


def _moment(tensors: Sequence[Tensor], gradients: dict[int, Tensor]) -> float | None:
    """Second moment of the gradients with respect to some tensors, where there are any."""
    known = [gradients[id(t)].double().flatten() for t in tensors if id(t) in gradients]
    return float(torch.cat(known).square().mean()) if known else None


def _judge(value: float, low: float, high: float) -> str:
    if value < low:
        return VANISHING
    return HEALTHY if value <= high else EXPLODING  # not a number is no health either


def _compare(layers: list[LayerVariance], sums: dict[str, tuple[float, float]]) -> str:
    """Sets the relative gradients; returns the name of the layer that they are relative to."""
    # A layer that the loss does not depend on, such as an unused second head, is nothing to compare with.
    last = next((x.name for x in reversed(layers) if x.name in sums and sums[x.name] != (0, 0)), "")
    for layer in layers:
        if layer.name not in sums:
            continue
        ratios = [
            value / reference if reference else math.nan if value else 0.0
            for value, reference in zip(sums[layer.name], sums.get(last, (0.0, 0.0)), strict=True)
        ]
        finite = all(map(math.isfinite, ratios))
        layer.relative_gradient = sorted([*ratios, 1.0])[1] if finite else math.nan
    return last


def _verdict(
    layers: list[LayerVariance], last: str, low: float, high: float, targets: Mapping[str, float]
) -> tuple[str, str]:
    """Judges each layer, and the network: its verdict, and the reason."""
    found, worst = ("", ""), 0.0
    for layer in layers:
        value = layer.variance if layer.normalised is None else layer.normalised
        layer.verdict = _judge(value / targets.get(layer.name, 1.0), low, high)
        if layer.verdict != HEALTHY:
            behind = "" if layer.normalised is None else ", normalised,"
            reason = f"the output of {layer.name}{behind} has a second moment of {value:.2g}"
            found, worst = (found, worst) if worst == math.inf else ((layer.verdict, reason), math.inf)
        elif layer.relative_gradient is not None:
            ratio = layer.relative_gradient
            layer.verdict = _judge(ratio, low, high)
            distance = abs(math.log(ratio)) if ratio > 0 else 1e9
            if layer.verdict != HEALTHY and distance > worst:
                found, worst = (layer.verdict, _gradient_reason(layer.name, ratio, last)), distance
    if found[0]:
        return found
    final = layers[-1]
    if final.rows is not None and final.rows > 1 and final.spatial < low * final.variance:
        final.verdict = COLLAPSED
        share = final.spatial / final.variance
        return COLLAPSED, f"of the output of {final.name} only a share of {share:.2g} differs at all"
    return HEALTHY, ""


def _gradient_reason(name: str, ratio: float, last: str) -> str:
    if ratio == 0:
        return f"no gradient reaches {name}"
    if not ratio > 0:
        return f"the gradient at {name} is not finite"
    return f"the gradient at {name} is {ratio:.2g} times that at {last} (second moments, relative to outputs)"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
