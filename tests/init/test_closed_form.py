"""The closed form of layers with unit response, and the second moment of activations."""

import math

import pytest
import torch
from convolution_cases import seeded
from torch import nn

import pointvar as pv
from pointvar.init import activation_moment

LEAKY = (1 + 0.2**2) / 2


def net(*units):
    return nn.ModuleList(pv.MCConv(4 * (i + 1), 4 * (i + 2), unit_response=u) for i, u in enumerate(units))


def variances(report):
    return [entry.variance for entry in report.layers]


def test_formula():
    report = pv.closed_form_init(net(True, True), target=2.0, coherence=0.9, input_moment=3.0)
    assert variances(report) == pytest.approx([2 / (4 * 3 * 0.9), 2 / (8 * 2 * LEAKY * 0.9)], rel=1e-5)
    assert [entry.target for entry in report.layers] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("activation", "moment"),
    [("relu", 0.5), (nn.ReLU(inplace=True), 0.5), (torch.relu, 0.5), (0.5, 0.5), ("identity", 1.0)],
)
def test_activations_by_name_module_function_and_number(activation, moment):
    report = pv.closed_form_init(net(True, True), activation, coherence=1.0)
    assert variances(report)[1] == pytest.approx(1 / (8 * moment), rel=1e-5)


def test_layers_without_unit_response_are_left_alone_and_count_as_first():
    model = net(False, True)
    before = model[0].weight.clone()
    report = pv.closed_form_init(model, coherence=1.0, input_moment=50.0)
    assert report.left_alone == {"0": "no unit response"}
    assert torch.equal(model[0].weight, before)
    assert variances(report) == pytest.approx([1 / (8 * LEAKY)], rel=1e-5)  # sees the first, not the input


def test_a_later_layer_that_is_set_alone_is_not_the_first():
    report = pv.closed_form_init(net(True, True), layers="1", coherence=1.0, input_moment=50.0)
    assert variances(report) == pytest.approx([1 / (8 * LEAKY)], rel=1e-5)


def test_nothing_to_set_is_an_error():
    with pytest.raises(ValueError, match=r"has no layer .*'0': 'no unit response'"):
        pv.closed_form_init(net(False))


@pytest.mark.parametrize("option", ["target", "coherence", "input_moment"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_numbers(option, value):
    with pytest.raises(ValueError, match=f"{option} must be positive and finite"):
        pv.closed_form_init(net(True), **{option: value})


def test_z_is_exact_where_features_are_constant_over_space():
    """There the coherence is 1 and Z = C m."""
    cloud = pv.PointCloud(torch.rand(200, 3, generator=seeded()))
    features = torch.randn(1, 16, generator=seeded()).expand(200, 16).contiguous()
    conv = pv.PCCNN(16, 2, unit_response=True, num_basis=8)
    moment = float(features.square().mean())
    report = pv.closed_form_init(conv, coherence=1.0, input_moment=moment)
    z = float(conv.second_moment(features, pv.ball_query(cloud, cloud, 0.3)))
    assert report.layers[0].variance == pytest.approx(1 / z, rel=1e-5)


EXACT = {
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x: x if x > 0 else 0.2 * x,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "tanh": math.tanh,
    "identity": lambda x: x,
}


@pytest.mark.parametrize("variance", [1.0, 0.3, 4.0])
@pytest.mark.parametrize("name", EXACT)
def test_activation_moment_against_simpsons_rule_on_each_side_of_the_kink(name, variance):
    def integrand(x):
        return EXACT[name](x * math.sqrt(variance)) ** 2 * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def simpson(a, b, steps=400):
        h = (b - a) / steps
        inner = sum((4 if i % 2 else 2) * integrand(a + i * h) for i in range(1, steps))
        return (integrand(a) + inner + integrand(b)) * h / 3

    expected = simpson(-10.0, 0.0) + simpson(0.0, 10.0)
    assert activation_moment(name, variance) == pytest.approx(expected, rel=2e-6)


def test_activation_moment_of_modules_with_parameters_of_any_dtype():
    for dtype in (torch.float32, torch.float64):
        assert activation_moment(nn.PReLU(init=0.2).to(dtype)) == pytest.approx(LEAKY, rel=1e-5)


def test_wrong_activations():
    with pytest.raises(ValueError, match="no activation 'swish'; known: leaky_relu, relu"):
        activation_moment("swish")
    for activation in (0.0, float("nan"), torch.zeros_like):
        with pytest.raises(ValueError, match="must be positive and finite"):
            activation_moment(activation)
