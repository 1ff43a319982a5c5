"""Direct initialisation: the mathematics, written out, and the contract of the variance."""

import pytest
import torch
from convolution_cases import BASES, ESTIMATORS, features_of, layer, seeded, two_clouds
from initialisation_cases import cloud_batch, noise
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import pointvar as pv


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("q", ESTIMATORS)
@pytest.mark.parametrize("b", BASES)
def test_z_is_the_papers_double_sum_over_pairs_of_neighbours(b, q, unit):
    conv, hood = layer(b, q, unit_response=unit), two_clouds()
    features = features_of(hood)
    report = pv.variance_init(
        conv, (features, hood), target=2.5, exact=False, mode="eval", generator=seeded()
    )
    with torch.no_grad():
        values = conv.basis(hood.relative_positions(), hood.edge_radius()) * conv.estimator(hood)[:, None]
    total = 0.0
    for start, stop in zip(hood.row_offsets[:-1], hood.row_offsets[1:], strict=True):
        kernel = values[start:stop] @ values[start:stop].T  # q q' sum_i b_i b_i', of each pair
        near = features[hood.indices[start:stop]]
        pairs, response = float((kernel * (near @ near.T)).sum()), float(kernel.sum())
        total += pairs if not unit else pairs / response if response > 0 else 0.0
    entry = report.layers[0]
    assert entry.second_moment == pytest.approx(total / hood.queries.num_points, rel=1e-9)
    assert entry.variance == pytest.approx(2.5 / entry.second_moment)
    drawn = torch.randn(conv.weight.shape, generator=seeded(), dtype=torch.float64)
    if not conv.basis.sees_length:  # else the basis is drawn before
        torch.testing.assert_close(conv.weight.detach(), drawn * entry.variance**0.5)


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
def test_the_output_has_the_target_variance_in_expectation(unit):
    conv = pv.PointConvolution(
        3, 256, BASES["MLP"](3), ESTIMATORS["MonteCarlo"](), unit_response=unit
    ).double()
    hood = two_clouds()
    features = features_of(hood)
    moments = []
    for seed in range(8):
        pv.variance_init(conv, (features, hood), target=2.5, generator=seeded(seed))
        moments.append(conv(features, hood).detach().square().mean())
    # 8 x 256 independent output channels, each a sum of squares with a relative deviation of at most sqrt(2):
    # the mean deviates by 3 %; 12 % is four standard deviations.
    assert float(torch.stack(moments).mean()) == pytest.approx(2.5, rel=0.12)


def chain(method, depth=4, **options):
    return pv.models.PlainNet(depth, 8, 3, method=method, generator=seeded(), **options)


def batch_of(points, seed=0):
    features, hood = cloud_batch(points=points, cap=16, seed=seed)
    return features[:, :3], hood


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("method", pv.methods.METHODS)
def test_exact_keeps_the_variance_through_a_network(method, unit):
    net, batch = chain(method, unit_response=unit), batch_of(400)
    report = pv.variance_init(net, batch, exact=True, generator=seeded())
    pv.testing.assert_variance(net, batch, 0.999, 1.001)
    assert [entry.name for entry in report.layers] == [f"blocks.{i}.convolution" for i in range(4)]
    assert (report.passes, report.batches, report.clouds, report.points) == (1, 1, 2, 400)


def test_scaling_the_input_scales_only_the_first_layer():
    features, hood = batch_of(400)
    small, large = chain("MCConv"), chain("MCConv")
    pv.variance_init(small, (features, hood), generator=seeded())
    pv.variance_init(large, (features * 1000, hood), generator=seeded())
    for i, (a, b) in enumerate(zip(small.blocks, large.blocks, strict=True)):
        scaled = b.convolution.weight * (1 if i else 1000)
        torch.testing.assert_close(scaled, a.convolution.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_several_batches_count_the_same_each(exact):
    """Against a loop over the layers, from the definition."""
    batches = [batch_of(points, seed) for seed, points in enumerate((100, 200, 400))]
    net = chain("KPConvN", depth=3)
    report = pv.variance_init(net, batches, exact=exact, generator=seeded())
    inputs = [features for features, _ in batches]
    for block, entry in zip(net.blocks, report.layers, strict=True):
        conv = block.convolution
        moments = [conv.second_moment(f, h) for f, (_, h) in zip(inputs, batches, strict=True)]
        assert entry.second_moment == pytest.approx(float(torch.stack(moments).mean()), rel=1e-6)
        outputs = [conv(f, h).detach() for f, (_, h) in zip(inputs, batches, strict=True)]
        measured = float(torch.stack([y.square().mean() for y in outputs]).mean())
        if exact:
            assert measured == pytest.approx(1, rel=1e-4)
        inputs = [nn.functional.leaky_relu(y, 0.2) for y in outputs]
    assert report.passes == 3
    assert (report.batches, report.clouds, report.points) == (3, 6, 700)


def test_one_packed_batch_gives_the_same_as_a_list_of_it():
    batch = batch_of(400)
    one, other = chain("SPHConv"), chain("SPHConv")
    pv.variance_init(one, batch, generator=seeded())
    pv.variance_init(other, [batch, batch], generator=seeded())
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"center": "auto"}, {"exact": True, "center": 1.0}])
def test_it_costs_little_more_than_a_pass(options):
    """In operations: what is measured beside the pass is of one output channel, or is the output of it."""
    net, x = nn.Sequential(nn.Conv1d(32, 64, 1), nn.ReLU(), nn.Conv1d(64, 64, 3)), noise(4, 32, 20).abs()
    with FlopCounterMode(display=False) as one:
        net(x)
    with FlopCounterMode(display=False) as all_of_it:
        pv.variance_init(net, x, generator=seeded(), **options)
    assert all_of_it.get_total_flops() <= 1.1 * one.get_total_flops()
    if "exact" in options:
        pv.testing.assert_variance(net, x, 0.999, 1.001)


def test_exact_reports_the_variance_of_the_weights_it_leaves():
    """Before the last scaling a weight is sqrt(variance) times a number from the generator."""
    layer, x = nn.Linear(4, 8), noise(50, 4)
    report = pv.variance_init(layer, x, target=3.0, exact=True, generator=seeded())
    drawn = torch.randn(8, 4, generator=seeded())
    variance = 3 / float((x @ drawn.T).square().mean())
    assert report.layers[0].variance == pytest.approx(variance, rel=1e-5)
    torch.testing.assert_close(layer.weight.detach(), drawn * variance**0.5)


@pytest.mark.parametrize("channels", [1, 3, 31])
def test_narrow_layers_are_exact_by_default(channels):
    """All rows are nearly the same, so that there are only as many numbers to average over as channels."""
    x, outside = 1 + 0.01 * noise(50, 8), 0
    for seed in range(20):
        layer = nn.Linear(8, channels)
        pv.variance_init(layer, x, generator=seeded(seed))
        pv.testing.assert_variance(layer, x, 0.9999, 1.0001)
        pv.variance_init(layer, x, exact=False, generator=seeded(seed))
        outside += not 0.9999 < float(layer(x).detach().square().mean()) < 1.0001
    assert outside == 20
    wide = nn.Linear(8, 32)
    entry = pv.variance_init(wide, x).layers[0]
    assert entry.variance == pytest.approx(1 / entry.second_moment)
