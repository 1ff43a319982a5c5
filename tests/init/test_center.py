"""Centred draws: what they take away, what is left, and how much the depth allows."""

import math

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import cloud_batch, mlp, moment, noise, same
from torch import nn

import pointvar as pv
from pointvar.init.center import GROWTH, Centering

IMAGES = {
    "padding": (lambda o: nn.Conv1d(4, o, 3, padding=2), (5, 4, 9)),
    "groups": (lambda o: nn.Conv1d(4, o, 3, padding=1, groups=2, bias=False), (5, 4, 9)),
    "2d": (lambda o: nn.Conv2d(4, o, 3, padding=1, stride=2, groups=2), (3, 4, 7, 6)),
    "reflect": (lambda o: nn.Conv2d(4, o, 3, padding=1, padding_mode="reflect"), (3, 4, 7, 6)),
    "transposed": (lambda o: nn.ConvTranspose2d(4, o, 3, stride=2, groups=2), (3, 4, 5, 4)),
}


def case(name, outputs, unit=False, precondition=False):
    """A layer in float64 and its arguments, which have a mean."""
    if name in pv.methods.METHODS:
        features, hood = cloud_batch()
        make = pv.methods.METHODS[name]
        options = {"unit_response": unit, "precondition": precondition, "generator": seeded()}
        return make(4, outputs, **options), (features + 0.7, hood)
    if name == "Linear":
        return nn.Linear(4, outputs), (torch.rand(50, 4, generator=seeded()),)
    make, shape = IMAGES[name]
    return make(outputs), (torch.rand(shape, generator=seeded()),)


def rows(output):
    """``[M, O]``"""
    return output.detach().double().movedim(1, -1).flatten(0, -2)


METHODS = [(name, unit) for name in pv.methods.METHODS for unit in (False, True)]
CASES = [*METHODS, ("Linear", False), *((name, False) for name in IMAGES)]


@pytest.mark.parametrize(("name", "unit"), CASES)
def test_no_output_has_a_mean(name, unit):
    layer, args = case(name, 6, unit)
    report = pv.variance_init(layer, args, center=1.0, generator=seeded(1))
    out = rows(layer(*args))
    # A mean over float32 sums of numbers that are as large as their second moment, to rounding.
    largest = float(out.abs().max())
    assert float(out.mean(0).abs().max()) < 1e-5 * largest
    (entry,) = report.layers
    assert (entry.center, entry.share, report.passes) == (1.0, pytest.approx(1), 1)
    plain, _ = case(name, 6, unit)
    pv.variance_init(plain, args, generator=seeded(1))
    assert float(rows(plain(*args)).mean(0).abs().max()) > 0.05


@pytest.mark.parametrize("strength", [0.3, 1.0])
@pytest.mark.parametrize(("name", "unit"), CASES)
def test_the_second_moment_is_the_target(name, unit, strength):
    """In expectation, here over 4,000 channels; the share around the mean, too. Exactly, if asked for."""
    layer, args = case(name, 4000, unit)
    (entry,) = pv.variance_init(layer, args, 2.0, center=strength, generator=seeded(1)).layers
    out = rows(layer(*args))
    assert moment(out) == pytest.approx(2, rel=0.15)  # of one projection the deviation is sqrt(2 / 4000)
    around = moment(out - out.mean(0)) / moment(out)
    assert around == pytest.approx(entry.share, abs=0.1)
    pv.variance_init(layer, args, 2.0, center=strength, exact=True, generator=seeded(1))
    assert moment(layer(*args)) == pytest.approx(2, rel=1e-4)


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.5, 1.0])
def test_the_variance_by_loops(strength):
    """Var[w] = target / (Z - (2 a - a^2) E[(u phi)^2]), and W - a u (u W) of the draw without it."""
    torch.manual_seed(0)
    layer, (features, hood) = case("KPConvN", 3, unit=True)
    phi = layer.project(features, hood).detach().double()
    mean = [sum(float(row[i]) for row in phi) / len(phi) for i in range(phi.shape[1])]
    length = math.sqrt(sum(m * m for m in mean))
    u = [m / length for m in mean]
    z = sum(float(v) ** 2 for row in phi for v in row) / len(phi)
    common = sum(sum(float(v) * w for v, w in zip(row, u, strict=True)) ** 2 for row in phi) / len(phi)
    assert common > length**2 * 1.001, "not the square of the mean alone"
    expected = 3.0 / (z - (2 * strength - strength**2) * common)
    options = {"center": strength, "exact": False, "generator": seeded(1)}
    report = pv.variance_init(layer, (features, hood), 3.0, **options)
    assert report.layers[0].variance == pytest.approx(expected, rel=1e-5)
    assert report.layers[0].second_moment == pytest.approx(z, rel=1e-5)
    drawn = torch.randn(layer.weight.shape, generator=seeded(1)).flatten(0, 1).double() * expected**0.5
    direction = torch.tensor(u, dtype=torch.float64)[:, None]
    drawn = drawn - strength * direction * (direction * drawn).sum(0)
    torch.testing.assert_close(layer.weight.detach().flatten(0, 1).double(), drawn, rtol=1e-4, atol=1e-5)


def test_of_several_batches_each_counts_the_same():
    layer = nn.Linear(3, 2000)
    first, second = torch.rand(4, 3, generator=seeded(0)), 2 * torch.rand(40, 3, generator=seeded(1))
    report = pv.variance_init(layer, [(first,), (second,)], center=1.0, generator=seeded())
    outputs = [layer(batch).detach().double() for batch in (first, second)]
    mean = (outputs[0].mean(0) + outputs[1].mean(0)) / 2
    assert float(mean.abs().max()) < 1e-5
    assert (moment(outputs[0]) + moment(outputs[1])) / 2 == pytest.approx(1, rel=0.15)
    assert report.passes == 2
    with pytest.raises(AssertionError):
        torch.testing.assert_close(outputs[0].mean(0), torch.zeros(2000, dtype=torch.float64))


@pytest.mark.parametrize("name", ["KPConvN", "ConvPoint"])
def test_preconditioned_layers_get_the_same_weights(name):
    pair = [case(name, 5, True, precondition) for precondition in (False, True)]
    for layer, args in pair:
        pv.variance_init(layer, args, center=0.7, generator=seeded(1))
    first, second = (layer.weight.detach() for layer, _ in pair)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4 * float(first.abs().max()))


def test_orthogonal_weights():
    layer, args = case("Linear", 4)
    report = pv.lsuv_init(layer, args, center=1.0, generator=seeded())
    assert float(layer(*args).mean(0).abs().max().detach()) < 1e-5
    assert moment(layer(*args)) == pytest.approx(1, rel=1e-4)
    assert report.method == "LSUV"


def test_biases_are_no_part_of_it():
    layer, args = case("Linear", 3)
    bias = layer.bias.detach().clone()
    pv.variance_init(layer, args, center=1.0, bias="keep", generator=seeded())
    torch.testing.assert_close(layer(*args).mean(0), bias)


def test_inputs_that_are_all_alike_are_not_taken_away():
    """Of one number, or of the same one everywhere, nothing would be left."""
    for layer, x in ((nn.Linear(1, 4), torch.rand(9, 1)), (nn.Linear(3, 4), torch.ones(9, 3))):
        (entry,) = pv.variance_init(layer, (x,), center=1.0, exact=False, generator=seeded()).layers
        assert (entry.center, entry.note) == (0.0, "not centred: its inputs are all alike")
        assert entry.variance == pytest.approx(1 / float(x.square().sum(1).mean()), rel=1e-5)


class Twice(nn.Module):
    """Known to the initialisation by a probe alone."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 3))

    def forward(self, x):
        return 2 * x @ self.weight.T


def test_probed_layers_are_not_centred():
    pv.register_layer(Twice)
    (entry,) = pv.variance_init(Twice(), (torch.rand(9, 3),), center=1.0, generator=seeded()).layers
    assert (entry.center, entry.share, entry.note) == (0.0, None, "probed")


# As much as the depth allows


def deep(depth, width=128):
    layers = [nn.Linear(4 if i == 0 else width, width) for i in range(depth)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]


def shares(model, x):
    found = []
    for part in model:
        x = part(x)
        if isinstance(part, nn.Linear):
            found.append(moment(x - x.mean(0)) / moment(x))
    return found


def test_the_share_that_depth_allows():
    """(1 + kappa sqrt(S))^L = B, all of it in shallow networks."""
    kappa = 2 * math.sqrt(2) / (3 * math.pi)
    for layers in (6, 10, 50, 100):
        share = Centering("auto", layers).share
        assert (1 + kappa * math.sqrt(share)) ** layers == pytest.approx(GROWTH)
    assert Centering("auto", 1).share == Centering("auto", 5).share == 1


def test_kappa_is_that_of_a_relu():
    """Of two unit Gaussians of correlation 1 - S, after a ReLU and scaled, 1 - S + kappa S^(3/2) is left."""
    kappa, share = 2 * math.sqrt(2) / (3 * math.pi), 0.02
    a, b = torch.randn(2, 4_000_000, generator=seeded(), dtype=torch.float64)
    b = (1 - share) * a + math.sqrt(1 - (1 - share) ** 2) * b
    left = 1 - 2 * float((a.relu() * b.relu()).mean())
    noise = 2 * float(a.relu().square().mean()) - 1  # the same draws, whose second moment is not quite 1
    assert left + noise == pytest.approx(share - kappa * share**1.5, rel=0.02)


@pytest.mark.parametrize("depth", [4, 10, 30])
def test_no_layer_falls_below_the_share(depth):
    x = 1 + 0.02 * torch.randn(200, 4, generator=seeded())
    model = deep(depth)
    report = pv.variance_init(model, (x,), center="auto", generator=seeded(1))
    allowed = Centering("auto", depth).share
    found = shares(model, x)
    for entry, share in zip(report.layers, found, strict=True):
        assert entry.share >= allowed * 0.999
        assert share > 0.5 * allowed  # of one draw
        assert entry.center == 0 or entry.share == pytest.approx(allowed, rel=1e-3)
    assert report.layers[0].center > 0, "the inputs are nearly all the same"
    assert report.passes == 1
    plain = deep(depth)
    pv.variance_init(plain, (x,), generator=seeded(1))
    assert shares(plain, x)[-1] < 0.2 * allowed


def test_what_is_large_enough_by_itself_stays():
    x = torch.randn(200, 4, generator=seeded())
    pair = [deep(2), deep(2)]
    entries = [
        pv.variance_init(model, (x,), layers="0", center=center, generator=seeded(1)).layers[0]
        for model, center in zip(pair, (0.0, "auto"), strict=True)
    ]
    assert entries[1].center == 1  # the only layer
    deeper = deep(40)
    report = pv.variance_init(deeper, (x,), center="auto", generator=seeded(1))
    assert {entry.center for entry in report.layers} == {0.0}


def test_said_in_the_report():
    layer, args = case("Linear", 4)
    report = pv.variance_init(layer, args, center=0.25, generator=seeded())
    assert "centred 0.25" in str(report)
    assert report.to_dict()["layers"][0]["center"] == 0.25


@pytest.mark.parametrize("center", [-0.1, 1.5, math.nan, "full", None])
def test_bad_strengths(center):
    with pytest.raises(ValueError, match="center must be a strength from 0 to 1, or 'auto'"):
        pv.variance_init(nn.Linear(2, 2), (torch.rand(3, 2),), center=center)


def test_true_is_auto():
    nets = [mlp(8), mlp(8), mlp(8)]
    for net, center in zip(nets, (True, "auto", 0.0), strict=True):
        pv.variance_init(net, noise(64, 4) + 5, center=center, generator=seeded())
    assert same(nets[0], nets[1])
    assert not same(nets[1], nets[2])
