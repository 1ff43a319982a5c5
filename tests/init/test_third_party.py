"""Layers and networks of PyTorch Geometric, as they come."""

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, moment
from torch import nn

import pointvar as pv

pyg = pytest.importorskip("torch_geometric.nn", reason="PyTorch Geometric is not installed")


def graph(points=80, channels=5, seed=0):
    """Features, positions, and the edges of the 6 nearest neighbours."""
    generator = seeded(seed)
    cloud = pv.PointCloud(torch.rand(points, 3, generator=generator))
    x = torch.randn(points, channels, generator=generator)
    return x, cloud.points, pv.knn(cloud, cloud, 6).edge_index


CONVOLUTIONS = {
    "GCNConv": lambda: pyg.GCNConv(5, 8),
    "GCNConv, plain": lambda: pyg.GCNConv(5, 8, normalize=False, bias=False),
    "SAGEConv": lambda: pyg.SAGEConv(5, 8),
    "SAGEConv, max": lambda: pyg.SAGEConv(5, 8, aggr="max", root_weight=False),
    "SAGEConv, project": lambda: pyg.SAGEConv(5, 8, project=True),
    "GraphConv": lambda: pyg.GraphConv(5, 8),
    "ChebConv": lambda: pyg.ChebConv(5, 8, K=3),
    "TAGConv": lambda: pyg.TAGConv(5, 8),
    "SGConv": lambda: pyg.SGConv(5, 8, K=2),
    "LEConv": lambda: pyg.LEConv(5, 8),
}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("make", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_gets_the_target_variance(make, batches):
    torch.manual_seed(0)
    conv = make()
    x, _, edges = graph()
    report = pv.variance_init(conv, [(x, edges)] * batches, 2.0, generator=seeded())
    assert [entry.name for entry in report.layers] == [type(conv).__name__]  # one: it owns what is inside
    inside = ("SAGEConv.lin.weight", "SAGEConv.lin.bias") if getattr(conv, "project", False) else ()
    assert report.left_alone == dict.fromkeys(inside, "the rule for SAGEConv does not name it")
    assert report.layers[0].note == "probed"
    assert moment(conv(x, edges)) == pytest.approx(2, rel=1e-4)


def test_rgcn_with_types_of_edges():
    conv = pyg.RGCNConv(5, 8, num_relations=3)
    x, _, edges = graph()
    types = torch.arange(edges.shape[1]) % 3
    pv.variance_init(conv, (x, edges, types), generator=seeded())
    assert moment(conv(x, edges, types)) == pytest.approx(1, rel=1e-4)


def test_the_projection_before_the_aggregation_is_not_touched():
    conv = pyg.SAGEConv(5, 8, project=True)
    before = conv.lin.weight.clone(), conv.lin.bias.clone()
    x, _, edges = graph()
    pv.variance_init(conv, (x, edges))
    assert torch.equal(conv.lin.weight, before[0])
    assert torch.equal(conv.lin.bias, before[1])
    assert not conv.lin_l.bias.any()


def test_z_of_a_probe_is_the_second_moment_under_unit_weights():
    conv = pyg.GCNConv(5, 8)
    x, _, edges = graph()
    report = pv.variance_init(conv, (x, edges), 3.0, generator=seeded())
    drawn = torch.randn(8, 5, generator=seeded())
    torch.testing.assert_close(conv.lin.weight.detach(), drawn * report.layers[0].variance ** 0.5)
    conv.lin.weight.data = drawn
    assert report.layers[0].second_moment == pytest.approx(moment(conv(x, edges)), rel=1e-5)


def test_a_normalised_convolution_is_not_linear():
    conv, head = pyg.SAGEConv(5, 8, normalize=True), pyg.Linear(8, 2)
    model = pyg.Sequential("x, edges", [(conv, "x, edges -> x"), (head, "x -> x")])
    before = conv.lin_l.weight.clone()
    x, _, edges = graph()
    with pytest.warns(UserWarning, match="is not linear in its weights, and is left alone"):
        report = pv.variance_init(model, (x, edges))
    assert list(report.left_alone.values()) == ["not linear in its weights"]
    assert [entry.kind for entry in report.layers] == ["Linear"]
    assert torch.equal(conv.lin_l.weight, before)


def network():
    """Message passing around networks of points, PyG's and torch's linear layers in turn."""

    def call(net, x, pos, edges):
        x = net.points(x, pos, edges).relu()
        x = net.gin(net.edges(x, edges).relu(), edges).relu()
        for conv in net.convs:
            x = conv(x, edges).relu()
        return net.head(x)

    local = nn.Sequential(pyg.Linear(5 + 3, 16), nn.ReLU(), nn.Linear(16, 16))
    return Wired(
        call,
        points=pyg.PointNetConv(local, pyg.Linear(16, 16)),
        edges=pyg.EdgeConv(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), pyg.Linear(16, 16))),
        gin=pyg.GINConv(pyg.MLP([16, 16, 16], norm=None), train_eps=True),
        convs=nn.ModuleList([pyg.GCNConv(16, 16), pyg.SAGEConv(16, 16), pyg.ChebConv(16, 16, K=2)]),
        head=pyg.Linear(16, 3),
    )


NAMES = [
    *("points.local_nn.0", "points.local_nn.2", "points.global_nn"),
    *("edges.nn.0", "edges.nn.2", "gin.nn.lins.0", "gin.nn.lins.1"),
    *("convs.0", "convs.1", "convs.2", "head"),
]


@pytest.mark.parametrize("exact", [False, True])
def test_a_whole_network_gets_the_target_variance(exact):
    net, batch = network(), graph(200)
    report = pv.variance_init(net, batch, exact=exact, generator=seeded())
    assert [entry.name for entry in report.layers] == NAMES
    assert [entry.name for entry in report.layers if entry.note == "probed"] == NAMES[-4:-1]
    assert report.left_alone == {"gin": "no rule for GINConv"}
    margin = 0.001 if exact else 0.95  # 16 channels, or 3, of correlated points: far from their expectation
    pv.testing.assert_variance(net, batch, 1 - margin, 1 / (1 - margin))
    pv.testing.assert_variance(net, batch, 0.999, 1.001, layers="convs.*")


def test_lazy_convolutions_need_a_pass_before():
    net = pyg.GCNConv(-1, 8)
    x, _, edges = graph()
    with pytest.raises(ValueError, match=r"lin\.weight is lazy"):
        pv.variance_init(net, (x, edges))
    net(x, edges)
    pv.variance_init(net, (x, edges))


def test_batches_of_a_geometric_loader():
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    graphs = [Data(x=x, pos=pos, edge_index=edges) for x, pos, edges in (graph(40, seed=i) for i in range(4))]
    net = network()
    loader = DataLoader(graphs, batch_size=2)
    report = pv.variance_init(
        net, loader, forward=lambda model, data: model(data.x, data.pos, data.edge_index), exact=True
    )
    assert report.batches == 2
    assert [entry.name for entry in report.layers] == NAMES
