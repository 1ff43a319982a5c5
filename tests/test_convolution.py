"""PointConvolution: the paper's sums for every pair of basis and estimator, and what never changes them."""

import convolution_oracle as oracle
import pytest
import torch
from convolution_cases import BASES, ESTIMATORS, features_of, layer, seeded, two_clouds
from torch.nn import functional

import pointvar as pv
from pointvar import PointConvolution, basis, estimator

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}  # a few hundred roundings
SMOOTH = ["Gaussian", "LinearCorrelation", "MLP", "unscaled MLP", "MLPCorrelation", "Dot", "orthonormal MLP"]


def assert_oracle(conv, hood):
    features, tolerance = features_of(hood), TOLERANCE[hood.support.dtype]
    out, phi = oracle.convolve(conv, features, hood)
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(conv(features, hood), out, **close)
    torch.testing.assert_close(conv.project(features, hood), phi, **close)
    moment = conv.second_moment(features, hood)
    assert moment.dtype == torch.float64
    torch.testing.assert_close(moment, phi.square().sum(1).mean(), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("b", BASES)
def test_equals_the_papers_sums(b, q, unit, dtype):
    assert_oracle(layer(b, q, dtype=dtype, unit_response=unit), two_clouds(dtype=dtype, cap=5))


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("b", BASES)
def test_equals_the_papers_sums_in_other_dimensions(b, dim):
    assert_oracle(layer(b, "MonteCarlo", dim), two_clouds(dim))


@pytest.mark.parametrize("q", ESTIMATORS)
def test_equals_the_papers_sums_on_nearest_neighbors(q):
    hood = two_clouds()
    assert_oracle(layer("MLP", q), pv.knn(hood.support, hood.queries, 4))


# Gradients


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("q", list(ESTIMATORS)[:4])
@pytest.mark.parametrize("b", SMOOTH)
def test_gradients(b, q, unit):
    """Of features, positions of support and queries, and every parameter; edges stay as they are."""
    conv, hood = layer(b, q, unit_response=unit), two_clouds()
    edges = hood.edge_index
    parameters = dict(conv.named_parameters())
    points, queries = (c.points.clone().requires_grad_() for c in (hood.support, hood.queries))

    def run(features, points, queries, *values):
        clouds = pv.PointCloud(points, [11, 8]), pv.PointCloud(queries, [3, 4])
        again = pv.Neighborhood.from_edge_index(edges, *clouds, radius=0.55)
        state = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(conv, state, (features, again))

    inputs = (features_of(hood).requires_grad_(), points, queries, *parameters.values())
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("b", ["Gaussian", "unscaled MLP"])
def test_gradients_through_the_radius(b):
    """The farthest of the nearest neighbours sets the radius, which follows the points."""
    conv, hood = layer(b, "Average", unit_response=True), two_clouds()
    features = features_of(hood)

    def run(points, queries):
        return conv(features, pv.knn(pv.PointCloud(points, [11, 8]), pv.PointCloud(queries, [3, 4]), 4))

    inputs = tuple(c.points.clone().requires_grad_() for c in (hood.support, hood.queries))
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("b", ["NearestPoint", "SphericalBins"])
def test_boxes_pass_gradients_to_features_and_densities_only(b):
    conv, hood = layer(b, "MonteCarlo"), two_clouds()
    features = features_of(hood).requires_grad_()
    cloud = pv.PointCloud(hood.support.points.clone().requires_grad_(), [11, 8])
    conv(features, pv.ball_query(cloud, hood.queries, 0.55)).sum().backward()
    assert features.grad.abs().sum() > 0
    assert cloud.points.grad.abs().sum() > 0
    assert torch.autograd.gradcheck(lambda f: conv(f, hood), (features,), fast_mode=True)


def test_project_is_differentiable():
    conv, hood = layer("MLP", "Sum", unit_response=True), two_clouds()
    features = features_of(hood).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda f, a: torch.func.functional_call(Projection(conv), {"conv.basis.linear.weight": a}, (f, hood)),
        (features, conv.basis.linear.weight),
    )


class Projection(torch.nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, features, hood):
        return self.conv.project(features, hood)


# What must not change the result


@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("b", BASES)
def test_translation(b, q):
    conv, hood = layer(b, q), two_clouds()
    shift = torch.tensor([4.0, -2.0, 1.0], dtype=torch.float64)  # the offsets round differently after it
    moved = pv.ball_query(
        pv.PointCloud(hood.support.points + shift, [11, 8]),
        pv.PointCloud(hood.queries.points + shift, [3, 4]),
        0.55,
    )
    f = features_of(hood)
    torch.testing.assert_close(conv(f, moved), conv(f, hood), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("q", ESTIMATORS)
def test_permutation_of_points(q):
    conv, hood = layer("Gaussian", q), two_clouds()
    order = torch.cat([torch.randperm(11, generator=seeded()), 11 + torch.randperm(8, generator=seeded())])
    support = pv.PointCloud(hood.support.points[order], [11, 8])
    turned = pv.PointCloud(hood.queries.points.flip(0), [4, 3])
    f = features_of(hood)
    permuted = conv(f[order], pv.ball_query(support, hood.queries, 0.55))
    torch.testing.assert_close(permuted, conv(f, hood))
    # The second cloud's queries now come first; so must its support.
    swapped = pv.PointCloud(torch.cat([hood.support.points[11:], hood.support.points[:11]]), [8, 11])
    flipped = conv(torch.cat([f[11:], f[:11]]), pv.ball_query(swapped, turned, 0.55))
    torch.testing.assert_close(flipped.flip(0), conv(f, hood))


@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("search", ["ball", "knn"])
def test_a_packed_batch_is_each_cloud_alone(q, search):
    def look(support, queries):
        return pv.ball_query(support, queries, 0.55) if search == "ball" else pv.knn(support, queries, 4)

    conv, hood = layer("MLP", q, unit_response=True), two_clouds()
    f = features_of(hood)
    packed = conv(f, look(hood.support, hood.queries))
    parts = zip(hood.support.split(), hood.queries.split(), f.split([11, 8]), strict=True)
    alone = [conv(part, look(support, queries)) for support, queries, part in parts]
    torch.testing.assert_close(packed, torch.cat(alone))


# Unit response


@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("b", BASES)
def test_unit_response_keeps_the_norm_of_a_constant(b, q):
    conv, hood = layer(b, q, unit_response=True), two_clouds()
    constant = torch.tensor([[3.0, 0.0, -4.0]], dtype=torch.float64).expand(19, 3)
    norms = conv.project(constant, hood).norm(dim=1)
    # An MLP with ReLUs can see nothing at all of a neighbourhood.
    response = (
        PointConvolution(1, 1, conv.basis, conv.estimator).double().project(constant.new_ones(19, 1), hood)
    )
    expected = torch.where(response.abs().sum(1) > 0, 5.0, 0.0).double()
    assert (expected > 0).any()
    torch.testing.assert_close(norms, expected)


def test_unit_response_makes_sum_and_average_one_layer():
    hood = two_clouds()
    f = features_of(hood)
    total, mean = (layer("Gaussian", q, unit_response=True) for q in ("Sum", "Average"))
    torch.testing.assert_close(total(f, hood), mean(f, hood))


def test_a_negative_response_counts_by_its_size():
    class Negative(pv.basis.Gaussian):
        def forward(self, offsets, radius):
            return -super().forward(offsets, radius)

        def native(self, offsets, radius):
            return None

    hood = two_clouds()
    one, other = (
        pv.PointConvolution(3, 2, kind(6, generator=seeded()), pv.estimator.Sum(), False, True).double()
        for kind in (pv.basis.Gaussian, Negative)
    )
    other.weight = one.weight
    torch.testing.assert_close(other(features_of(hood), hood), -one(features_of(hood), hood))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_unit_response_knows_no_scale(scale):
    """Squares of such values leave the range of float32; the response must not."""

    class Scaled(pv.Estimator):
        def forward(self, hood):
            return hood.support.points.new_full((hood.num_edges,), scale)

    hood = two_clouds(dtype=torch.float32)
    f = features_of(hood)
    b = BASES["Gaussian"](3)
    published = PointConvolution(3, 2, b, estimator.Sum(), unit_response=True, generator=seeded())
    scaled = PointConvolution(3, 2, b, Scaled(), unit_response=True, generator=seeded())
    torch.testing.assert_close(scaled(f, hood), published(f, hood))


def test_zero_response_is_zero_and_harmless():
    """Neither an empty neighbourhood nor a basis that sees nothing may bring a NaN into any gradient."""
    blind = basis.LinearCorrelation(points=torch.tensor([[0.9, 0.0, 0.0]]), width=0.01)
    conv = PointConvolution(3, 2, blind, estimator.Sum(), unit_response=True).double()
    hood = two_clouds()
    cloud = pv.PointCloud(hood.support.points.clone().requires_grad_(), [11, 8])
    out = conv(features_of(hood), pv.ball_query(cloud, hood.queries, 0.55))
    assert not out.any()
    out.sum().backward()
    for value in (cloud.points, *conv.parameters()):
        assert torch.isfinite(value.grad).all()


def test_a_response_that_cancels_is_zero():
    """Two neighbours whose values add up to 0: there is nothing to divide by, whatever the features."""

    class Sideways(pv.Basis):
        size = 1

        def forward(self, offsets, radius):
            return offsets[:, :1]

    cloud, middle = pv.PointCloud(torch.tensor([[-0.5], [0.5]])), pv.PointCloud(torch.zeros(1, 1))
    conv = PointConvolution(1, 1, Sideways(), estimator.Sum(), unit_response=True)
    features, hood = torch.tensor([[1.0], [2.0]]), pv.ball_query(cloud, middle, 1.0)
    assert conv(features, hood).item() == conv.project(features, hood).item() == 0
    assert conv.second_moment(features, hood).item() == 0


# The discrete convolution


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_images_are_a_special_case(dim):
    """Pixels on a grid, boxes around 3 taps per axis, summed: torch's own convolution."""
    shape = (6, 5, 4)[:dim]
    pixels = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in shape)).view(-1, dim)
    radius = 1.8  # beyond the corners at sqrt(3), before the next pixel at 2
    taps = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * dim).view(-1, dim)
    conv = PointConvolution(3, 2, basis.NearestPoint(points=taps / radius), estimator.Sum()).double()
    cloud = pv.PointCloud(pixels)
    features = torch.randn(len(pixels), 3, generator=seeded(), dtype=torch.float64)
    out = conv(features, pv.ball_query(cloud, cloud, radius))
    image = features.T.view(1, 3, *shape)
    kernel = conv.weight.permute(2, 1, 0).reshape(2, 3, *[3] * dim)
    expected = getattr(functional, f"conv{dim}d")(image, kernel, conv.bias, padding=1)
    torch.testing.assert_close(out, expected.view(2, -1).T)
