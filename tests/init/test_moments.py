"""Z of each layer against its definition: mean over outputs of the squared norm of d output / d weight."""

import pytest
import torch
from convolution_cases import seeded
from torch import nn
from torch.func import functional_call

import pointvar as pv


def oracle(layer, *args, **kwargs):
    """Mean over outputs of sum over weights of (d out / d w)^2, by automatic differentiation."""
    layer = layer.double()

    def output(weight):
        return functional_call(layer, {"weight": weight}, args, kwargs)

    jacobian = torch.autograd.functional.jacobian(output, layer.weight.detach(), vectorize=True)
    outputs = output(layer.weight.detach()).numel()
    return float(jacobian.square().sum() / outputs)


def z_of(layer, *args, **kwargs):
    report = pv.variance_init(layer.double(), (args, kwargs), forward=lambda m, b: m(*b[0], **b[1]))
    return report.layers[0].second_moment


def noise(*shape):
    return torch.randn(*shape, generator=seeded(), dtype=torch.float64) + 0.5


CONVOLUTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "dilation": {"dilation": 2},
    "depthwise": {"groups": 4},
    "padding": {"padding": 2},
    "same": {"padding": "same"},
    "valid": {"padding": "valid"},
    "replicate": {"padding": 2, "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular", "stride": 2},
    "same, reflect": {"padding": "same", "padding_mode": "reflect", "dilation": 2},
    "all": {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
    "pointwise": {"kernel_size": 1},
    "pointwise, groups": {"kernel_size": 1, "groups": 2},
    "pointwise, stride": {"kernel_size": 1, "stride": 2},
    "pointwise, padding": {"kernel_size": 1, "padding": 1},
}
TRANSPOSED = {
    "plain": {},
    "stride": {"stride": 2},
    "output padding": {"stride": 2, "output_padding": 1, "padding": 1},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2, "stride": 3},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution(dims, options):
    layer = getattr(nn, f"Conv{dims}d")(4, 4, **{"kernel_size": 3, **options})
    x = noise(2, 4, *[7, 6][:dims]) if dims < 3 else noise(1, 4, 5, 5, 5)
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


@pytest.mark.parametrize("options", TRANSPOSED.values(), ids=TRANSPOSED)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolution(dims, options):
    layer = getattr(nn, f"ConvTranspose{dims}d")(4, 6, 3, **options)
    x = noise(2, 4, *[3, 2, 2][:dims])
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


OTHERS = {
    "vector": (nn.Linear(3, 4), [(3,)], {}),
    "matrix": (nn.Linear(3, 4), [(5, 3)], {}),
    "tensor": (nn.Linear(3, 4), [(2, 4, 3)], {}),
    "bilinear": (nn.Bilinear(3, 2, 4), [(5, 3), (5, 2)], {}),
    "uneven windows": (nn.Conv2d(3, 2, (3, 1), (1, 2), (1, 0)), [(2, 3, 5, 4)], {}),
    "no batch dimension": (nn.Conv2d(3, 2, 3, padding=1), [(3, 5, 5)], {}),
    "output size": (nn.ConvTranspose2d(2, 3, 3, stride=2), [(2, 2, 4, 4)], {"output_size": [10, 9]}),
    "largest size": (nn.ConvTranspose2d(2, 3, 3, stride=2), [(2, 2, 4, 4)], {"output_size": [10, 10]}),
}


@pytest.mark.parametrize(("layer", "shapes", "options"), OTHERS.values(), ids=OTHERS)
def test_other_layers(layer, shapes, options):
    inputs = [noise(*shape) for shape in shapes]
    assert z_of(layer, *inputs, **options) == pytest.approx(oracle(layer, *inputs, **options), rel=1e-10)


@pytest.mark.parametrize(("layer", "shapes", "options"), OTHERS.values(), ids=OTHERS)
def test_z_is_taken_in_double_precision_whatever_the_layer_computes_in(layer, shapes, options):
    inputs = [noise(*shape).bfloat16() for shape in shapes]
    expected = z_of(layer, *(x.double() for x in inputs), **options)
    layer.bfloat16()
    report = pv.variance_init(layer, inputs[0], forward=lambda model, _: model(*inputs, **options))
    assert report.layers[0].second_moment == pytest.approx(expected, rel=1e-12)
    layer.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = [x.float() for x in inputs]
        report = pv.variance_init(layer, inputs[0], forward=lambda model, _: model(*inputs, **options))
    assert report.layers[0].second_moment == pytest.approx(expected, rel=1e-12)
