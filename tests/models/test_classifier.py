"""The classifier: the paper's numbers, its formula, its norms."""

import pytest
import torch
from network_cases import clouds, features_of, registered, seeded

import pointvar as pv
from pointvar.models import Classifier

SMALL = {"channels": (8, 12), "head": 8, "radii": (0.1, 0.3), "generator": None}


def small(method="MCConv", **options):
    return Classifier(2, 4, method, **{**SMALL, "generator": seeded(), **options})


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


def test_group_norm_of_the_head_has_groups_of_eight_channels():
    model = pv.models.Classifier(1, 5, channels=(16,), radii=(0.1,), head=64, norm="group")
    groups = [m.groups for m in model.head.modules() if isinstance(m, pv.nn.CloudGroupNorm)]
    assert groups == [2, 8]
