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
    "groups": {"groups": 2},
    "depthwise": {"groups": 4},
    "padding": {"padding": 2},
    "same": {"padding": "same"},
    "valid": {"padding": "valid"},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 2, "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular", "stride": 2},
    "same, circular": {"padding": "same", "padding_mode": "circular", "dilation": 2},
    "all": {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution(dims, options):
    layer = getattr(nn, f"Conv{dims}d")(4, 4, 3, **options)
    x = noise(2, 4, *[7, 6][:dims]) if dims < 3 else noise(1, 4, 5, 6, 5)
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


TRANSPOSED = {
    "plain": {},
    "stride": {"stride": 2},
    "output padding": {"stride": 2, "output_padding": 1, "padding": 1},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2, "stride": 3},
}


@pytest.mark.parametrize("options", TRANSPOSED.values(), ids=TRANSPOSED)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolution(dims, options):
    layer = getattr(nn, f"ConvTranspose{dims}d")(4, 6, 3, **options)
    x = noise(2, 4, *[3, 2, 2][:dims])
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


@pytest.mark.parametrize("size", [[9, 9], [10, 9], [10, 10]])
def test_transposed_convolution_with_an_output_size(size):
    layer, x = nn.ConvTranspose2d(2, 3, 3, stride=2), noise(2, 2, 4, 4)
    assert layer.double()(x, output_size=size).shape[2:] == tuple(size)
    z = z_of(layer, x, output_size=size)
    assert z == pytest.approx(oracle(layer, x, output_size=size), rel=1e-10)


def test_uneven_windows():
    layer, x = nn.Conv2d(3, 2, (3, 1), (1, 2), (1, 0)), noise(2, 3, 5, 4)
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3)])
def test_linear(shape):
    layer, x = nn.Linear(3, 4), noise(*shape)
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


def test_bilinear():
    layer, x, y = nn.Bilinear(3, 2, 4), noise(5, 3), noise(5, 2)
    assert z_of(layer, x, y) == pytest.approx(oracle(layer, x, y), rel=1e-10)


def test_an_image_without_batch_dimension():
    layer, x = nn.Conv2d(3, 2, 3, padding=1), noise(3, 5, 5)
    assert z_of(layer, x) == pytest.approx(oracle(layer, x), rel=1e-10)


def test_z_is_taken_in_double_precision_whatever_the_layer_computes_in():
    x = noise(64, 32)
    layer = nn.Linear(32, 16)
    expected = float(x.float().double().square().sum(1).mean())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = pv.variance_init(layer, x.float())
    assert report.layers[0].second_moment == pytest.approx(expected, rel=1e-12)
    half = nn.Linear(32, 16).bfloat16()
    z = pv.variance_init(half, x.bfloat16()).layers[0].second_moment
    assert z == pytest.approx(float(x.bfloat16().double().square().sum(1).mean()), rel=1e-12)
