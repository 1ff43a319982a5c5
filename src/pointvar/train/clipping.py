"""What the optimisers of a training are told about the parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from pointvar.clipping import AdaptiveClipping as AdaptiveClipping


def decayed(model: nn.Module) -> Iterable[Tensor]:
    """The parameters that weight decay is for: the weights of convolutions, as they are learned."""
    from pointvar.convolution import PointConvolution

    return [m.learned for m in model.modules() if isinstance(m, PointConvolution)]
