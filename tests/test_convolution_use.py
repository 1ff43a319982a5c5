"""PointConvolution in use: precision, compilation, copies, tiny clouds, errors, and a user's own parts."""

import copy
import pickle

import pytest
import torch
from convolution_cases import BASES, ESTIMATORS, features_of, layer, seeded, two_clouds

import pointvar as pv
from pointvar import PointConvolution, basis, estimator


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
def test_autocast_lowers_the_matrix_product_alone(unit):
    conv, hood = (
        layer("MLP", "MonteCarlo", dtype=torch.float32, unit_response=unit),
        two_clouds(dtype=torch.float32),
    )
    f = features_of(hood)
    with torch.autocast("cpu", torch.bfloat16):
        out, phi, z = conv(f, hood), conv.project(f, hood), conv.second_moment(f, hood)
    assert out.dtype == torch.bfloat16
    assert torch.equal(phi, conv.project(f, hood))
    assert torch.equal(z, conv.second_moment(f, hood))
    raw = copy.copy(conv)
    raw.unit_response = False
    product = raw.project(f, hood).bfloat16() @ conv.weight.flatten(0, 1).bfloat16()
    if not unit:
        torch.testing.assert_close(out, product + conv.bias.bfloat16(), rtol=2**-7, atol=2**-7)
    # bfloat16 has 8 bits: a product and a sum
    torch.testing.assert_close(out.float(), conv(f, hood), rtol=0.02, atol=0.02)
    out.sum().backward()
    assert conv.weight.grad.dtype == conv.basis.linear.weight.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):  # features that come out of a layer in low precision
        assert conv(f.bfloat16(), hood).dtype == torch.bfloat16


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("name", pv.methods.METHODS)
def test_compiles_as_one_graph(name, carried):
    """Whether the neighbourhood has densities already or the graph has to make them."""
    torch._dynamo.reset()
    hood = two_clouds(dtype=torch.float32)
    hood.density = estimator.density(hood, 0.4) if carried else None
    conv = pv.methods.resolve(name, 3, 2, unit_response=True)
    f = features_of(hood).requires_grad_()
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    out = compiled(f, hood)
    torch.testing.assert_close(out, conv(f, hood))
    (grad,) = torch.autograd.grad(out.square().sum(), f)
    (expected,) = torch.autograd.grad(conv(f, hood).square().sum(), f)
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("b", BASES)
def test_copies_and_state_dicts(b):
    conv, hood = layer(b, "LearnedDensity", unit_response=True, method="mine"), two_clouds()
    f = features_of(hood)
    for twin in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(twin(f, hood), conv(f, hood))
        assert repr(twin) == repr(conv)
        assert twin.method == "mine"
    other = (
        PointConvolution(3, 2, BASES[b](3), ESTIMATORS["LearnedDensity"](), unit_response=True)
        .double()
        .eval()
    )
    other.load_state_dict(conv.state_dict())
    assert torch.equal(other(f, hood), conv(f, hood))


def test_repr_and_reset():
    conv = PointConvolution(
        3, 2, basis.Dot(), estimator.MonteCarlo(), bias=False, unit_response=True, method="Mine"
    )
    assert conv.extra_repr() == "Mine, 3, 2, bias=False, unit_response=True"
    big = PointConvolution(50, 60, BASES["Gaussian"](3), estimator.Sum(), generator=seeded())
    # 18,000 draws: the standard deviation is known to half a per cent.
    assert float(big.weight.detach().std()) == pytest.approx((2 / (6 * 50)) ** 0.5, rel=0.03)
    assert not big.bias.any()
    before = big.weight.clone()
    big.reset_parameters(seeded())
    assert torch.equal(big.weight, before)


# Edges


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("q", list(ESTIMATORS)[:4])
@pytest.mark.parametrize("lengths", [[0], [1], [0, 1, 0], [2, 0]])
def test_empty_and_tiny_clouds(lengths, q, unit):
    conv = layer("MLP", q, unit_response=unit)
    cloud = pv.PointCloud(torch.rand(sum(lengths), 3, generator=seeded(), dtype=torch.float64), lengths)
    for hood in (pv.ball_query(cloud, cloud, 0.1), pv.knn(cloud, cloud, 1), pv.knn(cloud, cloud, 2)):
        f = features_of(hood).requires_grad_()
        out = conv(f, hood)
        assert out.shape == (sum(lengths), 2)
        out.sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(f.grad).all()
        assert torch.isfinite(conv.second_moment(f, hood))


def test_features_larger_than_a_cache_are_the_sum_of_their_halves():
    """Rows of many features are visited in another order."""
    cloud = pv.PointCloud(torch.rand(33_000, 3, generator=seeded()))
    hood = pv.ball_query(cloud, cloud[:300], 0.05)
    features = torch.randn(33_000, 128, generator=seeded(1)).requires_grad_()  # 17 MB
    whole, left, right = (
        PointConvolution(c, 2, basis.Gaussian(2, generator=seeded()), estimator.Sum(), bias=False)
        for c in (128, 64, 64)
    )
    left.weight.data, right.weight.data = whole.weight.data[:, :64], whole.weight.data[:, 64:]
    out = whole(features, hood)
    halves = left(features[:, :64], hood) + right(features[:, 64:], hood)
    torch.testing.assert_close(out, halves, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(out.square().sum(), features)
    (expected,) = torch.autograd.grad(halves.square().sum(), features)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def test_no_neighbors_give_the_bias_alone():
    conv, hood = layer("Gaussian", "MonteCarlo"), two_clouds()
    assert int(hood.counts[2]) == 0
    assert torch.equal(conv(features_of(hood), hood)[2], conv.bias)


@pytest.mark.parametrize("unit", [False, True])
def test_without_gradients_the_result_is_the_same(unit):
    conv, hood = layer("Gaussian", "MonteCarlo", unit_response=unit), two_clouds()
    expected = conv(features_of(hood), hood)
    with torch.no_grad():
        assert torch.equal(conv(features_of(hood), hood), expected)


def test_one_function_one_channel():
    hood = two_clouds(dtype=torch.float32)
    conv, one = PointConvolution(1, 1, basis.Gaussian(1), estimator.Average()), features_of(hood, 1)
    assert conv(one, hood).shape == conv.project(one, hood).shape == (7, 1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f, h: (f[:, :2], h), ValueError, r"shape \[N, 3\], got \[19, 2\]"),
        (lambda f, h: (f[:5], h), ValueError, "features of 5 points, but .* 19 support points"),
        (lambda f, h: (f.float(), h), TypeError, "features .*float32.* dtype of the points"),
        (lambda f, h: (f.tolist(), h), TypeError, "features must be a tensor"),
        (lambda f, h: (f, h.edge_index), TypeError, "a Neighborhood, got Tensor"),
        (lambda f, h: (f, two_clouds(dim=2)), ValueError, "made for 3D, the points are 2D"),
        (
            lambda f, h: (f.float(), two_clouds(dtype=torch.float32)),
            TypeError,
            "weights .* need the same dtype",
        ),
        (lambda f, h: (f.to("meta"), h), ValueError, "must be on one device"),
    ],
)
def test_errors(change, error, message):
    hood = two_clouds()
    with pytest.raises(error, match=message):
        layer("Gaussian", "Sum")(*change(features_of(hood), hood))


def test_features_of_another_dtype():
    """Only autocast may give features of low precision."""
    conv, hood = layer("Gaussian", "Sum", dtype=torch.float32), two_clouds(dtype=torch.float32)
    features = features_of(hood)
    for other in (features.bfloat16(), features.half(), features.double()):
        with pytest.raises(TypeError, match="need the dtype of the points"):
            conv(other, hood)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert conv(features.bfloat16(), hood).shape == (7, 2)
        with pytest.raises(TypeError, match="need the dtype of the points"):
            conv(features.double(), hood)


def test_errors_of_the_constructor():
    with pytest.raises(TypeError, match=r"basis must be a pointvar\.Basis, got Sum"):
        PointConvolution(3, 2, estimator.Sum(), estimator.Sum())
    with pytest.raises(TypeError, match=r"estimator must be a pointvar\.Estimator, got Dot"):
        PointConvolution(3, 2, basis.Dot(), basis.Dot())
    with pytest.raises(ValueError, match="at least one channel"):
        PointConvolution(0, 2, basis.Dot(), estimator.Sum())


def test_what_is_wrong_with_an_own_basis_or_estimator_is_told():
    class Sizeless(pv.Basis):
        def forward(self, offsets, radius):
            return offsets

    class Weights(pv.Estimator):
        def forward(self, hood):
            return weights

    with pytest.raises(TypeError, match="Sizeless must set size"):
        PointConvolution(3, 2, Sizeless(), estimator.Sum())
    hood = two_clouds()
    for b in (basis.Gaussian(4), basis.MLPCorrelation(4)):  # in native kernels and in plain torch
        conv = PointConvolution(3, 2, b, Weights()).double()
        weights = [1.0] * hood.num_edges
        with pytest.raises(TypeError, match=r"Weights must give a tensor of \[E\] weights, .* got list"):
            conv(features_of(hood), hood)
        weights = torch.ones(hood.num_edges, dtype=torch.float32)
        with pytest.raises(TypeError, match=r"Weights must give weights in .*float64, got torch\.float32"):
            conv(features_of(hood), hood)


def test_own_basis_and_estimator():
    """What a user writes in plain torch goes through the same layer; wrong shapes are told."""

    class Shell(pv.Basis):
        size = 2

        def forward(self, offsets, radius):
            distance = offsets.norm(dim=1, keepdim=True)
            return torch.cat([distance, 1 - distance], dim=1)

    class Nearness(pv.Estimator):
        def forward(self, hood):
            return 1 - hood.relative_positions().norm(dim=1)

    hood = two_clouds()
    f = features_of(hood)
    conv = PointConvolution(3, 2, Shell(), Nearness()).double()
    d = hood.relative_positions().norm(dim=1)
    phi = torch.zeros(7, 2, 3, dtype=torch.float64)
    for e, (y, x) in enumerate(hood.edge_index.T.tolist()):
        phi[x] += (1 - d[e]) * torch.stack([d[e], 1 - d[e]])[:, None] * f[y]
    torch.testing.assert_close(conv.project(f, hood), phi.flatten(1))
    for size in (1, 3):
        conv.basis.size = size
        with pytest.raises(ValueError, match=r"Shell must give \[E, K\]"):
            conv(f, hood)
    conv.basis.size = 2
    for wrong in (hood.radius, d[:, None], torch.cat([d, d])):
        conv.estimator.forward = lambda hood, wrong=wrong: wrong
        with pytest.raises(ValueError, match=r"Nearness must give \[E\]"):
            conv(f, hood)
