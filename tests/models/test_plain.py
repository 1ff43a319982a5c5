"""The plain network: depth, channels, methods by name, function and parts."""

import copy
import functools
import pickle

import pytest
import torch
from network_cases import METHODS, NORMS, clouds, executed, features_of, registered, seeded

import pointvar as pv
from pointvar.models import PlainNet


def hood_of(cloud, cap=None):
    return pv.ball_query(cloud, cloud, 0.5, cap, seeded())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_shapes_and_gradients(method, norm):
    cloud = clouds(20, 0, 1, 15)
    net = PlainNet(3, 8, 2, 5, method, norm=norm, radius=0.5, generator=seeded())
    features = features_of(cloud, 2).requires_grad_()
    out = net(features, hood_of(cloud))
    assert out.shape == (36, 5)
    out.square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    assert features.grad.abs().sum() > 0


def test_depth_and_channels():
    shapes = [tuple(m.weight.shape[1:]) for m in PlainNet(25).modules() if isinstance(m, pv.PointConvolution)]
    assert shapes == [(64, 64)] * 25
    net = PlainNet(3, 8, in_channels=2, out_channels=5)
    assert [tuple(m.weight.shape[1:]) for _, m in registered(net)] == [(2, 8), (8, 8), (8, 5)]
    assert [tuple(m.weight.shape[1:]) for _, m in registered(PlainNet(1, 8, 2, 5))] == [(2, 5)]


def test_it_is_what_the_formula_says():
    cloud = clouds(20, 10)
    hood, features = hood_of(cloud), features_of(cloud, 2)
    net = PlainNet(3, 8, 2, 5, "KPConvN", generator=seeded())
    first, second, third = (m for _, m in registered(net))
    expected = first(features, hood)
    for conv in (second, third):
        expected = conv(torch.where(expected > 0, expected, 0.2 * expected), hood)
    torch.testing.assert_close(net(features, hood), expected)


def test_layers_run_in_the_order_of_registration():
    cloud = clouds(20)
    net = PlainNet(4, 8, 2, norm="group")
    assert executed(net, features_of(cloud, 2), hood_of(cloud)) == [name for name, _ in registered(net)]


def test_without_norm_and_bias_it_is_homogeneous():
    cloud = clouds(20, 10)
    net, hood, features = PlainNet(4, 8, 2, method="KPConv"), hood_of(cloud), features_of(cloud, 2)
    torch.testing.assert_close(net(3 * features, hood), 3 * net(features, hood))
    assert all(conv.bias is None for _, conv in registered(net))
    assert all(conv.bias is not None for _, conv in registered(PlainNet(2, 8, bias=True)))


def test_options_reach_the_convolutions():
    net = PlainNet(2, 8, method="KPConv", unit_response=True, num_basis=9, dim=2)
    assert all(conv.unit_response and conv.weight.shape[0] == 9 for _, conv in registered(net))
    assert all(conv.basis.dim == 2 for _, conv in registered(net))
    assert (
        PlainNet(2, 8, activation=torch.nn.Identity()).blocks[1].before.activation(torch.tensor(-1.0)) == -1
    )


def test_pointconv_learns_its_radius_and_its_norm():
    bases = [conv.basis for _, conv in registered(PlainNet(2, 8, method="PointConv", radius=0.3))]
    assert all(basis.radius == 0.3 and basis.norm is None for basis in bases)
    for norm in NORMS[1:]:
        bases = [conv.basis for _, conv in registered(PlainNet(2, 8, method="PointConv", norm=norm))]
        assert all((basis.norm is not None) == (norm == "batch") for basis in bases)
    chosen = functools.partial(pv.PointConv, radius=0.7)
    bases = [conv.basis for _, conv in registered(PlainNet(2, 8, method=chosen, radius=0.3))]
    assert all(basis.radius == 0.7 for basis in bases)


PAIRS = {
    "names": ("Gaussian", "Average"),
    "classes": (pv.basis.Gaussian, pv.estimator.Average),
    "objects": (pv.basis.Gaussian(16), pv.estimator.Average()),
    "functions": (lambda: pv.basis.Gaussian(16), lambda: pv.estimator.Average()),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_basis_and_an_estimator(pair):
    cloud = clouds(20)
    net = PlainNet(2, 8, 2, method=pair, generator=seeded())
    first, second = (conv for _, conv in registered(net))
    assert isinstance(first.basis, pv.basis.Gaussian)
    assert isinstance(first.estimator, pv.estimator.Average)
    assert first.basis is not second.basis
    assert net(features_of(cloud, 2), hood_of(cloud)).shape == (20, 8)


def test_every_layer_draws_its_own_basis_from_an_object():
    net = PlainNet(2, 8, method=(pv.basis.MLP(16), pv.estimator.Sum()), generator=seeded())
    first, second = (conv.basis.linear.weight for _, conv in registered(net))
    assert not torch.equal(first, second)
    twin = PlainNet(2, 8, method=(pv.basis.MLP(16), pv.estimator.Sum()), generator=seeded())
    torch.testing.assert_close(net.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_a_function_of_ones_own():
    def own(in_channels, out_channels, **options):
        return pv.KPConv(in_channels, out_channels, num_basis=5, **options)

    assert [conv.weight.shape[0] for _, conv in registered(PlainNet(2, 8, method=own))] == [5, 5]


@pytest.mark.parametrize("method", METHODS)
def test_copies(method):
    cloud = clouds(20)
    hood, features = hood_of(cloud), features_of(cloud, 2)
    net = PlainNet(2, 8, 2, method=method, norm="group", generator=seeded())
    other = PlainNet(2, 8, 2, method=method, norm="group", generator=seeded(1))
    other.load_state_dict(net.state_dict())
    for twin in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(twin(features, hood), net(features, hood), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"depth": 0}, ValueError, "at least one convolution, got depth=0"),
        ({"method": "KPCon"}, ValueError, "no method 'KPCon'"),
        ({"method": 3}, TypeError, "a name or a function, got int"),
        ({"method": ("Gauss", "Sum")}, ValueError, "no basis 'Gauss' .*; known are .*Gaussian"),
        ({"method": ("Gaussian", "Summe")}, ValueError, "no estimator 'Summe' .*; known are .*Sum"),
        ({"method": ("Gaussian",)}, ValueError, r"a pair \(basis, estimator\)"),
        ({"method": (torch.nn.Identity(), "Sum")}, TypeError, "must be a pointvar.Basis, got Identity"),
        ({"norm": "instance"}, ValueError, "no norm 'instance'; known are none, batch, group, layer"),
        ({"method": "FlexConv", "num_basis": 16}, ValueError, "FlexConv has"),
        ({"channels": 0}, ValueError, "at least one channel"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        PlainNet(**{"depth": 2, "channels": 8, **options})
