"""Gradients that are not larger than a share of the weights that they change."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from pointvar.layers import find_layers
from pointvar.ops import clip_units


class AdaptiveClipping:
    r"""Adaptive gradient clipping: each unit's gradient is limited by the norm of the unit's weights.

    .. math:: G_i \leftarrow G_i \min\left(1, \lambda \,
              \frac{\max(\|W_i\|, \epsilon)}{\|G_i\|}\right)

    A unit is all weights that lead to one output channel, the last dimension of a convolution's
    ``[K, in, out]``; a bias is one unit as a whole. The last layer is left alone. Brock et al. 2021,
    "High-performance large-scale image recognition without normalization", https://arxiv.org/abs/2102.06171

    Args:
        model: whose layers are known to the initialisation (``pointvar.layers.find_layers``).
        limit: :math:`\lambda`.
        eps: :math:`\epsilon`, so that units whose weights are 0 can change.
    """

    def __init__(self, model: nn.Module, limit: float, eps: float = 1e-3) -> None:
        if not limit > 0:
            raise ValueError(f"limit must be positive, got {limit}")
        self.limit, self.eps = limit, eps
        layers, _ = find_layers(model)
        last = {id(p) for p in layers[-1].module.parameters()} if layers else set()
        out_dim = {id(weight): layer.kind.out_dim for layer in layers for weight in layer.weights}
        self.parameters: list[nn.Parameter] = []
        self.units: list[int] = []
        for parameter in model.parameters():
            if id(parameter) in last or not parameter.requires_grad:
                continue
            self.parameters.append(parameter)
            # A vector (bias, gain) and a number are one unit; of all others, the output channels are.
            whole = parameter.dim() < 2
            self.units.append(-1 if whole else out_dim.get(id(parameter), 0) % parameter.dim())

    def __call__(self) -> None:
        """Clips the gradients in place."""
        found = [(p, p.grad, unit) for p, unit in zip(self.parameters, self.units, strict=True)]
        chosen = [(p, gradient, unit) for p, gradient, unit in found if gradient is not None]
        if chosen:
            weights, gradients, units = zip(*chosen, strict=True)
            clip_units(weights, gradients, units, self.limit, self.eps)


def decayed(model: nn.Module) -> Iterable[Tensor]:
    """The parameters that weight decay is for: the weights of convolutions, as they are learned."""
    from pointvar.convolution import PointConvolution

    return [m.learned for m in model.modules() if isinstance(m, PointConvolution)]
