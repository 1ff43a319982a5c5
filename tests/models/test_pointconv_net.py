"""PointConv's own networks: their published numbers and formula."""

import pytest
import torch
from network_cases import clouds, features_of, registered, seeded

import pointvar as pv
from pointvar.models import PointConvClassifier, PointConvNet
from pointvar.models.pointconv import from_centre


def small(**options):
    sizes = {"encoder": ((4, 6, 8), (12,)), "decoder": ((12, 8), (8, 6)), "head": 6, "radii": (0.3, 0.6)}
    counts = {"counts": (20, 0.5), "neighbors": 6, "decoder_neighbors": 5}
    return PointConvNet(2, 4, "KPConvN", **{**sizes, **counts, "generator": seeded(), **options})


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
    model, features = small().eval(), features_of(cloud, 2)
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


def test_bad_arguments():
    with pytest.raises(ValueError, match="a convolution and linear layers, got"):
        small(decoder=((12,), (8, 6)))
