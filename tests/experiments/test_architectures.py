"""Public networks: shapes, norms of the chosen kind alone, the order of points, gradients, the T-Net."""

import pytest
import torch
from convolution_cases import seeded
from experiments.architectures import ARCHITECTURES, NORMS, parts
from experiments.architectures.pointnet import TNet
from experiments.networks import DenseClassifier
from torch import nn

import pointvar as pv
from pointvar.data import Shapes

KINDS = {
    "BN": (nn.BatchNorm1d, nn.BatchNorm2d),
    "GN": (nn.GroupNorm,),
    "DyT": (parts.DynamicTanh,),
    "none": (nn.Identity,),
}


def points_of(clouds=2, count=64):
    """Points on the unit sphere, of another stretch in every cloud."""
    found = torch.randn(clouds, count, 3, generator=seeded(0))
    return found / found.norm(dim=2, keepdim=True) * torch.rand(clouds, 1, 3, generator=seeded(1))


def network(name, norm="BN"):
    torch.manual_seed(0)
    return ARCHITECTURES[name](5, NORMS[norm], width=8)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_norms_are_of_the_chosen_kind_alone(name, norm):
    """As many as with batch norm, each of as many channels, and no others; all parameters get gradients."""
    net, published = network(name, norm), network(name)
    every = [kind for kinds in KINDS.values() for kind in kinds if kind is not nn.Identity]
    others = [kind for kind in every if kind not in KINDS[norm]]
    assert not any(isinstance(module, tuple(others)) for module in net.modules())
    before = {n: m.num_features for n, m in published.named_modules() if isinstance(m, KINDS["BN"])}
    for place, channels in before.items():
        made = net.get_submodule(place)
        assert isinstance(made, KINDS[norm])
        assert norm == "none" or sum(p.numel() for p in made.parameters()) - (norm == "DyT") == 2 * channels
    scores = net(points_of())
    assert scores.shape == (2, 5)
    scores.square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    for place, module in net.named_modules():  # what stands before a norm, or where none is, has a bias
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)) and not place.endswith("scores"):
            assert module.bias is not None


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_counts(name):
    """Gradients are not 0 anywhere, once a T-Net is not the identity whatever its layers give."""
    net = network(name, "GN").double()
    for module in net.modules():
        if isinstance(module, TNet):
            nn.init.normal_(module.matrix.weight, std=0.1)
    net.eval()
    net(points_of(2, 256).double()).square().sum().backward()
    silent = [n for n, p in net.named_parameters() if not bool(p.grad.abs().max() > 0)]
    assert silent == []


@torch.no_grad()
@pytest.mark.parametrize("norm", ["BN", "none"])
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "RandLA-Net"])
def test_neither_the_order_of_points_nor_other_clouds_matter_in_evaluation(name, norm):
    """RandLA-Net takes the first points for random ones."""
    net, points = network(name, norm).eval().double(), points_of(3).double()
    scores = net(points)
    assert float(scores.std(0).max()) > 1e-6
    order = torch.randperm(64, generator=seeded(2))
    torch.testing.assert_close(net(points[:, order]), scores)
    torch.testing.assert_close(net(points[1:2]), scores[1:2])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_norms_in_one_call(name):
    """As published, with batch norm, a network is set as a whole, and one cloud can be trained on."""
    torch.manual_seed(0)
    net, points = ARCHITECTURES[name](7), torch.stack([shape.points for shape in Shapes(4, "train", 128)])
    norms = {n for n, module in net.named_modules() if isinstance(module, KINDS["BN"])}
    report = pv.norm_free(net, [points[:2], points[2:]], generator=seeded(2))
    assert set(report.norms) == norms
    assert len(norms) > 5
    assert not any(isinstance(module, KINDS["BN"]) for module in net.modules())
    assert report.share > 0.99
    assert report.head.startswith("head.")
    assert "vanish" not in report.variance.headline
    assert "explod" not in report.variance.headline
    net.train()(points[:1]).sum().backward()


def test_the_t_net_begins_with_the_identity():
    found = TNet(3, 8, NORMS["BN"])(points_of().mT)
    assert torch.equal(found, torch.eye(3).expand(2, 3, 3))
    net, points = network("PointNet", "none").eval(), points_of()
    plain = net.second(net.first(points.mT)).amax(2)
    assert torch.equal(net(points), net.head(net.rows(plain)))


@pytest.mark.parametrize(
    ("channels", "dims", "groups"), [(8, 1, 4), (48, 2, 24), (96, 2, 32), (40, 0, 5), (4, 0, 1), (100, 1, 25)]
)
def test_groups_of_channels(channels, dims, groups):
    assert parts.group_norm(channels, dims).num_groups == groups


def test_dynamic_tanh():
    features = torch.randn(2, 3, 4, 5, generator=seeded(0))
    made = parts.DynamicTanh(3, 2)
    torch.testing.assert_close(made(features), torch.tanh(0.5 * features))
    nn.init.normal_(made.gain)
    nn.init.normal_(made.bias)
    expected = torch.stack(
        [made.gain[c] * torch.tanh(0.5 * features[:, c]) + made.bias[c] for c in range(3)], 1
    )
    torch.testing.assert_close(made(features), expected)


def test_groups_by_loops():
    points = points_of(2, 20)
    chosen = parts.spread(points, 4)
    centers = parts.gather_points(points, chosen)
    near, inside = parts.nearest(points, centers, 4), parts.nearest(points, centers, 4, 0.3)
    offsets = parts.offsets(points, centers, near)
    for b in range(2):
        from_mean = [float((p - points[b].mean(0)).norm()) for p in points[b]]
        kept = [max(range(20), key=from_mean.__getitem__)]
        for _ in range(4):
            apart = [min(float((p - points[b, k]).norm()) for k in kept) for p in points[b]]
            kept.append(max(range(20), key=apart.__getitem__))
        assert chosen[b].tolist() == kept
        for m, k in enumerate(kept):
            distance = [float((p - points[b, k]).norm()) for p in points[b]]
            order = sorted(range(20), key=distance.__getitem__)[:4]
            assert near[b, m].tolist() == order
            assert inside[b, m].tolist() == [i if distance[i] <= 0.3 else order[0] for i in order]
            assert torch.equal(offsets[b, :, m], (points[b, order] - points[b, k]).mT)


def test_clouds_of_two_sizes_are_refused():
    model = DenseClassifier(network("PointNet"))
    levels = model.hierarchy(pv.PointCloud(torch.rand(30, 3), [10, 20]))
    with pytest.raises(ValueError, match="clouds of one size, got 10, 20"):
        model(torch.ones(30, 1), levels)
