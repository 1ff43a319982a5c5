"""What holds for every network: shapes, gradients, batches, copies, the order of its layers."""

import copy
import pickle

import pytest
import torch
from network_cases import METHODS, NORMS, clouds, executed, features_of, registered, seeded

import pointvar as pv
from pointvar.models import Classifier, PlainNet, PointConvClassifier, PointConvNet, SegmentationUNet

# A leaky slope and no dropout for PointConv's own, for of so few units all may be dead.
POINTCONV = {"counts": (20, 0.5), "slope": 0.1, "head_dropout": 0.0}
SEGMENTER = {"encoder": ((4, 6, 8), (12,)), "decoder": ((12, 8), (8, 6)), "head": 6, "radii": (0.3, 0.6)}
CLASSIFIER = {"encoder": ((4, 6, 8), (12,), (12, 16)), "head": (8, 6), "radii": (0.3, 0.6, 1.0)}
UNET = {"channels": (6, 8, 10), "radii": (0.1, 0.2, 0.4)}
NETWORKS = {
    "plain": (PlainNet, (3, 8, 2, 4), {"radius": 0.5}),
    "classifier": (Classifier, (2, 4), {"channels": (8, 12), "head": 8, "radii": (0.1, 0.3)}),
    "u-net": (SegmentationUNet, (2, 4), UNET),
    "u-net with checkpoints": (SegmentationUNet, (2, 4), {**UNET, "checkpoint": True}),
    "pointconv": (PointConvNet, (2, 4), {**POINTCONV, **SEGMENTER, "neighbors": 6, "decoder_neighbors": 5}),
    "pointconv classifier": (PointConvClassifier, (2, 4), {**POINTCONV, **CLASSIFIER, "neighbors": (6, 5)}),
}


@pytest.fixture(params=NETWORKS)
def name(request):
    return request.param


def make(name, method="MCConv", **options):
    network, sizes, own = NETWORKS[name]
    return network(*sizes, method=method, **{**own, "generator": seeded(), **options})


def geometry(model, cloud, **options):
    if isinstance(model, PlainNet):
        return pv.ball_query(cloud, cloud, 0.5)
    return model.hierarchy(cloud, generator=seeded(), **options)


def without_chance(model, cloud):
    """Without a cap and with farthest points, nothing random is left that a batch could change."""
    if not isinstance(model, (Classifier, SegmentationUNet)):
        return geometry(model, cloud)
    return pv.Hierarchy(cloud, model.radii, farthest=[0.7, 0.5, 0.5][: len(model.radii)], bandwidth=0.5)


# In turn, so that every network meets every method and every norm, and every method every norm.
TURNS = [
    (name, method, NORMS[(i + j) % 4]) for i, name in enumerate(NETWORKS) for j, method in enumerate(METHODS)
]


@pytest.mark.parametrize(("name", "method", "norm"), TURNS)
def test_shapes_and_gradients(name, method, norm):
    cloud, queries = clouds(30, 0, 1, 25), clouds(5, 0, 1, 7, seed=3)
    model = make(name, method, norm=norm)
    features = features_of(cloud, 2).requires_grad_()
    out = model(features, geometry(model, cloud, **({"queries": queries} if "u-net" in name else {})))
    rows = 4 if "classifier" in name else 13 if "u-net" in name else 56
    assert out.shape == (rows, 4)
    out.square().sum().backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert torch.isfinite(parameter.grad).all(), path
    assert features.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", ["none", "group", "layer"])
def test_a_batch_is_each_cloud_alone(name, norm):
    parts = [clouds(n, seed=n, dtype=torch.float64) for n in (30, 1, 20)]
    parts.insert(1, pv.PointCloud(torch.zeros(0, 3, dtype=torch.float64)))
    model = make(name, "KPConvN", norm=norm).double().eval()
    for parameter in model.parameters():  # biases that differ from 0
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(5), dtype=torch.float64)
    features = [features_of(part, 2, seed=part.num_points) for part in parts]
    together = without_chance(model, pv.PointCloud.from_list(part.points for part in parts))
    alone = [model(f, without_chance(model, part)) for f, part in zip(features, parts, strict=True)]
    torch.testing.assert_close(model(torch.cat(features), together), torch.cat(alone))


def test_layers_are_run_and_initialised_in_the_order_of_registration(name):
    cloud = clouds(60, 40)
    model = make(name, "PointConv", norm="batch")
    batch = features_of(cloud, 2), geometry(model, cloud)
    assert executed(model, *batch) == [path for path, _ in registered(model)]
    linears = [m.weight.clone() for _, m in registered(model, torch.nn.Linear)]
    report = pv.variance_init(model, [batch], layers=pv.PointConvolution)
    assert [x.name for x in report.layers] == [path for path, _ in registered(model, pv.PointConvolution)]
    assert all(x.second_moment > 0 and x.calls == 1 for x in report.layers)
    after = [m.weight for _, m in registered(model, torch.nn.Linear)]
    assert all(torch.equal(a, b) for a, b in zip(linears, after, strict=True))


def test_copies_and_a_generator(name):
    cloud = clouds(40, 30)
    model, twin, other = (make(name, norm="batch", generator=seeded(seed)) for seed in (0, 0, 1))
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    levels, features = geometry(model, cloud), features_of(cloud, 2)
    model(features, levels)  # running statistics
    other.load_state_dict(model.state_dict())
    expected = model.eval()(features, levels)
    for twin in (other.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(features, levels), expected)
    for again in (pickle.loads(pickle.dumps(levels)), levels.to("cpu"), geometry(model, cloud)):
        assert torch.equal(model(features, again), expected)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "plain"])
def test_wrong_levels(name):
    for radii in ((0.3,), ()):
        with pytest.raises(ValueError, match="one entry per level"):
            make(name, radii=radii)
    cloud, model = clouds(40), make(name)
    features = features_of(cloud, 2)
    with pytest.raises(TypeError, match="features and a Hierarchy, got PointCloud"):
        model(features, cloud)
    with pytest.raises(ValueError, match=r"the network has \d levels, the hierarchy 1"):
        model(features, pv.Hierarchy(cloud, [0.1]))
    with pytest.raises(ValueError, match=r"39 points|one row for each of the 40 points, got \[39, 2\]"):
        model(features[1:], geometry(model, cloud))
