"""Building blocks on packed features: normalisation, pooling, and what stands before a convolution."""

from pointvar.nn.block import ConvolutionBlock, LinearBlock, NormActivation, linear
from pointvar.nn.norm import BatchNorm, Bias, CloudGroupNorm, LayerNorm, NoNorm, make_norm
from pointvar.nn.pool import at_kept, global_max, global_mean, interpolate

__all__ = [
    "BatchNorm",
    "Bias",
    "CloudGroupNorm",
    "ConvolutionBlock",
    "LayerNorm",
    "LinearBlock",
    "NoNorm",
    "NormActivation",
    "at_kept",
    "global_max",
    "global_mean",
    "interpolate",
    "linear",
    "make_norm",
]
