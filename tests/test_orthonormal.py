"""Orthonormal bases: what they are, that layers represent the same, and where they are in use."""

import math

import pytest
import torch
from convolution_cases import ESTIMATORS, features_of, seeded, two_clouds

import pointvar as pv
from pointvar import basis, estimator

# With bases that are not far from singular, so that the floor changes little.
GOOD = {
    "Gaussian": lambda dim: basis.Gaussian(5, dim, generator=seeded()),
    "hats": lambda dim: basis.LinearCorrelation(5, dim, generator=seeded()),
    "bins": lambda dim: basis.SphericalBins(1, 4, 2, dim),
    "dot": lambda dim: basis.Dot(dim),
}
WIDE = {"points": pv.kernel_points.ball(16, 3, seeded()), "width": 1.0}


def gram(b, dim, radius=1.0, count=20_000):
    """E[b b^T] over the receptive field, by offsets of its own: 15 of 16 on discs, 1 at the centre."""
    total = torch.zeros(b.size, b.size, dtype=torch.float64)
    generator = seeded(99)
    for share, centre in ((15 / 16, False), (1 / 16, True)):
        angle = torch.randn(count, dim, generator=generator, dtype=torch.float64)
        angle /= angle.norm(dim=1, keepdim=True)
        # Of a disc, the part within r has r^2 of the area; of a line, r of the length.
        length = torch.rand(count, 1, generator=generator, dtype=torch.float64).pow(0.5 if dim > 1 else 1)
        values = b.double()(angle * length * (not centre), torch.full((count, 1), radius).double())
        total += share * values.T @ values / count
    return total.detach()


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", GOOD)
def test_orthonormal_over_a_receptive_field(kind, dim):
    b = pv.Orthonormal(GOOD[kind](dim), floor=1e-9)
    assert (b.size, b.dim) == (b.inner.size, dim)
    # Means over 8,192 and 20,000 offsets of products that are of the order of 1 to 10.
    torch.testing.assert_close(gram(b, dim), torch.eye(b.size, dtype=torch.float64), rtol=0, atol=0.15)


def test_each_function_stays_near_its_own():
    """Of all orthonormal mixtures the symmetric root is nearest: functions that are apart are scaled."""
    b = pv.Orthonormal(basis.SphericalBins(1, 5, 3))
    assert torch.equal(b.mixing, b.mixing.T)
    off = b.mixing - torch.diag(b.mixing.diagonal())
    assert float(off.abs().max()) < 1e-5 * float(b.mixing.abs().max())


def test_wide_hats_come_to_be_told_apart():
    def rank(b):
        values = torch.linalg.eigvalsh(gram(b, 3))
        return float(values.sum() ** 2 / values.square().sum())

    wide = basis.LinearCorrelation(**WIDE)
    assert rank(wide) < 3
    assert rank(pv.Orthonormal(wide)) > 12


class Own(basis.Basis):
    """Constants, by a class of one's own: no dimension, no native form, and nothing known of a radius."""

    def __init__(self, *values):
        super().__init__()
        self.size, self.values = len(values), torch.tensor(values)

    def reset_parameters(self, generator=None):
        self.values = self.values.flip(0)

    def forward(self, offsets, radius):
        return self.values.to(offsets).expand(len(offsets), -1)


def test_functions_that_are_0_are_not_brought_up():
    b = pv.Orthonormal(Own(1.0, 0.0), floor=1e-2)
    expected = torch.diag(torch.tensor([1.01**-0.5, 0.01**-0.5]))
    torch.testing.assert_close(b.mixing, expected, rtol=1e-5, atol=1e-6)
    assert b.native(torch.zeros(1, 3), torch.ones(1, 1)) is None
    b.reset_parameters()
    torch.testing.assert_close(b.mixing, expected.flip(0, 1), rtol=1e-5, atol=1e-6)
    nothing = pv.Orthonormal(Own(0.0, 0.0))
    assert torch.equal(nothing(torch.rand(4, 2), torch.ones(4, 1)), torch.zeros(4, 2))


@pytest.mark.parametrize("q", ["Sum", "MonteCarlo"])
@pytest.mark.parametrize("kind", GOOD)
def test_represents_what_the_inner_basis_does(kind, q):
    hood = two_clouds()
    mixed = pv.PointConvolution(3, 2, pv.Orthonormal(GOOD[kind](3)), ESTIMATORS[q](), generator=seeded())
    plain = pv.PointConvolution(3, 2, GOOD[kind](3), ESTIMATORS[q]())
    mixed, plain, features = mixed.double(), plain.double(), features_of(hood)
    with torch.no_grad():
        plain.weight.copy_(torch.einsum("ij,jco->ico", mixed.basis.mixing, mixed.weight))
    torch.testing.assert_close(mixed(features, hood), plain(features, hood))


@pytest.mark.parametrize("unit", [False, True])
def test_direct_weights_give_unit_variance(unit):
    hood = two_clouds()
    conv = pv.PointConvolution(
        3, 4000, pv.Orthonormal(basis.LinearCorrelation(**WIDE)), estimator.Average(), unit_response=unit
    ).double()
    features = features_of(hood)
    pv.variance_init(conv, (features, hood), generator=seeded())
    # Over 4,000 channels the deviation of the mean of squares is at most sqrt(2 / 4000) = 2 %.
    assert float((conv(features, hood).square().mean()).detach()) == pytest.approx(1, rel=0.1)


def test_orthonormalise_a_layer_and_a_network():
    conv = pv.KPConvN(4, 4, generator=seeded()).double()
    weight = conv.weight.detach().clone()
    assert pv.orthonormalise(conv) is conv
    first = conv.basis
    assert isinstance(first, pv.Orthonormal)
    assert first.mixing.dtype == torch.float64
    assert conv.method == "orthonormal KPConvN"
    assert torch.equal(conv.weight, weight)
    assert pv.orthonormalise(conv).basis is first, "once is enough"
    net = pv.orthonormalise(pv.models.Classifier(1, 2, "MCConv", (4, 4), 4, (0.2, 0.4), generator=seeded()))
    twin = pv.models.Classifier(1, 2, "MCConv", (4, 4), 4, (0.2, 0.4), generator=seeded(), orthonormal=True)
    assert repr(net) == repr(twin)
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in net.state_dict().items())


def test_orthonormalise_a_layer_of_ones_own():
    """Any module with a basis will do, be it with parameters or without."""
    layer = torch.nn.Module()
    layer.basis = basis.Dot(2)
    assert isinstance(pv.orthonormalise(torch.nn.Sequential(layer))[0].basis, pv.Orthonormal)


NETWORKS = {
    "Classifier": ((2, 3), {"channels": (4, 4), "radii": (0.3, 0.6), "head": 4}),
    "SegmentationUNet": ((2, 3), {"channels": (4, 4), "radii": (0.3, 0.6)}),
    "PlainNet": ((2,), {"channels": 4, "in_channels": 2, "radius": 0.5}),
    "PointConvNet": ((2, 3), {}),
    "PointConvClassifier": ((2, 3), {"counts": (8, 4)}),
}


@pytest.mark.parametrize("method", ["KPConvN", "PointConv", ("Gaussian", "Average")])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_the_option(name, method):
    sizes, options = NETWORKS[name]
    net = getattr(pv.models, name)(*sizes, method=method, orthonormal=True, **options)
    convs = [m for m in net.modules() if isinstance(m, pv.PointConvolution)]
    assert convs
    assert all(isinstance(conv.basis, pv.Orthonormal) for conv in convs)


def test_tables_of_published_bases_are_refused():
    net = pv.models.PlainNet(2, 8, method="KPConvN", orthonormal=True)
    with pytest.raises(ValueError, match=r"orthonormal KPConvN.*published methods; use variance_init"):
        pv.transfer_init(net, "modelnet40")


def test_drawn_anew_means_mixed_anew():
    b = pv.Orthonormal(basis.MLP(6, generator=seeded()), floor=1e-9)
    before = b.mixing.clone()
    b.reset_parameters(seeded(1))
    assert not torch.equal(b.mixing, before)
    torch.testing.assert_close(gram(b, 3), torch.eye(6, dtype=torch.float64), rtol=0, atol=0.15)


def test_direct_initialisation_fits_a_basis_that_sees_lengths():
    """PointConv's map sees y - x: it is drawn, and mixed, for the radius of the data, here 0.55."""
    hood = two_clouds()
    conv = pv.orthonormalise(pv.PointConv(3, 4, num_basis=5, generator=seeded())).double()
    (entry,) = pv.variance_init(conv, (features_of(hood), hood), exact=False, generator=seeded(1)).layers
    assert float(conv.second_moment(features_of(hood), hood)) == pytest.approx(1 / entry.variance)
    spread = float(conv.basis.inner.linear.weight.square().mean().detach()) ** 0.5
    assert spread == pytest.approx(1 / (math.sqrt(3) * 0.55), rel=0.6)  # of 15 numbers
    values = torch.linalg.eigvalsh(gram(conv.basis, 3, radius=0.55))
    assert float(values[-1]) == pytest.approx(1, abs=0.15)
    assert float(values[0]) > 0.5


def test_statistics_of_a_norm_stay():
    inner = basis.MLP(6, batch_norm=True, generator=seeded())
    pv.Orthonormal(inner)
    assert torch.equal(inner.norm.running_mean, torch.zeros(6))
    assert int(inner.norm.num_batches_tracked) == 0


def test_bad_input():
    with pytest.raises(TypeError, match="got Linear"):
        pv.Orthonormal(torch.nn.Linear(3, 3))
    with pytest.raises(ValueError, match="already"):
        pv.Orthonormal(pv.Orthonormal(basis.Dot(3)))
    with pytest.raises(ValueError, match="floor must be in"):
        pv.Orthonormal(basis.Dot(3), floor=0)
    with pytest.raises(ValueError, match=r"Own must give .* finite values"):
        pv.Orthonormal(Own(1.0, math.nan))
    with pytest.raises(TypeError, match="a layer or a network, got str"):
        pv.orthonormalise("KPConvN")
    with pytest.raises(ValueError, match="Linear has no PointConvolution"):
        pv.orthonormalise(torch.nn.Linear(3, 3))
