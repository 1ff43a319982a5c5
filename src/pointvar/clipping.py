"""Gradients that are not larger than a share of the weights that they change."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pointvar.layers import Forward, Select, feed, find_layers, predicate, restored
from pointvar.ops import clip_units


class AdaptiveClipping:
    r"""Adaptive gradient clipping: each unit's gradient is limited by the norm of the unit's weights.

    .. math:: G_i \leftarrow G_i \min\left(1, \lambda \,
              \frac{\max(\|W_i\|, \epsilon)}{\|G_i\|}\right)

    A unit is all weights that lead to one output channel, the last dimension of a convolution's
    ``[K, in, out]``; a bias is one unit as a whole. Of weights that belong to no known layer, those of three
    dimensions are taken for such a convolution's, and others for matrices or images, whose first dimension
    counts the outputs. Brock et al. 2021, "High-performance large-scale image recognition without
    normalization", https://arxiv.org/abs/2102.06171, leave the last layer alone; here it is clipped like all
    others unless it is named: with few clouds per batch its weights, and the loss, grow otherwise.

    Args:
        model: whose layers are known to the initialisation (``pointvar.layers.find_layers``).
        limit: :math:`\lambda`.
        eps: :math:`\epsilon`, so that units whose weights are 0 can change.
        head: which layers are left alone, as types, name patterns or a predicate; default: none.
            ``last_layer`` knows which one a pass reaches last.

    Example::

        clip = pv.AdaptiveClipping(model, 0.05)
        loss.backward()
        clip()
        optimizer.step()
    """

    def __init__(self, model: nn.Module, limit: float, eps: float = 1e-3, head: Select = None) -> None:
        if not limit > 0:
            raise ValueError(f"limit must be positive, got {limit}")
        self.limit, self.eps = limit, eps
        layers, _ = find_layers(model)
        chosen = predicate(head)
        heads = [] if head is None else [x for x in layers if chosen(x.name, x.module)]
        if head is not None and not heads:
            raise ValueError(f"head is {head!r}, which is no layer; there are {[x.name for x in layers]}")
        last = {id(p) for layer in heads for p in layer.module.parameters()}
        out_dim = {id(weight): layer.kind.out_dim for layer in layers for weight in layer.weights}
        self.parameters: list[nn.Parameter] = []
        self.units: list[int] = []
        for parameter in model.parameters():
            if id(parameter) in last or not parameter.requires_grad:
                continue
            self.parameters.append(parameter)
            # A vector (bias, gain) and a number are one unit; of all others, the output channels are.
            whole, unknown = parameter.dim() < 2, 2 if parameter.dim() == 3 else 0
            self.units.append(-1 if whole else out_dim.get(id(parameter), unknown) % parameter.dim())

    def __call__(self) -> None:
        """Clips the gradients in place."""
        found = [(p, p.grad, unit) for p, unit in zip(self.parameters, self.units, strict=True)]
        chosen = [(p, gradient, unit) for p, gradient, unit in found if gradient is not None]
        if chosen:
            weights, gradients, units = zip(*chosen, strict=True)
            clip_units(weights, gradients, units, self.limit, self.eps)


def last_layer(model: nn.Module, batch: Any, forward: Forward | None = None) -> str:
    """The name of the layer that a pass reaches last, whatever the order of registration: the head.

    The arguments are those of ``variance_report``. Nothing of the model changes.
    """
    reached: list[str] = []
    handles = [
        layer.module.register_forward_hook(lambda *_, name=layer.name: reached.append(name))
        for layer in find_layers(model)[0]
    ]
    try:
        with torch.no_grad(), restored(model):
            (forward or feed)(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    if not reached:
        raise ValueError(f"the forward pass reaches no layer of {type(model).__name__}")
    return reached[-1]
