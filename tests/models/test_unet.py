"""The U-Net: 19 convolutions, queries apart from the context, checkpoints that change nothing."""

import pickle

import pytest
import torch
from network_cases import clouds, features_of, registered, seeded

import pointvar as pv
from pointvar.models import SegmentationUNet

SMALL = {"channels": (6, 8, 10), "radii": (0.1, 0.2, 0.4)}


def small(method="MCConv", **options):
    return SegmentationUNet(2, 4, method, **{**SMALL, "generator": seeded(), **options})


def gradients(model, features, levels):
    model.zero_grad()
    features = features.clone().requires_grad_()
    torch.manual_seed(0)  # dropout
    model(features, levels).square().sum().backward()
    return [features.grad, *(parameter.grad for parameter in model.parameters())]


def test_the_papers_numbers():
    model = SegmentationUNet(3, 21)
    layers = [m for _, m in registered(model)]
    convolutions = [m for m in layers if isinstance(m, pv.PointConvolution)]
    assert len(convolutions) == 19
    assert [m.out_channels for m in convolutions] == [
        64,
        *(64, 64, 128, 128, 256, 256, 512, 512),
        *(256, 256, 256, 128, 128, 128, 64, 64, 64),
        21,
    ]
    linears = [m for m in layers if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [
        *((64, 64), (64, 128), (128, 256), (256, 512)),
        *((512, 256), (256, 128), (128, 64)),
    ]
    assert [m.bias is not None for m in convolutions] == [False] * 18 + [True]
    befores = [m for m in model.modules() if isinstance(m, pv.nn.NormActivation)]
    assert len(befores) == 18 + 7
    assert all(isinstance(m.norm, pv.nn.Bias) and m.dropout.p == 0.2 for m in befores)


def test_the_papers_neighbourhoods():
    """Three times the level's radius; densities of half the radius of the support's level."""
    model = SegmentationUNet(3, 21, channels=(4, 4, 4, 4))
    levels = model.hierarchy(clouds(2000), clouds(50, seed=1))
    seen = {
        levels.down(-1): (0.09, 0.015),
        levels.within(0): (0.09, 0.015),
        levels.within(3): (0.72, 0.12),
        levels.up(3): (0.36, 0.12),
        levels.up(1): (0.09, 0.03),
        levels.out(): (0.09, 0.015),
    }
    for hood, (radius, bandwidth) in seen.items():
        assert hood.radius.unique().item() == pytest.approx(radius)
        assert hood.bandwidth == pytest.approx(bandwidth)
        assert hood.counts.max() <= 16
    assert levels.out().queries is levels.queries
    authors = SegmentationUNet(3, 21, channels=(4, 4, 4, 4), first_reach=1.5)
    made = authors.hierarchy(clouds(50))
    assert set(made._hoods) == {
        *((-1, 0, 1.5, None), (0, -1, 3.0, None)),
        *((level, level, 3.0, None) for level in range(4)),
        *((level, level - 1, 3.0, None) for level in range(1, 4)),
    }
    authors.eval()(features_of(made.input, 3), made)
    assert len(made._hoods) == 9  # forward found all it needs


def test_it_is_what_the_docstring_says():
    cloud, queries = clouds(60, 40), clouds(10, 5, seed=3)
    model, features = small("KPConvN", radii=(0.1, 0.3), channels=(6, 8)).eval(), features_of(cloud, 2)
    for parameter in model.parameters():  # biases that differ from 0
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(5))
    levels = model.hierarchy(cloud, queries, seeded())
    layers = iter([m for _, m in registered(model)])
    biases = iter([m.bias for m in model.modules() if isinstance(m, pv.nn.Bias)])

    def step(x, *hood):
        x = x + next(biases)
        return next(layers)(torch.where(x > 0, x, 0.2 * x), *hood)

    x = next(layers)(features, levels.down(-1))
    skip = step(step(step(x), levels.within(0)), levels.within(0))
    x = skip[levels.kept[1]]
    x = step(step(step(x), levels.within(1)), levels.within(1))
    x = torch.cat([step(x, levels.up(1)), skip], 1)
    x = step(step(step(x), levels.within(0)), levels.within(0))
    expected = step(x, levels.out())
    torch.testing.assert_close(model(features, levels), expected)
    assert not list(layers)
    assert not list(biases)


def test_queries_are_the_input_where_none_are_given():
    cloud = clouds(60, 40)
    model, features = small().eval(), features_of(cloud, 2)
    out = model(features, model.hierarchy(cloud, generator=seeded()))
    assert out.shape == (100, 4)
    uncapped = small(max_neighbors=None).eval()
    everywhere = uncapped(features, uncapped.hierarchy(cloud, generator=seeded()))
    inner = torch.arange(10, 70)
    some = uncapped(features, uncapped.hierarchy(cloud, cloud[inner], seeded()))
    torch.testing.assert_close(some, everywhere[inner])


@pytest.mark.parametrize(
    ("method", "norm"), [("MCConv", "none"), ("PointConv", "batch"), ("KPConvN", "group"), ("PCCNN", "layer")]
)
def test_recomputing_changes_nothing(method, norm):
    """Dropout draws the same again, batch norm counts a batch once."""
    cloud = clouds(40, 30)
    models = [small(method, norm=norm, recompute=recompute) for recompute in (False, True)]
    levels, features = models[0].hierarchy(cloud, generator=seeded()), features_of(cloud, 2)
    plain, saved = (gradients(model, features, levels) for model in models)
    torch.testing.assert_close(saved, plain)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict())


def test_recomputing_keeps_less():
    cloud = clouds(200)

    def kept(**options):
        model = small(**options)
        levels, features = model.hierarchy(cloud, generator=seeded()), features_of(cloud, 2)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            model(features, levels)
        return sum(sizes)

    assert kept(recompute=True) < 0.5 * kept()
    assert kept(checkpoint=True) == kept(recompute=True)  # the older name


def test_queries_travel():
    cloud, queries = clouds(40, 30), clouds(5, 4, seed=3)
    model, features = small().eval(), features_of(cloud, 2)
    levels = model.hierarchy(cloud, queries)
    expected = model(features, levels)
    for twin in (pickle.loads(pickle.dumps(levels)), levels.to("cpu")):
        assert twin.queries.num_points == 9
        assert torch.equal(model(features, twin), expected)


def test_bad_arguments():
    with pytest.raises(ValueError, match="must agree in num_clouds, got 1 and 2"):
        small().hierarchy(clouds(40), clouds(3, 4))
