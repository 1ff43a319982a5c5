"""PointConv's own networks: their published numbers, every method with every norm."""

import copy
import pickle

import pytest
import torch
from network_cases import METHODS, NORMS, clouds, executed, features_of, registered, seeded

import pointvar as pv
from pointvar.models import PointConvClassifier, PointConvNet
from pointvar.models.pointconv import from_centre

NETS = {
    PointConvNet: {
        "counts": (20, 0.5),
        "encoder": ((4, 6, 8), (12,)),
        "decoder": ((12, 8), (8, 6)),
        "head": 6,
        "radii": (0.3, 0.6),
        "neighbors": 6,
        "decoder_neighbors": 5,
    },
    PointConvClassifier: {
        "counts": (20, 0.5),
        "encoder": ((4, 6, 8), (12,), (12, 16)),
        "head": (8, 6),
        "radii": (0.3, 0.6, 1.0),
        "neighbors": (6, 5),
    },
}


def small(net, method="PointConv", **options):
    return net(2, 4, method, **{**NETS[net], "generator": seeded(), **options})


@pytest.fixture(params=NETS, ids=lambda net: net.__name__)
def net(request):
    return request.param


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_shapes_and_gradients(net, method, norm):
    cloud = clouds(30, 0, 1, 25)
    # A leaky slope and no dropout, for of so few units all may be dead.
    model = small(net, method, norm=norm, slope=0.1, head_dropout=0.0)
    features = features_of(cloud, 2).requires_grad_()
    out = model(features, model.hierarchy(cloud))
    assert out.shape == ((56, 4) if net is PointConvNet else (4, 4))
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    assert features.grad.abs().sum() > 0


def channels(model):
    convolutions = [m for m in model.modules() if isinstance(m, pv.PointConvolution)]
    linears = [m for _, m in registered(model, torch.nn.Linear)]
    return (
        [(m.in_channels, m.out_channels) for m in convolutions],
        [(m.in_features, m.out_features) for m in linears],
    )


def test_published_segmentation():
    convolutions, linears = channels(PointConvNet(3, 21))
    assert convolutions == [
        *((32, 64), (64, 128), (128, 256), (256, 512)),
        *((512, 512), (512, 256), (256, 256), (128, 128)),
    ]
    assert linears == [
        *((3, 32), (32, 32), (64, 64), (64, 64), (128, 128), (128, 128), (256, 256), (256, 256)),
        *((512 + 256, 512), (256 + 128, 256), (256 + 64, 128), (128 + 3, 128), (128, 128)),
        *((128, 128), (128, 21)),
    ]
    levels = PointConvNet(3, 21).hierarchy(clouds(1500))
    assert [len(cloud) for cloud in levels.clouds] == [1024, 256, 64, 36]
    assert levels.down(-1, nearest=32).counts.unique().tolist() == [32]


def test_published_classification():
    convolutions, linears = channels(PointConvClassifier(3, 40))
    assert convolutions == [(64, 128), (128, 256), (512, 1024)]
    assert linears == [
        *((3, 64), (64, 64), (128, 128), (128, 128), (256, 256), (256, 512)),
        *((1024, 512), (512, 256), (256, 40)),
    ]
    levels = PointConvClassifier(3, 40).hierarchy(clouds(600))
    assert [len(cloud) for cloud in levels.clouds] == [512, 128]
    assert levels.down(0, nearest=64).counts.unique().tolist() == [64]


def test_segmentation_is_what_the_docstring_says():
    cloud = clouds(40, 30)
    model, features = small(PointConvNet, "KPConvN").eval(), features_of(cloud, 2)
    for parameter in model.parameters():  # biases that differ from 0
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(5))
    levels = model.hierarchy(cloud)
    layers = iter([m for _, m in registered(model)])
    biases = iter([m.bias for m in model.modules() if isinstance(m, pv.nn.Bias)])

    def step(x, *hood):
        return (next(layers)(x, *hood) + next(biases)).clamp(min=0)

    middle = step(step(step(features)), levels.down(-1, nearest=6))
    x = step(middle, levels.down(0, nearest=6))
    x = step(pv.nn.interpolate(x, levels.up(1, nearest=3)), levels.within(0, nearest=5))
    x = step(torch.cat([x, middle], 1))
    x = step(pv.nn.interpolate(x, levels.up(0, nearest=3)), levels.within(-1, nearest=5))
    x = step(step(torch.cat([x, features], 1)))
    expected = next(layers)(x)
    torch.testing.assert_close(model(features, levels), expected)
    assert not list(layers)


def test_all_points_from_their_centre():
    cloud = clouds(5, 0, 1, 4)
    hood = from_centre(cloud)
    assert hood is from_centre(cloud)
    assert hood.queries.lengths.tolist() == [1, 0, 1, 1]
    assert hood.counts.tolist() == [5, 1, 4]
    for centre, rows in zip(hood.queries.points, (slice(0, 5), slice(5, 6), slice(6, 10)), strict=True):
        torch.testing.assert_close(centre, cloud.points[rows].mean(0))
    assert hood.radius[0] == (cloud.points[:5] - hood.queries.points[0]).norm(dim=1).max()
    moving = pv.PointCloud(cloud.points.clone().requires_grad_(), cloud.lengths)
    from_centre(moving).relative_positions().square().sum().backward()
    assert moving.points.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", ["none", "group", "layer"])
def test_a_batch_is_each_cloud_alone(net, norm):
    parts = [clouds(n, seed=n, dtype=torch.float64) for n in (30, 1, 20)]
    parts.insert(1, pv.PointCloud(torch.zeros(0, 3, dtype=torch.float64)))
    model = small(net, norm=norm).double().eval()

    def features(cloud):
        return features_of(cloud, 2, seed=cloud.num_points)

    whole = pv.PointCloud.from_list(p.points for p in parts)
    together = model(torch.cat([features(p) for p in parts]), model.hierarchy(whole))
    alone = torch.cat([model(features(p), model.hierarchy(p)) for p in parts])
    torch.testing.assert_close(together, alone)


def test_layers_run_in_the_order_of_registration(net):
    cloud = clouds(40, 30)
    model = small(net, norm="batch")
    assert executed(model, features_of(cloud, 2), model.hierarchy(cloud)) == [n for n, _ in registered(model)]


def test_copies(net):
    cloud = clouds(40, 30)
    model, other = small(net, norm="batch"), small(net, norm="batch", generator=seeded(1))
    twin = small(net, norm="batch")
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    levels, features = model.hierarchy(cloud), features_of(cloud, 2)
    model(features, levels)  # running statistics
    other.load_state_dict(model.state_dict())
    expected = model.eval()(features, levels)
    for twin in (other.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(features, levels), expected, rtol=0, atol=0)
    torch.testing.assert_close(model(features, pickle.loads(pickle.dumps(levels))), expected)


def test_bad_arguments(net):
    with pytest.raises(ValueError, match="one entry per level"):
        small(net, radii=(0.3,))
    with pytest.raises(ValueError, match="a convolution and linear layers, got"):
        small(PointConvNet, decoder=((12,), (8, 6)))
    cloud = clouds(40)
    with pytest.raises(ValueError, match="the network has 2 levels, the hierarchy 1"):
        small(net)(features_of(cloud, 2), pv.Hierarchy(cloud, [0.1]))
