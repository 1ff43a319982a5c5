"""Initialisations to compare with: their numbers, and that the weights have them."""

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import cloud_batch, moment, noise
from torch import nn

import pointvar as pv

C, OUT, K = 40, 60, 16


def model():
    convs = {name: make(C, OUT) for name, make in pv.methods.METHODS.items()}
    return nn.ModuleDict({**convs, "linear": nn.Linear(C, OUT), "image": nn.Conv2d(C, OUT, 3, groups=2)})


def basis_of(name):
    """K of each layer, by hand."""
    return {"linear": 1, "image": 9, "FlexConv": 4}.get(name, K)


def channels_of(name):
    return (C // 2, OUT // 2) if name == "image" else (C, OUT)


RULES = {
    "standard": (pv.standard_init, lambda k, c, o: 2 / (k * c)),
    "xavier": (pv.xavier_init, lambda k, c, o: 2 / (k * (c + o))),
    "channel": (pv.channel_init, lambda k, c, o: 1 / c),
}


@pytest.mark.parametrize(("start", "formula"), RULES.values(), ids=RULES)
def test_variances(start, formula):
    net = model()
    report = start(net, generator=seeded())
    assert {entry.name for entry in report.layers} == set(net)
    for name, module in net.items():
        expected = formula(basis_of(name), *channels_of(name))
        assert report[name].variance == pytest.approx(expected)
        # At least 2,400 numbers: their variance is known within 3 %; 12 % is four standard deviations.
        weight = module.weight.detach()
        assert moment(weight) == pytest.approx(expected, rel=0.12)
        assert float(weight.mean()) == pytest.approx(0, abs=0.1 * expected**0.5)
        assert not module.bias.any()


def test_the_authors_values():
    net = model()
    report = pv.authors_init(net, generator=seeded())
    expected = {"MCConv": 1, "PCCNN": 1, "SPHConv": 1, "KPConvN": 1, "KPConv": 2, "PointConv": 2}
    assert {entry.name: entry.variance * K * C for entry in report.layers} == pytest.approx(expected)
    for name in expected:
        measured = moment(net[name].weight)
        assert measured == pytest.approx(expected[name] / (K * C), rel=0.05)  # 38,400 numbers
    others = {"PointwiseCNN", "InterpCNN", "ConvPoint", "FlexConv", "linear", "image"}
    assert report.left_alone == dict.fromkeys(others, "not in the authors' code")


def test_a_new_layer_starts_from_the_standard():
    conv = pv.KPConv(C, OUT, generator=seeded())
    assert moment(conv.weight) == pytest.approx(2 / (K * C), rel=0.05)


def test_layers_with_several_weights_have_no_fan_and_are_left_alone():
    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))

        def forward(self, x):
            return x @ self.one + x.flip(0) @ self.two

    pv.register_layer(Double, weight=("one", "two"))
    report = pv.standard_init(nn.Sequential(Double(), nn.Linear(3, 3)))
    assert report.left_alone == {"0": "it has several weights, or one that is no matrix"}


def test_selection_generator_and_nothing():
    a, b = model(), model()
    for net in (a, b):
        assert len(pv.standard_init(net, layers="linear", generator=seeded(3)).layers) == 1
    assert torch.equal(a["linear"].weight, b["linear"].weight)
    with pytest.raises(ValueError, match="has no layer that could be initialised"):
        pv.authors_init(nn.Linear(3, 3))


# Per channel


def points(seed):
    features, hood = cloud_batch(points=200, seed=seed, cap=16)
    return features + 0.7, hood


def image(seed):
    return (noise(3, 4, 9, 9, seed=seed) + 0.7,)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 6), lambda s: (noise(50, 4, seed=s) + 2,), -1),
    "point": (lambda: pv.KPConvN(4, 6), points, -1),
    "unit": (lambda: pv.MCConv(4, 6, unit_response=True), points, -1),
    "pointconv": (lambda: pv.PointConv(4, 6), points, -1),
    "image": (lambda: nn.Conv2d(4, 6, 3, padding=1), image, 1),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), image, 1),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), image, 1),
    "grouped, transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), image, 1),
}


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize(("make", "data", "dim"), LAYERS.values(), ids=LAYERS)
def test_every_channel_has_mean_0_and_the_target_variance(make, data, dim, batches):
    layer, given = make(), [data(seed) for seed in range(batches)]
    report = pv.data_dependent_init(layer, given, 2.0, generator=seeded())
    rows = [layer(*batch).detach().double().movedim(dim, 0).flatten(1) for batch in given]
    mean = torch.stack([r.mean(1) for r in rows]).mean(0)
    square = torch.stack([r.square().mean(1) for r in rows]).mean(0)
    torch.testing.assert_close(mean, torch.zeros(6).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(square, torch.full((6,), 2.0).double(), rtol=1e-4, atol=0)
    assert report.layers[0].variance == pytest.approx(moment(layer.weight), rel=1e-5)


def test_through_a_network_per_channel():
    net = nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 3)
    )
    x = torch.randn(500, 4, generator=seeded())
    pv.data_dependent_init(net, x, generator=seeded())
    for depth in (1, 3, 5):
        out = net[:depth](x).detach()
        torch.testing.assert_close(out.var(0, correction=0), torch.ones(out.shape[1]), rtol=1e-3, atol=0)
        if depth != 3:  # without a bias the mean stays
            torch.testing.assert_close(out.mean(0), torch.zeros(out.shape[1]), rtol=0, atol=1e-4)


def test_channels_that_are_constant_are_an_error():
    with pytest.raises(ValueError, match="Linear: every channel is constant"):
        pv.data_dependent_init(nn.Linear(4, 4), torch.ones(10, 4))
