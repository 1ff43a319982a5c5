"""What the initialisation leaves as it was, and inputs that no weights can be derived from."""

import copy

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import mlp, noise, same, weights
from torch import nn

import pointvar as pv


class Everything(nn.Module):
    """Batch norm, dropout, a buffer that each pass replaces, and a module in another mode than the rest."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.frozen, self.b = nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("count", torch.zeros(1))
        self.frozen.requires_grad_(False)
        self.frozen.eval()
        self.fail: BaseException | None = None

    def forward(self, x):
        self.count = self.count + 1
        x = self.b(self.frozen(self.drop(self.norm(self.a(x))).relu()))
        if self.fail is not None:
            raise self.fail
        return x


def state(net):
    return {
        "tensors": {k: v.clone() for k, v in net.state_dict().items()},
        "identity": {k: id(v) for k, v in net.state_dict(keep_vars=True).items()},
        "modes": [m.training for m in net.modules()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "trainable": [p.requires_grad for p in net.parameters()],
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules()],
        "random": torch.get_rng_state(),
    }


SET = ("a.weight", "a.bias", "b.weight", "b.bias")
INITIALISATIONS = {
    "one batch": lambda net, x, **o: pv.variance_init(net, x, exact=True, **o),
    "batches": lambda net, x, **o: pv.variance_init(net, [x, x], **o),
    "per channel": lambda net, x, **o: pv.data_dependent_init(net, [x, x], **o),
}


@pytest.mark.parametrize("mode", ["train", "eval", None])
@pytest.mark.parametrize("start", INITIALISATIONS.values(), ids=INITIALISATIONS)
def test_nothing_but_the_layers_changes(start, mode):
    net, x = Everything(), noise(32, 4)
    net(x).sum().backward()
    before = state(net)
    start(net, x, mode=mode)
    after = state(net)
    for name in list(before["tensors"]):
        changed = not torch.equal(before["tensors"].pop(name), after["tensors"].pop(name))
        assert changed == (name in SET)
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("error", [RuntimeError("half-way"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("start", INITIALISATIONS.values(), ids=INITIALISATIONS)
def test_an_exception_leaves_the_model_as_it_was(start, error):
    net, x = Everything(), noise(32, 4)
    net(x).sum().backward()
    before = state(net)
    net.fail = error
    with pytest.raises(type(error)):
        start(net, x)
    torch.testing.assert_close(state(net), before, rtol=0, atol=0, equal_nan=True)


def test_weights_are_still_leaves_that_train():
    net, x = mlp(), noise(16, 4)
    optimiser = torch.optim.SGD(net.parameters(), 0.1)  # made before: the tensors must be the same
    before = [id(p) for p in net.parameters()]
    pv.variance_init(net, x)
    assert before == [id(p) for p in net.parameters()]
    now = copy.deepcopy(net)
    net(x).square().mean().backward()
    optimiser.step()
    assert not same(net, now)


# What weights cannot be derived from

BAD = {
    "zeros": (0.0, "is 0 everywhere"),
    "nan": (float("nan"), "not finite"),
    "inf": (float("inf"), "not finite"),
}


@pytest.mark.parametrize("start", INITIALISATIONS.values(), ids=INITIALISATIONS)
@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD)
def test_inputs_without_a_second_moment_are_errors_that_name_the_layer(value, message, start):
    net = nn.Sequential(nn.Identity(), nn.Linear(4, 4, bias=False))
    before = weights(net)
    with pytest.raises(ValueError, match=rf"^1: its .*{message}"):
        start(net, torch.full((8, 4), value))
    assert torch.equal(net[1].weight, before[0])


def test_a_layer_without_neighbours_is_an_error_that_names_it():
    net = nn.Module()
    net.conv = pv.KPConv(4, 4)
    net.forward = lambda features, hood: net.conv(features, hood)
    support = pv.PointCloud(torch.rand(20, 3, generator=seeded()))
    far = pv.PointCloud(torch.rand(5, 3, generator=seeded()) + 10)
    with pytest.raises(ValueError, match=r"^conv: its input is 0 everywhere \(are there neighbours\?"):
        pv.variance_init(net, (noise(20, 4), pv.ball_query(support, far, 0.2)))


# Gates

GATES = {
    "a density net": lambda: nn.Sequential(
        *(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1), nn.ReLU())
    ),
    "one number": lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU()),
}


def gated(gate):
    net = nn.ModuleDict({"gate": gate, "body": nn.Linear(4, 64), "head": nn.Linear(64, 3)})
    net.forward = lambda x: net["head"](net["body"](x).relu() * net["gate"](x.norm(dim=1, keepdim=True)))
    return net


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("make", GATES.values(), ids=GATES)
def test_a_draw_does_not_shut_a_gate(make, batches):
    """All its inputs are positive: with any one sign of the weights a ReLU lets nothing through."""
    for seed in range(12):
        net = gated(make())
        report = pv.variance_init(net, [noise(50, 4, seed=i) for i in range(batches)], generator=seeded(seed))
        assert report.left_alone == {}
        assert net(noise(50, 4)).any()


class Shut(nn.Module):
    def forward(self, x):
        return 0 * x


@pytest.mark.parametrize("start", [INITIALISATIONS["one batch"], INITIALISATIONS["batches"]])
def test_a_layer_behind_a_gate_that_stays_shut_is_left_alone_with_a_warning(start):
    net = nn.Sequential(nn.Linear(4, 8), Shut(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    before = net[2].weight.clone()
    net[2].bias.data.fill_(1.0)
    with pytest.warns(UserWarning, match=r"^2 is left alone: its input is 0 everywhere"):
        report = start(net, noise(32, 4))
    assert list(report.left_alone) == ["2"]
    assert torch.equal(net[2].weight, before)
    assert bool(net[2].bias.eq(1).all())
