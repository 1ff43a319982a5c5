"""Initialisations that look at neither data nor geometry, to compare with.

In all, C counts the channels in, O those out, K the basis functions (or the taps of an image convolution).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pointvar.convolution import PointConvolution
from pointvar.init.report import InitReport, LayerInit
from pointvar.layers import Layer, Select, find_layers, nothing_to_set

Rule = Callable[[Layer], float | str]
"""The variance of a layer's weights, or the reason why it is left alone."""


def standard_init(
    model: nn.Module, *, layers: Select = None, generator: torch.Generator | None = None
) -> InitReport:
    """Var[w] = 2 / (K C), after He et al. 2015: "He" in the paper's tables, and the default of our layers."""
    return by_rule(model, "standard", _by_fans(lambda c, kc, ko: 2 / kc), layers, generator)


def xavier_init(
    model: nn.Module, *, layers: Select = None, generator: torch.Generator | None = None
) -> InitReport:
    """Var[w] = 2 / (K (C + O)), after Glorot and Bengio 2010."""
    return by_rule(model, "Xavier", _by_fans(lambda c, kc, ko: 2 / (kc + ko)), layers, generator)


def channel_init(
    model: nn.Module, *, layers: Select = None, generator: torch.Generator | None = None
) -> InitReport:
    """Var[w] = 1 / C, as in implementations that forget the basis functions."""
    return by_rule(model, "1/C", _by_fans(lambda c, kc, ko: 1 / c), layers, generator)


_AUTHORS = {"MCConv": 1, "PCCNN": 1, "SPHConv": 1, "KPConvN": 1, "KPConv": 2, "PointConv": 2}


def authors_init(
    model: nn.Module, *, layers: Select = None, generator: torch.Generator | None = None
) -> InitReport:
    """What the code of the paper's authors starts from: 1 / (K C) for MCConv, PCCNN, SPHConv and KPConvN,
    2 / (K C) for KPConv and PointConv. Other layers are left alone."""

    def rule(layer: Layer) -> float | str:
        conv = layer.module
        if not isinstance(conv, PointConvolution) or conv.method not in _AUTHORS:
            return "not in the authors' code"
        return _AUTHORS[conv.method] / (conv.basis.size * conv.in_channels)

    return by_rule(model, "authors'", rule, layers, generator)


def _by_fans(variance: Callable[[int, int, int], float]) -> Rule:
    def rule(layer: Layer) -> float | str:
        fans = layer.fans()
        return "it has several weights, or one that is no matrix" if fans is None else variance(*fans)

    return rule


def by_rule(
    model: nn.Module,
    method: str,
    rule: Rule,
    layers: Select,
    generator: torch.Generator | None,
    target: float | None = None,
) -> InitReport:
    """Draws each layer with the variance that ``rule`` gives, and sets its bias to 0."""
    found, left_alone = find_layers(model, layers)
    report = InitReport(method, left_alone=left_alone)
    variances = [(layer, rule(layer)) for layer in found]  # all, before the first is touched
    for layer, variance in variances:
        if isinstance(variance, str):
            left_alone[layer.name] = variance
            continue
        layer.draw(variance, generator)
        layer.zero_bias()
        report.layers.append(LayerInit(layer.name, layer.type, variance, target))
    if not report.layers:
        raise nothing_to_set(model, left_alone)
    return report
