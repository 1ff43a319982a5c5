"""Normalisation of packed features, against loops over clouds, groups and channels."""

import pytest
import torch
from network_cases import clouds, features_of, seeded

import pointvar as pv
from pointvar.nn import NORMS, BatchNorm, Bias, CloudGroupNorm, LayerNorm, NoNorm, make_norm
from pointvar.nn.norm import for_rows

LENGTHS = (5, 0, 1, 7)


def randomised(norm):
    """Weights and biases that are not 1 and 0."""
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, 0.5, generator=seeded(3))
    return norm.double()


def moments(values):
    """Mean and variance of a list of numbers."""
    mean = sum(values) / len(values)
    return mean, sum((v - mean) ** 2 for v in values) / len(values)


def group_norm_by_loops(features, cloud, groups, weight, bias, eps=1e-5):
    result = torch.empty_like(features)
    size = features.shape[1] // groups
    for start, stop in zip(cloud.offsets[:-1].tolist(), cloud.offsets[1:].tolist(), strict=True):
        for group in range(groups):
            channels = range(group * size, (group + 1) * size)
            values = [features[n, c].item() for n in range(start, stop) for c in channels]
            for n in range(start, stop):
                for c in channels:
                    mean, variance = moments(values)
                    value = (features[n, c].item() - mean) / (variance + eps) ** 0.5
                    result[n, c] = weight[c] * value + bias[c]
    return result


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_group_norm(groups):
    cloud = clouds(*LENGTHS, dtype=torch.float64)
    features = 3 * features_of(cloud, 6) + 1
    norm = randomised(CloudGroupNorm(6, groups))
    expected = group_norm_by_loops(features, cloud, groups, norm.weight.tolist(), norm.bias.tolist())
    torch.testing.assert_close(norm(features, cloud), expected)


def test_group_norm_without_a_cloud_takes_each_row_alone():
    cloud = pv.PointCloud(torch.rand(4, 3, dtype=torch.float64), [1, 1, 1, 1])
    features = features_of(cloud, 8)
    norm = randomised(CloudGroupNorm(8, 2))
    torch.testing.assert_close(norm(features), norm(features, cloud))


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(512, 32), (128, 32), (64, 32), (48, 24), (36, 18), (8, 4), (2, 1), (7, 1)],
)
def test_number_of_groups(channels, groups):
    assert CloudGroupNorm(channels).groups == groups


@pytest.mark.parametrize(("channels", "groups"), [(512, 32), (128, 16), (64, 8), (12, 1), (4, 1)])
def test_groups_of_a_head_have_eight_channels(channels, groups):
    norm = make_norm(for_rows("group"), channels)
    assert isinstance(norm, CloudGroupNorm)
    assert norm.groups == groups
    assert for_rows("batch") == "batch"


def test_layer_norm():
    cloud = clouds(*LENGTHS, dtype=torch.float64)
    features = features_of(cloud, 6)
    norm = randomised(LayerNorm(6))
    expected = torch.empty_like(features)
    for n, row in enumerate(features.tolist()):
        mean, variance = moments(row)
        for c, value in enumerate(row):
            scaled = (value - mean) / (variance + 1e-5) ** 0.5
            expected[n, c] = norm.norm.weight[c].item() * scaled + norm.norm.bias[c].item()
    torch.testing.assert_close(norm(features, cloud), expected)


def test_batch_norm():
    cloud = clouds(*LENGTHS, dtype=torch.float64)
    features = features_of(cloud, 3)
    norm = randomised(BatchNorm(3, momentum=0.2))
    out = norm(features, cloud)
    for c in range(3):
        mean, variance = moments(features[:, c].tolist())
        scaled = (features[:, c] - mean) / (variance + 1e-5) ** 0.5
        torch.testing.assert_close(out[:, c], norm.norm.weight[c] * scaled + norm.norm.bias[c])
        assert norm.norm.running_mean[c].item() == pytest.approx(0.2 * mean)
        assert norm.norm.running_var[c].item() == pytest.approx(0.8 + 0.2 * variance * 13 / 12)


def test_batch_norm_needs_two_rows_to_train():
    norm = BatchNorm(3)
    with pytest.raises(ValueError, match=r"3 channels cannot train on a single point.*'group'.*head_norm"):
        norm(torch.ones(1, 3), clouds(1))
    with pytest.raises(ValueError, match=r"a single cloud"):
        norm(torch.ones(1, 3))
    assert norm(torch.ones(0, 3), clouds(0)).shape == (0, 3)
    assert torch.isfinite(norm.norm.running_mean).all()
    assert norm.eval()(torch.ones(1, 3), clouds(1)).shape == (1, 3)


def test_none_is_nothing_or_a_bias():
    features = torch.randn(4, 3)
    assert make_norm("none", 3)(features, None) is features
    norm = make_norm("none", 3, bias=True)
    assert torch.equal(norm(features, None), features)
    norm.bias.data = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(norm(features, None), features + torch.tensor([1.0, 2.0, 3.0]))


def test_a_norm_from_outside_gets_the_options_that_it_names(monkeypatch):
    monkeypatch.setattr(NORMS, "_entries", dict(NORMS._entries))
    NORMS.add("mine", lambda channels, momentum: (channels, momentum))
    NORMS.add("half", "pointvar.nn.norm:CloudGroupNorm")
    assert make_norm("mine", 8, bias=True, momentum=0.3) == (8, 0.3)
    assert make_norm("half", 8, bias=True, momentum=0.3).channels == 8
    network = pv.models.PlainNet(2, 4, norm="half")
    assert isinstance(network.blocks[1].before.norm, CloudGroupNorm)


def test_names():
    kinds = {"none": NoNorm, "batch": BatchNorm, "group": CloudGroupNorm, "layer": LayerNorm}
    for name, kind in kinds.items():
        assert type(make_norm(name, 8)) is kind
    assert type(make_norm("none", 8, bias=True)) is Bias
    assert make_norm("batch", 8, momentum=0.3).norm.momentum == 0.3
    assert make_norm(lambda channels: CloudGroupNorm(channels, 2), 8).groups == 2
    with pytest.raises(ValueError, match="no norm 'instance'; known are none, batch, group, layer"):
        make_norm("instance", 8)


@pytest.mark.parametrize("name", ["none", "batch", "group", "layer"])
def test_gradients(name):
    cloud = clouds(*LENGTHS, dtype=torch.float64)
    norm = randomised(make_norm(name, 4, bias=True))
    features = features_of(cloud, 4).requires_grad_()
    parameters = tuple(norm.parameters())
    assert torch.autograd.gradcheck(lambda f, *_: norm(f, cloud), (features, *parameters))


@pytest.mark.parametrize("name", ["none", "batch", "group", "layer"])
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_no_points_at_all(name, lengths):
    cloud = pv.PointCloud(torch.zeros(0, 3), list(lengths))
    assert make_norm(name, 4)(torch.zeros(0, 4), cloud).shape == (0, 4)


def test_group_norm_in_low_precision():
    """Statistics in float32: those of values around 1000 would be lost in bfloat16."""
    cloud = clouds(200)
    features = (1000 + 50 * features_of(cloud, 8)).bfloat16()
    norm = CloudGroupNorm(8, 2)
    out = norm(features, cloud)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), norm(features.float(), cloud), rtol=0.01, atol=0.01)


def test_group_norm_of_large_values():
    """The variance is taken of centred values: at 1e4 its square would lose all digits in float32."""
    cloud = clouds(300, 200)
    features = features_of(cloud, 8)
    norm = CloudGroupNorm(8, 2)
    torch.testing.assert_close(norm(features + 1e4, cloud), norm(features, cloud), rtol=0, atol=5e-3)


def test_bad_arguments():
    with pytest.raises(ValueError, match="needs channels and groups, got 0 channels"):
        CloudGroupNorm(0)
    with pytest.raises(ValueError, match=r"features must have shape \[N, 8\], got \[5, 4\]"):
        CloudGroupNorm(8)(torch.ones(5, 4), clouds(5))
    with pytest.raises(ValueError, match=r"one row for each of the 5 points, got \[4, 8\]"):
        CloudGroupNorm(8)(torch.ones(4, 8), clouds(5))
