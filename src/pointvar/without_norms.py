"""Any network without batch normalisation, in one call.

Four steps: norms become a gain and a bias per channel; what is 0 on purpose, and what is added to a stream,
is found in one pass; all other weights are drawn by the variance rule, centred and exact; and a report says
what was done, and what was not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from pointvar.clipping import AdaptiveClipping
from pointvar.diagnose import VarianceReport, variance_report
from pointvar.init import variance_init
from pointvar.init.center import Center, Centering
from pointvar.init.report import InitReport, table
from pointvar.layers import (
    Forward,
    Layer,
    Streams,
    as_batches,
    candidates,
    check_model,
    find_streams,
    identity_size,
    uncompiled,
)
from pointvar.nn.norm import Affine, Unnormed, remove_norms

ENOUGH = 0.9
"""Share of the parameters below which a warning says that the network is not set."""


SETTINGS: dict[str, float] = {"rate": 0.0003}
"""A rate at which batches of one cloud train too. Larger batches may learn faster at 0.001. Gradients are not
clipped: under Adam that only makes all batches count alike, and networks learned more slowly with it."""


@dataclass
class NormFreeReport:
    """What ``norm_free`` did; ``print`` shows it."""

    norms: dict[str, str] = field(default_factory=dict)
    """Norms that were replaced: name -> type."""
    init: InitReport | None = None
    """How the weights were drawn; ``None`` where they were kept."""
    kept: dict[str, str] = field(default_factory=dict)
    """Layers and parameters that stay as they are on purpose, and why."""
    branches: dict[str, float] = field(default_factory=dict)
    """The last layers of residual branches, and the second moment that they got."""
    head: str = ""
    """The layer that a pass reaches last."""
    functions: dict[str, int] = field(default_factory=dict)
    """Calls of ``functional.batch_norm``: no module stands for them, so that they stay."""
    parameters: int = 0
    """How many there are."""
    left_alone: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Parameters that were not set: name -> why, and how many numbers they hold."""
    variance: VarianceReport | None = None
    """By layer: second moment, variance around the mean, share between clouds, calls; on the first batch, in
    evaluation mode."""
    settings: dict[str, float] = field(default_factory=lambda: dict(SETTINGS))
    """What to train with: AdamW with this learning rate, the largest of a schedule with a warm-up."""
    applied: bool = True
    """Whether it was done, or only tried."""

    @property
    def share(self) -> float:
        """Share of the parameters that were set, or kept on purpose."""
        return 1 - sum(count for _, count in self.left_alone.values()) / max(self.parameters, 1)

    def clipping(self, model: nn.Module, limit: float = 0.05) -> AdaptiveClipping:
        """Adaptive clipping of the gradients of all parameters, for trainings whose loss jumps: call it
        before each step."""
        return AdaptiveClipping(model, limit)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return {**asdict(self), "share": self.share}

    def __str__(self) -> str:
        did = "" if self.applied else "would be "
        count = 0 if self.init is None else len(self.init.layers)
        lines = [
            f"norm-free: {len(self.norms)} norms {did}replaced, {count} layers {did}set, "
            f"{self.share:.1%} of {self.parameters:,} parameters"
        ]
        if self.variance is not None:
            lines += [self.variance.headline, *table([_HEAD, *self._rows()])]
        for title, rows in (
            ("kept on purpose:", [(name, why) for name, why in self.kept.items()]),
            ("functions that stay:", [(name, f"{calls} calls") for name, calls in self.functions.items()]),
            ("left alone:", [(n, f"{c / self.parameters:.1%}", w) for n, (w, c) in self.left_alone.items()]),
        ):
            lines += [title, *table(rows)] if rows else []
        settings = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        lines.append(f"train with AdamW, {settings}")
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        assert self.variance is not None
        drawn = {} if self.init is None else {entry.name: entry for entry in self.init.layers}
        for x in self.variance.layers:
            entry = drawn.get(x.name)
            notes = [] if entry is None or not entry.note else [entry.note]
            notes += [f"branch, target {self.branches[x.name]:.2g}"] if x.name in self.branches else []
            notes += [f"called {x.calls} times"] if x.calls > 1 else []
            yield (
                *(x.name, x.kind, "" if entry is None else f"{entry.center:.2g}", f"{x.variance:.3g}"),
                f"{x.spatial / x.variance:.2g}" if x.variance else "",
                "" if x.between is None else f"{x.between:.2g}",
                "; ".join(notes),
            )


_HEAD = ("layer", "type", "centred", "second moment", "around the mean", "between clouds", "")


def norm_free(
    model: nn.Module,
    batches: Any,
    forward: Forward | None = None,
    apply: bool = True,
    *,
    norms: str = "batch",
    fold: bool = False,
    center: Center = "auto",
    residual: str = "keep",
    target: float = 1.0,
    num_batches: int | None = None,
    generator: torch.Generator | None = None,
) -> NormFreeReport:
    """Takes the batch norms out of any network and sets its weights so that it trains without them.

    Args:
        model: any module; changed in place. Make the optimiser afterwards: there are new parameters.
        batches, forward, num_batches, generator: as for ``variance_init``.
        apply: ``False`` only tries it: all of the model is as it was afterwards.
        norms: ``"batch"``, or ``"all"``: group, layer and instance norms too; see ``pv.nn.remove_norms``.
        fold: for a trained network: the running statistics become part of gain and bias, weights stay, and in
            evaluation it computes what it did.
        center: as for ``variance_init``.
        residual: ``"keep"``: each branch that is added to a stream gets the target, and the stream grows by
            it; ``"scale"``: of L branches each gets 1 / L of the target, so that a stream ends at about twice
            what it began with; ``"zero"``: each begins at 0.
        target: second moment of the outputs of layers.

    Left as they are: layers whose weights are all 0 or whose bias is the identity matrix, frozen ones,
    modules that are not linear in their weights. The report names each of them, with its share of the
    parameters. What is added to an identity matrix, as by the T-Nets of PointNet, gets a small target. An
    exception leaves the model as it was.

    Example::

        report = pv.norm_free(model, points)  # or a loader; forward=lambda model, batch: model(batch.pos)
        print(report)
        optimizer = torch.optim.AdamW(model.parameters(), report.settings["rate"])
    """
    if residual not in ("scale", "zero", "keep"):
        raise ValueError(f"residual must be 'scale', 'zero' or 'keep', got {residual!r}")
    model = uncompiled(model)
    check_model(model)
    every = as_batches(batches, num_batches)
    generator = generator if apply else _copy_of(generator)
    report = NormFreeReport(applied=apply)
    with _undone(model, on_success=not apply):
        report.norms = remove_norms(model, norms, fold)
        layers = candidates(model, None, {}, unknown=True)
        report.kept = {} if fold else _on_purpose(model, layers)
        streams = find_streams(model, layers, every[0], forward, report.kept)
        report.functions = streams.functions
        targets: dict[str, float] = {}
        if not fold:
            live = [name for name, zero in streams.branches.items() if not zero and name not in report.kept]
            report.branches = dict.fromkeys(
                live, target * (1 if residual == "keep" else 1 / max(len(live), 1))
            )
            targets |= report.branches | _small_targets(streams, target)
            report.init = variance_init(
                model,
                every,
                lambda name, module: targets.get(name, target),
                forward,
                layers=lambda name, module: name not in report.kept,
                exact=True,
                center=Centering(center, streams.depth),
                unknown=True,
                generator=generator,
            )
            for layer in layers if residual == "zero" else ():
                if layer.name in report.branches:
                    layer.scale(0.0)
        report.head = _head(report, streams, layers)
        _account(report, model, layers)
        still = {*report.kept, *(report.branches if residual == "zero" else ())}  # no health to be judged
        options: Any = {"forward": forward, "mode": "eval", "targets": targets}
        options["layers"] = lambda name, module: name not in still
        report.variance = variance_report(model, every[0], backward=False, **options)
    if "batch_norm" in report.functions:
        calls = report.functions["batch_norm"]
        warnings.warn(f"{calls} calls of functional.batch_norm stay: they are no modules", stacklevel=2)
    if not fold and report.share < ENOUGH:
        names = ", ".join(f"{n} ({c / report.parameters:.0%})" for n, (_, c) in report.left_alone.items())
        warnings.warn(f"only {report.share:.0%} of the parameters were set; not: {names}", stacklevel=2)
    return report


def _small_targets(streams: Streams, target: float) -> dict[str, float]:
    """Second moments of what is added to an identity matrix."""
    # x (I + T) has 1 + k m times the second moment of x, for a matrix T of size k and second moment m.
    return {name: 0.01 * target / size for name, size in streams.transforms.items()}


def _on_purpose(model: nn.Module, layers: list[Layer]) -> dict[str, str]:
    """Layers that somebody has set to 0 or to the identity, and gains that begin at 0."""
    kept = {}
    for layer in layers:
        if not any(weight.any() for weight in layer.weights):
            kept[layer.name] = "its weights are 0 on purpose"
        elif any(bias.dim() == 1 and identity_size(bias) for bias in layer.biases):
            kept[layer.name] = "its bias is the identity matrix"
    for name, module in model.named_modules():
        gain = _GAINS.get(type(module))
        if gain is not None and not module.get_parameter(gain).any():
            kept[f"{name}.{gain}"] = "the gain of its norm is 0 on purpose"
    return kept


_GAINS: dict[type, str] = {Affine: "gain", Unnormed: "norm.weight"}


def _head(report: NormFreeReport, streams: Streams, layers: list[Layer]) -> str:
    """The last layer: none that was only tried, such as the model itself for parameters of its own."""
    left = {} if report.init is None else report.init.left_alone
    tried = {layer.name for layer in layers if layer.kind.late and layer.name in left}
    return next((name for name in reversed(streams.order) if name not in tried), "")


def _account(report: NormFreeReport, model: nn.Module, layers: list[Layer]) -> None:
    """Says of every parameter that was not set why."""
    drawn = set() if report.init is None else {entry.name for entry in report.init.layers}
    known = {id(p) for m in model.modules() if type(m) in _GAINS for p in m.parameters()}
    for layer in layers:
        if layer.name in drawn:
            known |= {id(p) for p in (*layer.weights, *layer.biases, *layer.inner, *layer.kept)}
        if layer.name in report.kept:
            known |= {id(p) for p in layer.module.parameters()}
    left = {} if report.init is None else report.init.left_alone
    for name, parameter in model.named_parameters():
        report.parameters += parameter.numel()
        if (id(parameter) in known and name not in left) or report.init is None:
            continue
        if not parameter.any():
            report.kept[name] = "0 on purpose"
        else:
            paths = (*_paths(name), type(model).__name__)  # as the whole model is called
            why = next((left[path] for path in paths if path in left), "no rule")
            report.left_alone[name] = why, parameter.numel()


def _paths(name: str) -> Iterator[str]:
    """A parameter's name, and those of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _copy_of(generator: torch.Generator | None) -> torch.Generator | None:
    if generator is None:
        return None
    return torch.Generator(generator.device).set_state(generator.get_state())


@contextmanager
def _undone(model: nn.Module, on_success: bool) -> Iterator[None]:
    """Puts modules, and the numbers in them, back as they were if something fails, or in any case."""
    held = [
        (names, dict(names))
        for module in model.modules()
        for names in (vars(module), module._modules, module._parameters, module._buffers)
    ]
    numbers = [(x, x.detach().clone()) for x in (*model.parameters(), *model.buffers())]
    done = False
    try:
        yield
        done = not on_success
    finally:
        if not done:
            for names, before in held:
                names.clear()
                names.update(before)
            with torch.no_grad():
                for x, value in numbers:
                    x.copy_(value)
