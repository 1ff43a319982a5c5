"""Direct initialisation: the mathematics, written out, and the contract of the variance."""

import pytest
import torch
from convolution_cases import BASES, ESTIMATORS, features_of, layer, seeded, two_clouds
from torch import nn

import pointvar as pv

METHODS = list(pv.methods.METHODS)


class Chain(nn.Module):
    """Convolutions one after the other on one neighbourhood."""

    def __init__(self, method, depth=4, channels=8, in_channels=3, **options):
        super().__init__()
        self.convs = nn.ModuleList(
            pv.methods.resolve(
                method, in_channels if i == 0 else channels, channels, generator=seeded(i), **options
            )
            for i in range(depth)
        )

    def forward(self, features, hood):
        for conv in self.convs:
            features = nn.functional.leaky_relu(conv(features, hood), 0.2)
        return features


def cloud_batch(seed=0, points=400, dtype=torch.float32):
    generator = seeded(seed)
    cloud = pv.PointCloud(torch.rand(points, 3, generator=generator, dtype=dtype), [points // 2] * 2)
    hood = pv.ball_query(cloud, cloud, 0.35, max_neighbors=16, generator=generator)
    return torch.randn(points, 3, generator=generator, dtype=dtype), hood


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("b", BASES)
def test_z_is_the_papers_double_sum_over_pairs_of_neighbours(b, q, unit):
    conv, hood = layer(b, q, unit_response=unit), two_clouds()
    features = features_of(hood)
    report = pv.variance_init(conv, (features, hood), mode="eval")
    with torch.no_grad():
        values = conv.basis(hood.relative_positions(), hood.edge_radius())
        weights = conv.estimator(hood)
    total = 0.0
    for x in range(hood.queries.num_points):
        edges = range(int(hood.row_offsets[x]), int(hood.row_offsets[x + 1]))
        pairs = response = 0.0
        for e1 in edges:
            for e2 in edges:
                kernel = weights[e1] * weights[e2] * (values[e1] * values[e2]).sum()
                f1, f2 = features[hood.indices[e1]], features[hood.indices[e2]]
                pairs += float(kernel * (f1 * f2).sum())
                response += float(kernel)
        if unit:
            pairs = pairs / response if response > 0 else 0.0
        total += pairs
    z = report.layers[0].second_moment
    assert z == pytest.approx(total / hood.queries.num_points, rel=1e-9)
    assert report.layers[0].variance == pytest.approx(1 / z)


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("b", BASES)
def test_the_output_has_the_target_variance_in_expectation(b, q, unit):
    conv = pv.PointConvolution(3, 256, BASES[b](3), ESTIMATORS[q](), unit_response=unit).double().eval()
    hood = two_clouds()
    features = features_of(hood)
    moments = []
    for seed in range(8):
        pv.variance_init(conv, (features, hood), target=2.5, mode="eval", generator=seeded(seed))
        with torch.no_grad():
            moments.append(conv(features, hood).square().mean())
    # 8 x 256 independent output channels, each a sum of squares with a relative deviation of at most sqrt(2):
    # the mean deviates by 3 %; 12 % is four standard deviations.
    assert float(torch.stack(moments).mean()) == pytest.approx(2.5, rel=0.12)


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("method", METHODS)
def test_exact_keeps_the_variance_through_a_network(method, unit):
    net, batch = Chain(method, depth=6, unit_response=unit), cloud_batch()
    report = pv.variance_init(net, batch, exact=True, generator=seeded())
    pv.testing.assert_variance(net, batch, 0.999, 1.001)
    assert [entry.name for entry in report.layers] == [f"convs.{i}" for i in range(6)]
    assert (report.passes, report.batches, report.clouds, report.points) == (1, 1, 2, 400)


def test_scaling_the_input_scales_only_the_first_layer():
    features, hood = cloud_batch()
    small, large = Chain("MCConv"), Chain("MCConv")
    pv.variance_init(small, (features, hood), generator=seeded())
    pv.variance_init(large, (features * 1000, hood), generator=seeded())
    torch.testing.assert_close(large.convs[0].weight * 1000, small.convs[0].weight)
    for a, b in zip(small.convs[1:], large.convs[1:], strict=True):
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_several_batches_count_the_same_each(exact):
    """Against a loop over the layers, from the definition."""
    batches = [cloud_batch(seed, points) for seed, points in enumerate((100, 200, 400))]
    net = Chain("KPConvN", depth=3)
    report = pv.variance_init(net, batches, exact=exact, generator=seeded())
    inputs = [features for features, _ in batches]
    for conv, entry in zip(net.convs, report.layers, strict=True):
        moments = [conv.second_moment(f, h) for f, (_, h) in zip(inputs, batches, strict=True)]
        z = float(torch.stack(moments).mean())
        assert entry.second_moment == pytest.approx(z, rel=1e-6)
        outputs = [conv(f, h).detach() for f, (_, h) in zip(inputs, batches, strict=True)]
        measured = float(torch.stack([y.square().mean() for y in outputs]).mean())
        if exact:
            assert measured == pytest.approx(1, rel=1e-4)
        inputs = [nn.functional.leaky_relu(y, 0.2) for y in outputs]
    assert report.passes == 3 * (3 + (2 if exact else 0)) + 3
    assert (report.batches, report.clouds, report.points) == (3, 6, 700)


def test_one_packed_batch_gives_the_same_as_a_list_of_it():
    batch = cloud_batch()
    one, other = Chain("SPHConv"), Chain("SPHConv")
    pv.variance_init(one, batch, generator=seeded())
    pv.variance_init(other, [batch, batch], generator=seeded())
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)
