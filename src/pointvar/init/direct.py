r"""Direct initialisation: weights whose variance is measured on data, so that every layer keeps the target.

For a layer that is linear in its weights, with independent weights of mean 0,

.. math:: \mathrm{Var}[\mathrm{out}] = Z \, \mathrm{Var}[w], \qquad
          Z = \mathrm{mean}_x \|\phi[x]\|^2

so :math:`\mathrm{Var}[w] = V_\mathrm{target} / Z`. Z is taken from the layer's real input, when the forward
pass reaches it, with all layers before it set already.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Generator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from pointvar.convolution import PointConvolution
from pointvar.init.center import Center, Centering, centred, centred_by_bias, channel_moments
from pointvar.init.report import InitReport, LayerInit
from pointvar.init.walk import NARROW, Call, Rescale, Statistic, Steps, checked, walk
from pointvar.layers import Forward, Layer, Select, fill_normal, find_layers, outermost

Target = float | Mapping[str, float] | Callable[[str, torch.nn.Module], float]


def variance_init(
    model: torch.nn.Module,
    batches: Any,
    target: Target = 1.0,
    forward: Forward | None = None,
    *,
    layers: Select = None,
    exact: bool | None = None,
    orthogonal: bool = False,
    center: Center | Centering = 0.0,
    bias: str = "zero",
    mode: str | None = "train",
    dropout: bool = False,
    unknown: bool = False,
    num_batches: int | None = None,
    generator: torch.Generator | None = None,
) -> InitReport:
    r"""Draws the weights of any model so that the outputs of every layer have the target variance.

    Each layer that is linear in its weights is set to :math:`N(0, V_\mathrm{target} / Z)` in the order in
    which the forward pass reaches it, Z being the mean squared norm of what its weights multiply, measured on
    its real input. "Variance" is the second moment over all points and channels.

    Args:
        model: any module; what is set: ``PointConvolution``, ``Linear``, ``Conv1d/2d/3d`` and their
            transposed forms, ``Bilinear``, ``MultiheadAttention``, linear layers of PyTorch Geometric, and
            what ``register_layer`` has added.
        batches: one batch (a tuple, a mapping, a tensor, any other object), or many (a list, a data loader,
            an iterator), each of which counts the same. Each takes one forward pass. The passes of many wait
            for each other at every layer, so that what each of them holds there is in memory together.
        target: second moment of the outputs: a number, numbers by name pattern, or ``(name, module) ->
            number``.
        forward: ``forward(model, batch)``; default: ``model(*batch)``, ``model(**batch)`` or
            ``model(batch)``.
        layers: which layers: types, name patterns, or a predicate ``(name, module) -> bool``.
        exact: scales the drawn weights once more, so that the measured second moment, and not only its
            expectation, is the target. Default: where there are few outputs to average over, in layers of
            less than 32 channels.
        orthogonal: draws orthogonal weights; with ``exact`` this is LSUV.
        center: takes that much, from 0 (nothing) to 1, of what all outputs have in common out of the weights,
            see ``pointvar.init.center``; or ``"auto"``, also ``True``: as much as the depth allows, for
            which all layers count (``norm_free`` knows the longest way through them; so does
            ``Centering("auto", depth)``). Layers that are measured by a probe are centred by their bias, if
            they have one.
        bias: ``"zero"`` sets biases to 0, ``"keep"`` leaves them; Z is measured without them either way.
        mode: ``"train"`` (statistics of batch norms are restored), ``"eval"``, or ``None``: as the model is.
        dropout: lets what drops something in ``"train"``, modules and functions of torch, do so while it is
            measured. What they drop they make up for by a factor, so that the second moment is right in
            training, and smaller by 1 - p behind each of them in evaluation; without, it is right in
            evaluation and larger by 1 / (1 - p) in training.
        unknown: tries modules without a rule too, and sets those that turn out to be linear in their own
            weights, or the largest weight that they are linear in alone. They are tried behind their call,
            when all layers inside them are set.
        num_batches: takes only so many batches.
        generator: where weights come from; default: torch's global generator, whose state is restored.

    Nothing else of the model changes, and an exception leaves it as it was. A layer that is called in several
    places is set when it is reached first. Where exact, a layer whose outputs are nowhere positive, a gate
    that a ReLU would shut, gets its weights with the other sign. A layer that is given nothing but zeros
    by those before it is left alone, with a warning. Under ``torch.distributed`` Z is averaged over the
    ranks and all ranks get the same weights.

    Example::

        report = pv.variance_init(model, (features, hood))
        report = pv.variance_init(model, loader, forward=lambda model, batch: model(batch.x), num_batches=8)
    """
    if bias not in ("zero", "keep"):
        raise ValueError(f"bias must be 'zero' or 'keep', got {bias!r}")
    _check_target(target, model)
    centering = (
        center if isinstance(center, Centering) else Centering(center, len(find_layers(model, layers)[0]))
    )

    def strategy(layer: Layer) -> Steps:
        goal, by_bias = _target_of(target, layer), False
        if obstacle := (yield from _try(layer)):
            return obstacle
        yield from _fit_basis(layer, generator)
        yield from _fit_attention(layer, generator)
        if centering and layer.kind.second_moment is not None and len(layer.weights) == 1:
            entry: LayerInit | str = yield from centred(layer, goal, centering, generator, orthogonal)
        else:
            entry = yield from _measure_and_draw(layer, goal, generator, orthogonal)
            if centering and bias == "zero" and isinstance(entry, LayerInit):
                layer.zero_bias()
                by_bias = yield from centred_by_bias(layer, entry, goal, centering)
        if bias == "zero" and isinstance(entry, LayerInit) and not by_bias:
            layer.zero_bias()
        scaled = layer.channels < NARROW if exact is None else exact
        if isinstance(entry, LayerInit) and scaled and not by_bias:
            entry.variance *= float((yield Rescale(goal))) ** 2
        return entry

    return walk(
        model,
        batches,
        strategy,
        method="LSUV" if exact and orthogonal else "direct",
        layers=layers,
        forward=forward,
        mode=mode,
        dropout=dropout,
        unknown=unknown,
        num_batches=num_batches,
    )


def lsuv_init(
    model: torch.nn.Module,
    batches: Any,
    target: Target = 1.0,
    forward: Forward | None = None,
    *,
    layers: Select = None,
    center: Center = 0.0,
    dropout: bool = False,
    generator: torch.Generator | None = None,
    **options: Any,
) -> InitReport:
    """Layer-sequential unit variance: orthogonal weights, scaled by the measured variance of the output.

    ``variance_init`` with ``exact`` and ``orthogonal``. Mishkin, Matas 2016, "All you need is a good init",
    https://arxiv.org/abs/1511.06422
    """
    options |= {"layers": layers, "center": center, "dropout": dropout, "generator": generator}
    return variance_init(model, batches, target, forward, exact=True, orthogonal=True, **options)


def data_dependent_init(
    model: torch.nn.Module,
    batches: Any,
    target: Target = 1.0,
    forward: Forward | None = None,
    *,
    layers: Select = None,
    mode: str | None = "train",
    dropout: bool = False,
    num_batches: int | None = None,
    generator: torch.Generator | None = None,
) -> InitReport:
    r"""Gives every channel of every layer mean 0 and the target variance on the data.

    .. math:: w_k \leftarrow w_k \sqrt{V_\mathrm{target}} / \sigma_k, \qquad
              \beta_k = - \mu_k \sqrt{V_\mathrm{target}} / \sigma_k

    with the mean and standard deviation of channel k over points, under weights drawn from a unit Gaussian:
    the per-layer form of Krähenbühl et al. 2016, "Data-dependent initializations of convolutional neural
    networks", https://arxiv.org/abs/1511.06856. For layers with one weight whose output's last (of image
    convolutions: second) dimension counts the channels. A layer without bias keeps its mean.
    """
    _check_target(target, model)

    def strategy(layer: Layer) -> Steps:
        goal = _target_of(target, layer)
        if len(layer.weights) != 1:
            return "it has several weights"
        if layer.kind.second_moment is not None:
            checked(layer, (yield lambda call: call.second_moment()), "input")
        yield from _fit_basis(layer, generator)
        if (yield from _probe(layer, generator)) is None:
            return NOT_LINEAR
        mean, square = yield channel_moments
        checked(layer, square.mean(), "output under unit weights")
        spread = (square - mean.square()).clamp(min=0).sqrt()
        dead = spread <= 1e-6 * square.sqrt()
        if bool(dead.all()):
            raise ValueError(f"{layer.name}: every channel is constant on the data given")
        factor = torch.where(dead, 1.0, goal**0.5 / torch.where(dead, 1.0, spread))
        with torch.no_grad():
            layer.scale_channels(factor)
            bias = layer.bias_of(mean.numel())
            if bias is not None:
                bias.copy_((-mean * factor).view_as(bias))
        return LayerInit(
            layer.name, layer.type, float(layer.weight.double().square().mean()), goal, note="per channel"
        )

    return walk(
        model,
        batches,
        strategy,
        method="data-dependent",
        layers=layers,
        forward=forward,
        mode=mode,
        dropout=dropout,
        num_batches=num_batches,
    )


def _fit_basis(layer: Layer, generator: torch.Generator | None) -> Generator[Statistic, Tensor, None]:
    """A basis that sees offsets in their own unit is drawn anew for the radius it meets: N(0, 1 / D r^2)."""
    module = layer.module
    if isinstance(module, PointConvolution) and module.basis.sees_length:
        if not any(parameter.requires_grad for parameter in module.basis.parameters()):
            return
        radius = checked(layer, (yield _mean_radius), "mean radius")
        module.basis.reset_parameters(generator, radius=radius)
        module.refresh_precondition(radius)


def _fit_attention(layer: Layer, generator: torch.Generator | None) -> Generator[Statistic, Tensor, None]:
    """Draws queries, keys and values of unit variance; what is linear in its weights is behind them."""
    if not isinstance(layer.module, nn.MultiheadAttention) or not all(w.requires_grad for w in layer.inner):
        return
    moments = yield _attention_inputs
    deviations = [checked(layer, moment, "input") ** -0.5 for moment in moments]
    parts = layer.inner if len(layer.inner) == 3 else layer.inner[0].chunk(3)
    with torch.no_grad():
        for weight, deviation in zip(parts, deviations, strict=True):
            fill_normal(weight, generator)
            weight.mul_(deviation)


def _attention_inputs(call: Call) -> Tensor:
    """Z of queries, keys and values, ``[3]``."""
    given = inspect.signature(call.layer.module.forward).bind(*call.args, **call.kwargs).arguments
    inputs = (given[name].double() for name in ("query", "key", "value"))
    return torch.stack([x.square().sum(-1).mean() for x in inputs])


def _try(layer: Layer) -> Generator[Statistic, Tensor, str | None]:
    """Why a module without a rule has no weights to be drawn, if so."""
    if layer.kind.late and all(weight.dim() < 2 for weight in layer.weights):
        channels = yield lambda call: torch.tensor(float(call.output().shape[-1]))
        if all(weight.numel() <= channels for weight in layer.weights):
            return f"no rule for {layer.type}, whose weights are gains"
    return None


def _measure_and_draw(
    layer: Layer, goal: float, generator: torch.Generator | None, orthogonal: bool
) -> Steps:
    if layer.kind.second_moment is not None:
        z = checked(layer, (yield lambda call: call.second_moment()), "input")
        layer.draw(goal / z, generator, orthogonal)
        return LayerInit(layer.name, layer.type, goal / z, goal, z)
    probe, note = (yield from _probe(layer, generator, orthogonal)), "probed"
    if probe is None and layer.kind.late:
        probe, note = yield from _probe_one_by_one(layer, generator, orthogonal)
    if probe is None:
        return NOT_LINEAR
    layer.scale((goal / probe) ** 0.5)
    return LayerInit(layer.name, layer.type, goal / probe, goal, probe, note=note)


NOT_LINEAR = "not linear in its weights"


def _probe(
    layer: Layer, generator: torch.Generator | None, orthogonal: bool = False
) -> Generator[Statistic, Tensor, float | None]:
    """The second moment of the output under weights of unit variance, which are left in place; ``None``, and
    the weights as they were, if the layer is not linear in them."""
    if layer.kind.second_moment is not None:
        layer.draw(1.0, generator, orthogonal)
        return 1.0
    before = [w.detach().clone() for w in layer.weights]
    layer.draw(1.0, generator, orthogonal)
    moment, deviation = yield _linearity
    if moment > 0 and deviation <= 1e-4 * moment:
        return checked(layer, moment, "output under unit weights")
    with torch.no_grad():
        for weight, value in zip(layer.weights, before, strict=True):
            weight.copy_(value)
    checked(layer, moment, "output under unit weights")
    if not layer.kind.late:  # else nobody has said that it is
        warnings.warn(f"{layer.name} is {NOT_LINEAR}, and is left alone", stacklevel=2)
    return None


def _probe_one_by_one(
    layer: Layer, generator: torch.Generator | None, orthogonal: bool
) -> Generator[Statistic, Tensor, tuple[float | None, str]]:
    """Finds the largest weight that an unknown layer is linear in alone, and goes on with that."""
    every = layer.weights
    for weight in sorted(every, key=torch.numel, reverse=True) if len(every) > 1 else ():
        layer.weights = every
        name = layer.keep_weight(weight)
        probe = yield from _probe(layer, generator, orthogonal)
        if probe is not None:
            return probe, f"probed, {name} alone"
    return None, ""


def _linearity(call: Call) -> Tensor:
    """Second moments of the output, and of its deviation from -1/2 of what weights times -2 give, ``[2]``.

    A power of two changes no rounding; the sign tells a ReLU, which is linear for positive factors."""
    out = call.output().double()
    call.layer.scale(-2.0)
    deviation = out + call.output().double() / 2
    call.layer.scale(-0.5)
    return torch.stack([out.square().mean(), deviation.square().mean()])


def _mean_radius(call: Call) -> Tensor:
    hood = call.hood
    assert hood is not None
    return hood.radius.detach().double().mean()


def _check_target(target: Target, model: torch.nn.Module) -> None:
    """A name pattern that no layer has is a mistake."""
    names = [Layer(name, module, kind).name for name, module, kind in outermost(model) if kind is not None]
    for pattern in target if isinstance(target, Mapping) else ():
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"target has {pattern!r}, which is the name of no layer; there are {names}")


def _target_of(target: Target, layer: Layer) -> float:
    """The target variance of a layer: a number, by name pattern (1 where none matches), or by a function."""
    if isinstance(target, Mapping):
        value = next((v for p, v in target.items() if fnmatchcase(layer.name, p)), 1.0)
    elif callable(target):
        value = target(layer.name, layer.module)
    else:
        value = target
    if not 0 < value < float("inf"):
        raise ValueError(f"the target variance must be positive and finite, got {value} for {layer.name}")
    return float(value)
