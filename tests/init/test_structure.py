"""The initialisation walks through whole models: order, shared layers, levels, batches that differ."""

import threading

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, cloud_batch, mlp, moment, noise, weights
from torch import nn

import pointvar as pv


@pytest.mark.parametrize("batches", [1, 2])
def test_layers_are_set_in_order_of_execution(batches):
    layers = {"last": nn.Linear(8, 2), "middle": nn.Linear(8, 8), "first": nn.Linear(4, 8)}
    net = Wired(lambda net, x: net.last(net.middle(net.first(x)).tanh()), **layers, unused=nn.Linear(3, 3))
    x = noise(64, 4)
    unused = net.unused.weight.clone()
    report = pv.variance_init(net, [x] * batches, exact=True, generator=seeded())
    assert [entry.name for entry in report.layers] == ["first", "middle", "last"]
    assert report.left_alone == {"unused": "never reached"}
    assert torch.equal(net.unused.weight, unused)
    pv.testing.assert_variance(net, x, 0.9999, 1.0001)


@pytest.mark.parametrize("batches", [1, 3])
def test_layers_of_one_shape_get_different_weights(batches):
    """Also from torch's global generator, which each pass over several batches sets anew."""
    net = mlp(4)
    pv.variance_init(net, [noise(32, 4, seed=i) for i in range(batches)])
    assert not torch.allclose(net[2].weight / net[2].weight.std(), net[4].weight / net[4].weight.std())
    assert not torch.allclose(net[4].weight / net[4].weight.std(), net[6].weight / net[6].weight.std())


@pytest.mark.parametrize("batches", [1, 2])
def test_a_shared_layer_is_set_at_its_first_call_and_calls_are_counted(batches):
    """It is called again behind the last one that is to be set."""
    net = Wired(lambda net, x: net.a(net.b(net.a(x)).relu()), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    x = noise(64, 4)
    report = pv.variance_init(net, [x] * batches, generator=seeded())
    assert report["a"].second_moment == pytest.approx(float(x.double().square().sum(1).mean()))
    assert (report["a"].calls, report["b"].calls) == (2, 1)
    assert "called 2 times, set at the first" in str(report)


@pytest.mark.parametrize("batches", [1, 2])
def test_tied_weights_are_set_where_they_are_reached_first(batches):
    net = Wired(lambda net, x: net.later(3 * net.first(x)), later=nn.Linear(4, 4), first=nn.Linear(4, 4))
    net.first.weight = net.later.weight
    x = noise(64, 4)
    report = pv.variance_init(net, [x] * batches, exact=True)
    assert [entry.name for entry in report.layers] == ["first"]
    assert report.left_alone == {"later": "shares its weight with first"}
    assert moment(net.first(x)) == pytest.approx(1, rel=1e-5)
    assert [entry.name for entry in pv.standard_init(net).layers] == ["later"]  # the first by registration


def test_a_point_convolution_that_sees_two_radii_is_an_error():
    def two_radii():
        return Wired(
            lambda net, features, a, b: net.conv(net.head(net.conv(features, a)).repeat(1, 2), b),
            conv=pv.MCConv(4, 4, num_basis=4),
            head=nn.Linear(4, 2),
        )

    features, small = cloud_batch(0.3)
    _, large = cloud_batch(0.5)
    for batches in ((features, small, large), [(features, small, large)] * 2):
        net = two_radii()
        before = weights(net)
        with pytest.raises(ValueError, match=r"conv is shared between two .* radius 0.3 and 0.5"):
            pv.variance_init(net, batches)
        assert all(torch.equal(a, b) for a, b in zip(before, weights(net), strict=True))
    pv.variance_init(two_radii(), (features, small, small))  # one radius twice is well
    named = Wired(
        lambda net, f, a, b: net.conv(features=net.conv(f, hood=a), hood=b), conv=pv.MCConv(4, 4, num_basis=4)
    )
    with pytest.raises(ValueError, match="conv is shared between two"):
        pv.variance_init(named, (features, small, large))
    nearest = [pv.knn(small.support, small.support, k) for k in (4, 8)]  # every query has a radius of its own
    assert pv.variance_init(named, (features, *nearest)).layers[0].calls == 2


@pytest.mark.parametrize("radius", [0.2, 0.7])
def test_the_basis_of_pointconv_is_drawn_for_the_radius_it_meets(radius):
    conv = pv.PointConv(4, 4, num_basis=4096)
    pv.variance_init(conv, cloud_batch(radius), generator=seeded())
    # 12,288 numbers: their variance is known within 1.3 %, four standard deviations are 5 %.
    assert moment(conv.basis.linear.weight) == pytest.approx(1 / (3 * radius**2), rel=0.05)
    before = conv.basis.linear.weight.clone()
    conv.basis.requires_grad_(False)
    pv.variance_init(conv, cloud_batch(2 * radius))
    assert torch.equal(conv.basis.linear.weight, before)


class UNet(nn.Module):
    """Two levels, a concatenated skip, a residual sum."""

    def __init__(self):
        super().__init__()
        self.enter, self.down = pv.MCConv(4, 8, num_basis=8), pv.KPConvN(8, 16, num_basis=8)
        self.within, self.up = pv.SPHConv(16, 16), pv.PCCNN(16, 8, num_basis=8)
        self.merge, self.norm, self.drop = nn.Linear(16, 8), nn.GroupNorm(2, 8), nn.Dropout(0.3)
        self.leave = pv.KPConv(8, 3, num_basis=8)

    def forward(self, features, levels):
        fine = self.enter(features, levels.within(0))
        coarse = self.down(fine.relu(), levels.down(0))
        coarse = coarse + self.within(coarse.relu(), levels.within(1))
        up = self.up(coarse.relu(), levels.up(1))
        return self.leave(self.drop(self.norm(self.merge(torch.cat([fine, up], 1)))), levels.within(0))


@pytest.mark.parametrize("batches", [1, 2])
def test_a_network_of_levels_skips_and_sums(batches):
    cloud = pv.PointCloud(torch.rand(300, 3, generator=seeded()))
    levels = pv.Hierarchy(cloud, radii=[0.08, 0.16], max_neighbors=16, generator=seeded())
    batch = noise(levels.clouds[0].num_points, 4), levels
    net = UNet()
    report = pv.variance_init(net, [batch] * batches, exact=True, mode="eval", generator=seeded())
    names = ["enter", "down", "within", "up", "merge", "leave"]
    assert [entry.name for entry in report.layers] == names
    assert report.left_alone == {"norm": "no rule for GroupNorm"}
    assert (report.clouds, report.points) == (batches, batches * levels.clouds[0].num_points)
    pv.testing.assert_variance(net, batch, 0.999, 1.001, mode="eval")


def test_a_layer_that_only_a_later_batch_reaches_is_set():
    net = Wired(
        lambda net, x: net.small(x) if len(x) < 50 else net.large(x),
        small=nn.Linear(4, 4),
        large=nn.Linear(4, 4),
    )
    report = pv.variance_init(net, [noise(10, 4), noise(60, 4), noise(90, 4)])
    assert {entry.name for entry in report.layers} == {"small", "large"}


def test_a_layer_that_is_given_nothing_is_set_by_the_call_that_gives_it_something():
    """As the experts of a mixture, or the weights of each degree of a graph."""

    def call(net, x):
        parts = [expert(x[x[:, 0] > limit]) for expert, limit in zip(net.experts, (1e9, 0, 5), strict=True)]
        return net.head(torch.cat(parts))

    experts = nn.ModuleList(nn.Linear(4, 32) for _ in range(3))
    net = Wired(call, experts=experts, head=nn.Linear(32, 3))
    before = net.experts[0].weight.clone()
    report = pv.variance_init(net, [noise(20, 4), noise(20, 4) + 10], generator=seeded())
    assert report.left_alone == {"experts.0": "its input is empty"}
    assert torch.equal(net.experts[0].weight, before)
    assert [entry.name for entry in report.layers] == ["experts.1", "experts.2", "head"]
    found = pv.variance_report(net, noise(20, 4) + 10)
    assert found.verdict == "healthy"
    assert found.unmeasured == {"experts.0": "never called"}
    with pytest.raises(ValueError, match=r"no layer that could be initialised: .*its input is empty"):
        pv.variance_init(nn.Linear(4, 4), noise(0, 4))


def test_each_batch_takes_one_pass():
    """What is not a layer, such as the search for neighbours in a model, runs once for each batch."""
    searches = []
    net = Wired(
        lambda net, x: net.body(searches.append(len(x)) or x),
        body=nn.Sequential(*(part for _ in range(24) for part in (nn.Linear(4, 4), nn.ReLU()))),
    )
    sizes = [11, 12, 13, 14, 15, 16, 17, 18]
    report = pv.variance_init(net, [noise(n, 4, seed=n) for n in sizes], exact=True, center=0.5)
    assert searches == sizes
    assert (len(report.layers), report.passes, report.batches) == (24, 8, 8)


class Remembers(nn.Module):
    """Keeps something of its input for later in the same pass, as many networks do."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 40), nn.Linear(40, 40)
        self.scale = None

    def forward(self, x):
        self.scale = x.std()
        x = self.one(x).relu()
        return self.two(x / self.scale)


def test_what_a_model_remembers_of_a_batch_is_not_mixed_up_with_another_batch():
    batches = [noise(30, 4) * factor for factor in (1.0, 10.0, 100.0)]
    net = Remembers()
    report = pv.variance_init(net, batches, generator=seeded())
    assert net.scale is None
    inputs = [net.one(x).relu() / x.std() for x in batches]
    expected = sum(float(x.detach().double().square().sum(1).mean()) for x in inputs) / 3
    assert report["two"].second_moment == pytest.approx(expected, rel=1e-5)


def test_what_torch_keeps_for_each_thread_holds_for_several_batches_too():
    seen = []
    net = Wired(lambda net, x: seen.append((torch.is_grad_enabled(), y := net.linear(x))) or y, linear=mlp(2))
    with torch.autocast("cpu", torch.bfloat16):
        pv.variance_init(net, [noise(8, 4), noise(8, 4)])
    assert [grad for grad, _ in seen] == [False, False]
    assert {y.dtype for _, y in seen} == {torch.bfloat16}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("center", [0.0, 1.0])
def test_autocast_around_the_call_or_inside_of_the_model(center, inside, batches):
    """It keeps casts of weights, which are other weights by then; and each thread has its own."""

    def call(net, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside or torch.is_autocast_enabled("cpu")):
            return net.linear(x)

    net, every = Wired(call, linear=mlp(3)), [3 + noise(64, 4, seed=seed) for seed in range(batches)]
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        net(every[0])
        pv.variance_init(net, every, exact=True, center=center)
        found = pv.variance_report(net, torch.cat(every))
    assert torch.is_autocast_cache_enabled()
    assert [layer.variance for layer in found.layers] == pytest.approx([1.0] * len(found.layers), rel=0.05)


def test_an_error_in_one_of_several_batches_ends_all_threads():
    before = threading.active_count()
    net = Wired(
        lambda net, x: net.b(net.a(x) / (1 if len(x) < 9 else [])), a=nn.Linear(4, 4), b=nn.Linear(4, 4)
    )
    with pytest.raises(TypeError, match="unsupported operand"):
        pv.variance_init(net, [noise(8, 4), noise(9, 4), noise(8, 4)])
    assert threading.active_count() == before


def test_a_forward_that_reaches_no_layer_is_an_error():
    with pytest.raises(ValueError, match="never reached"):
        pv.variance_init(nn.Linear(4, 4), noise(5, 4), forward=lambda model, x: x)


def test_a_model_may_switch_gradients_on():
    def derivative(net, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(net.outer(net.inner(x).tanh()).sum(), x)[0]

    net = Wired(derivative, inner=nn.Linear(4, 4), outer=nn.Linear(4, 1, bias=False))
    assert len(pv.variance_init(net, noise(8, 4), exact=True).layers) == 2


def test_a_compiled_model_is_initialised_by_its_own_names():
    net = mlp()
    report = pv.variance_init(torch.compile(net, backend="eager"), noise(8, 4))
    assert [entry.name for entry in report.layers] == ["0", "2", "4"]
