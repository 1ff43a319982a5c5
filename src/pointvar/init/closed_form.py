r"""Closed form: the variance of the weights of layers with unit response, from channels and activation alone.

With unit response, :math:`\|\tilde\phi(x)\|^2 = F^2` for a locally constant feature F, whatever the
neighbourhood. So for C channels whose second moment is m,

.. math:: Z = \rho \, C \, m, \qquad \mathrm{Var}[w] = \frac{V_\mathrm{target}}{C \, m \, \rho}

where the coherence :math:`\rho \le 1` says how alike the features of neighbours are (1: the same).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pointvar.convolution import PointConvolution
from pointvar.init.baselines import by_rule
from pointvar.init.report import InitReport
from pointvar.layers import Layer, Select, outermost

Activation = str | float | Callable[[Tensor], Tensor]


def closed_form_init(
    model: nn.Module,
    activation: Activation = "leaky_relu",
    target: float = 1.0,
    *,
    coherence: float = 0.87,
    input_moment: float = 1.0,
    layers: Select = None,
    generator: torch.Generator | None = None,
) -> InitReport:
    r"""Initialises layers with unit response from no data: Var[w] = target / (C m rho).

    Args:
        model: any module that has layers with ``unit_response=True``; all others are left alone.
        activation: between the layers: a function, a module, or a name (``"relu"``, ``"gelu"``, ``"silu"``,
            ``"tanh"``, ``"identity"``, ``"leaky_relu"`` of slope 0.2), or m itself as a number. m is the
            second moment of the activation of a Gaussian of the target variance, :math:`(1 + a^2) / 2` times
            the target for a leaky ReLU of slope a.
        target: second moment that the output of each layer is to have.
        coherence: :math:`\rho`, how alike the features of neighbours are, measured in the documentation.
        input_moment: second moment of the input features; the model's first point convolution (by
            registration) sees those.
        layers: which layers; types, name patterns or a predicate.
        generator: where weights come from; default: torch's global generator.
    """
    for name, value in {"target": target, "coherence": coherence, "input_moment": input_moment}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
    inner = activation_moment(activation, target)
    depth = depths(model)

    def rule(layer: Layer) -> float | str:
        conv = layer.module
        if not (isinstance(conv, PointConvolution) and conv.unit_response):
            return "no unit response"
        moment = input_moment if depth[conv] == 0 else inner
        return target / (conv.in_channels * moment * coherence)

    return by_rule(model, "closed form", rule, layers, generator, target)


def depths(model: nn.Module) -> dict[nn.Module, int]:
    """The point convolutions of a model in order of registration, also those that are not to be set."""
    found = [module for _, module, _ in outermost(model) if isinstance(module, PointConvolution)]
    return {module: depth for depth, module in enumerate(found)}


_NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky_relu": lambda x: nn.functional.leaky_relu(x, 0.2),
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "elu": nn.functional.elu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def activation_moment(activation: Activation, variance: float = 1.0) -> float:
    """m = E[a(g)^2] for a Gaussian g of mean 0 and given variance: (1 + a^2) / 2 of it for a leaky ReLU."""
    if isinstance(activation, (int, float)):
        moment = float(activation)
    else:
        if isinstance(activation, str):
            if activation not in _NAMED:
                raise ValueError(f"there is no activation {activation!r}; known: {', '.join(_NAMED)}")
            activation = _NAMED[activation]
        # The rule of midpoints over +-12 standard deviations, symmetric around the kink of a ReLU at 0.
        x = (torch.arange(24_000, dtype=torch.float64) + 0.5) / 1_000 - 12
        parameters = activation.parameters() if isinstance(activation, nn.Module) else iter(())
        like = next(parameters, torch.empty(0))  # device and dtype that it works on
        density = torch.exp(-x.square() / 2) / (1_000 * math.sqrt(2 * math.pi))
        with torch.no_grad():
            value = activation((x * variance**0.5).to(like)).double().cpu()
        moment = float((value.square() * density).sum())
    if not 0 < moment < math.inf:
        raise ValueError(f"the activation's second moment must be positive and finite, got {moment}")
    return moment
