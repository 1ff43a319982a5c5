"""The classifier: the paper's numbers, every method with every norm, batches of any clouds."""

import copy
import pickle

import pytest
import torch
from network_cases import METHODS, NORMS, clouds, executed, features_of, registered, seeded

import pointvar as pv
from pointvar.models import Classifier

SMALL = {"channels": (8, 12), "head": 8, "radii": (0.1, 0.3), "generator": None}


def small(method="MCConv", **options):
    return Classifier(2, 4, method, **{**SMALL, "generator": seeded(), **options})


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_shapes_and_gradients(method, norm):
    cloud = clouds(30, 0, 1, 25)
    model = small(method, norm=norm)
    features = features_of(cloud, 2).requires_grad_()
    out = model(features, model.hierarchy(cloud, seeded()))
    assert out.shape == (4, 4)
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    assert features.grad.abs().sum() > 0


def test_the_papers_numbers():
    model = Classifier(1, 15)
    layers = [m for _, m in registered(model)]
    convolutions = [m for m in layers if isinstance(m, pv.PointConvolution)]
    assert [tuple(m.weight.shape) for m in convolutions] == [
        *((16, 1, 128), (16, 128, 128), (16, 128, 256)),
        *((16, 256, 256), (16, 256, 512), (16, 512, 512)),
    ]
    assert [tuple(m.weight.shape) for m in layers[6:]] == [(512, 512), (15, 512)]
    assert all(m.bias is None for m in convolutions)
    dropouts = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert dropouts == [0.2] * 5 + [0.5] * 2
    assert {m.negative_slope for m in model.modules() if isinstance(m, torch.nn.LeakyReLU)} == {0.2}
    levels = model.hierarchy(clouds(500))
    assert levels.radii == [0.1, 0.2, 0.4]
    for level, radius in enumerate(levels.radii):
        hood = levels.within(level)
        assert hood.radius.unique().item() == pytest.approx(3 * radius)
        assert hood.counts.max() == min(16, len(levels.clouds[level]))
        assert hood.bandwidth is None  # Monte Carlo then takes its own 0.2 of the receptive field


def test_it_is_what_the_docstring_says():
    cloud = clouds(40, 30)
    model, features = small("KPConvN").eval(), features_of(cloud, 2)
    levels = model.hierarchy(cloud, seeded())
    (a, b, c, d, first, second) = (m for _, m in registered(model))

    def activate(x):
        return torch.where(x > 0, x, 0.2 * x)

    x = features[levels.kept[0]]
    x = b(activate(a(x, levels.within(0))), levels.within(0))
    x = activate(x[levels.kept[1]])
    x = d(activate(c(x, levels.within(1))), levels.within(1))
    x = torch.stack([part.mean(0) for part in x.split(levels.clouds[1].lengths.tolist())])
    expected = second(activate(first(activate(x))))
    torch.testing.assert_close(model(features, levels), expected)


@pytest.mark.parametrize("norm", ["none", "group", "layer"])
def test_a_batch_is_each_cloud_alone(norm):
    """Without a cap and with farthest points, nothing random is left that a batch could change."""
    parts = [clouds(n, seed=n, dtype=torch.float64) for n in (30, 1, 20)]
    parts.insert(1, pv.PointCloud(torch.zeros(0, 3, dtype=torch.float64)))
    model = small("MCConv", norm=norm, max_neighbors=None).double().eval()
    for parameter in model.parameters():  # biases that differ from 0
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(5), dtype=torch.float64)

    def levels(cloud):
        return pv.Hierarchy(cloud, [0.1, 0.3], 3.0, farthest=[0.7, 0.5])

    def features(cloud):
        return features_of(cloud, 2, seed=cloud.num_points)

    together = model(
        torch.cat([features(p) for p in parts]), levels(pv.PointCloud.from_list(p.points for p in parts))
    )
    alone = torch.cat([model(features(p), levels(p)) for p in parts])
    torch.testing.assert_close(together, alone)


def test_layers_run_in_the_order_of_registration():
    cloud = clouds(40, 30)
    model = small("PointConv", norm="batch")
    assert executed(model, features_of(cloud, 2), model.hierarchy(cloud)) == [n for n, _ in registered(model)]


def test_norm_and_head_norm():
    def norms(**options):
        model = small(**options)
        return [type(m.norm).__name__ for m in model.modules() if isinstance(m, pv.nn.NormActivation)]

    assert norms() == ["NoNorm"] * 5
    assert norms(bias=True) == ["Bias"] * 5
    assert norms(norm="batch") == ["BatchNorm"] * 5
    assert norms(norm="batch", head_norm="none") == ["BatchNorm"] * 3 + ["NoNorm"] * 2
    assert norms(norm=lambda channels: pv.nn.CloudGroupNorm(channels, 2)) == ["CloudGroupNorm"] * 5
    model = small(norm="batch")
    assert {m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm1d)} == {0.2}


def test_batch_norm_and_one_cloud():
    """In the head a batch of one cloud has one row."""
    cloud = clouds(40)
    features = features_of(cloud, 2)
    model = small(norm="batch")
    with pytest.raises(ValueError, match=r"12 channels cannot train on a single cloud.*head_norm='none'"):
        model(features, model.hierarchy(cloud))
    assert model.eval()(features, model.hierarchy(cloud)).shape == (1, 4)
    model = small(norm="batch", head_norm="none")
    assert model(features, model.hierarchy(cloud)).shape == (1, 4)


def test_hierarchies_are_made_once_and_travel():
    cloud = clouds(40, 30)
    model, features = small().eval(), features_of(cloud, 2)
    levels = model.hierarchy(cloud, seeded())
    expected = model(features, levels)
    torch.testing.assert_close(model(features, pickle.loads(pickle.dumps(levels))), expected)
    torch.testing.assert_close(model(features, levels.to("cpu")), expected)
    torch.testing.assert_close(model(features, model.hierarchy(cloud, seeded())), expected)


def test_copies_and_a_generator():
    cloud = clouds(40, 30)
    model, twin, other = small(norm="batch"), small(norm="batch"), small(norm="batch", generator=seeded(1))
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    levels, features = model.hierarchy(cloud), features_of(cloud, 2)
    model(features, levels)  # running statistics
    other.load_state_dict(model.state_dict())
    model.eval()
    for twin in (other.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(features, levels), model(features, levels), rtol=0, atol=0)


def test_bad_arguments():
    with pytest.raises(ValueError, match="one entry per level"):
        small(radii=(0.1,))
    with pytest.raises(ValueError, match="one entry per level"):
        small(radii=(), channels=())
    cloud = clouds(40)
    model, features = small(), features_of(cloud, 2)
    with pytest.raises(TypeError, match="features and a Hierarchy, got PointCloud"):
        model(features, cloud)
    with pytest.raises(ValueError, match="the network has 2 levels, the hierarchy 1"):
        model(features, pv.Hierarchy(cloud, [0.1]))
    with pytest.raises(ValueError, match=r"one row for each of the 40 points, got \[39, 2\]"):
        model(features[1:], model.hierarchy(cloud))
    with pytest.raises(ValueError, match=r"features must have shape \[N, 2\]"):
        model(features[:, :1], model.hierarchy(cloud))


def test_group_norm_of_the_head_has_groups_of_eight_channels():
    model = pv.models.Classifier(1, 5, channels=(16,), radii=(0.1,), head=64, norm="group")
    groups = [m.groups for m in model.head.modules() if isinstance(m, pv.nn.CloudGroupNorm)]
    assert groups == [2, 8]
