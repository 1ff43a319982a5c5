"""Initialisations to compare with: their numbers, and that the weights have them."""

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import cloud_batch, moment, noise
from torch import nn

import pointvar as pv

C, OUT, K = 4, 6, 16
TABLE = pv.init.Table("one", {"MCConv": [0.5, 0.25]}, {"MCConv": K}, 0.52, None)


def model():
    convs = {name: make(C, OUT) for name, make in pv.methods.METHODS.items()}
    return nn.ModuleDict({**convs, "linear": nn.Linear(C, OUT), "image": nn.Conv2d(C, OUT, 3, groups=2)})


def by_fans(formula):
    """Of K, C and O of each layer, by hand; of a grouped convolution, those of a group."""
    sizes = dict.fromkeys(pv.methods.METHODS, (K, C, OUT)) | {"FlexConv": (4, C, OUT)}
    sizes |= {"linear": (1, C, OUT), "image": (9, C // 2, OUT // 2)}
    return {name: formula(*size) for name, size in sizes.items()}


def units():
    return nn.ModuleList(pv.KPConv(C, OUT, unit_response=True) for _ in range(2))


def plain():
    return nn.ModuleList(pv.MCConv(C, OUT) for _ in range(2))


AUTHORS = {"MCConv": 1, "PCCNN": 1, "SPHConv": 1, "KPConvN": 1, "KPConv": 2, "PointConv": 2}
RULES = {
    "standard": (model, pv.standard_init, by_fans(lambda k, c, o: 2 / (k * c))),
    "xavier": (model, pv.xavier_init, by_fans(lambda k, c, o: 2 / (k * (c + o)))),
    "channel": (model, pv.channel_init, by_fans(lambda k, c, o: 1 / c)),
    "authors": (model, pv.authors_init, {name: n / (K * C) for name, n in AUTHORS.items()}),
    "closed form": (
        units,
        lambda net, generator: pv.closed_form_init(net, 0.4, coherence=0.5, generator=generator),
        {"0": 1 / (C * 0.5), "1": 1 / (C * 0.4 * 0.5)},
    ),
    "transfer": (
        plain,
        lambda net, generator: pv.transfer_init(net, TABLE, generator=generator),
        {"0": 1 / (C * 0.5), "1": 1 / (C * 0.25)},
    ),
}


@pytest.mark.parametrize(("make", "start", "variances"), RULES.values(), ids=RULES)
def test_weights_are_drawn_with_the_variance_of_the_rule(make, start, variances):
    """In the order of registration, from the generator, times the root of the variance; no bias is left."""
    net, numbers = make(), seeded(3)
    before = {name: p.clone() for name, p in net.named_parameters()}
    report = start(net, generator=seeded(3))
    assert {entry.name: entry.variance for entry in report.layers} == pytest.approx(variances)
    for name, module in net.named_children():
        if name in variances:
            expected = torch.randn(module.weight.shape, generator=numbers) * variances[name] ** 0.5
            torch.testing.assert_close(module.weight.detach(), expected)
            assert not module.bias.any()
        else:
            assert torch.equal(module.weight, before[f"{name}.weight"])


def test_what_the_authors_do_not_have_is_left_alone():
    report = pv.authors_init(model())
    others = {"PointwiseCNN", "InterpCNN", "ConvPoint", "FlexConv", "linear", "image"}
    assert report.left_alone == dict.fromkeys(others, "not in the authors' code")
    with pytest.raises(ValueError, match="has no layer that could be initialised"):
        pv.authors_init(nn.Linear(3, 3))


class Vectors(nn.Module):
    def __init__(self, *shapes):
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(shape) for shape in shapes)

    def forward(self, x):
        return sum(x * weight for weight in self.weights)


@pytest.mark.parametrize("shapes", [[(3, 3), (3, 3)], [(3,)]])
def test_layers_with_several_weights_or_a_vector_have_no_fan_and_are_left_alone(shapes):
    pv.register_layer(Vectors, weight="weights.*")
    report = pv.standard_init(nn.Sequential(Vectors(*shapes), nn.Linear(3, 3)))
    assert report.left_alone == {"0": "it has several weights, or one that is no matrix"}


def test_selection():
    assert [entry.name for entry in pv.standard_init(model(), layers="linear").layers] == ["linear"]


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
    "one image": (lambda: nn.Conv2d(4, 6, 3), lambda s: (image(s)[0][0],), 0),
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


@pytest.mark.parametrize("value", [3.0, 0.1, 0.7, -1.3, 1e3])  # squares minus square may round below 0
def test_a_channel_that_is_constant_gets_mean_0_alone(value):
    layer = nn.Conv1d(2, 2, 1, groups=2).double()
    x = noise(5, 2, 9).double()
    x[:, 0] = value  # the first channel sees nothing else
    pv.data_dependent_init(layer, x, 2.0, generator=seeded())
    drawn = torch.randn(2, 1, 1, generator=seeded(), dtype=torch.float64)[0].item()
    assert layer.weight[0].item() == pytest.approx(drawn)
    assert layer.bias[0].item() == pytest.approx(-value * drawn)
    assert moment(layer(x)[:, 1]) == pytest.approx(2, rel=1e-4)


def test_channels_that_are_constant_are_an_error():
    with pytest.raises(ValueError, match="Linear: every channel is constant"):
        pv.data_dependent_init(nn.Linear(4, 4), torch.ones(10, 4))
