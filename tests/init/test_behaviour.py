"""What the initialisation does to whole models, with every option, and what it leaves as it was."""

import copy

import pytest
import torch
from convolution_cases import seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pointvar as pv


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


def moment(tensor):
    return float(tensor.detach().double().square().mean())


def mlp(depth=3, width=16, **options):
    layers = [nn.Linear(4 if i == 0 else width, width, **options) for i in range(depth)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def cloud_batch(radius=0.35, points=120, channels=4, seed=0):
    cloud = pv.PointCloud(torch.rand(points, 3, generator=seeded(seed)), [points // 2] * 2)
    return noise(points, channels, seed=seed), pv.ball_query(cloud, cloud, radius)


# Structure of the model


class Backwards(nn.Module):
    """Registers its layers in another order than it calls them."""

    def __init__(self):
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(8, 2), nn.Linear(8, 8), nn.Linear(4, 8)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.middle(self.first(x)).tanh())


@pytest.mark.parametrize("batches", [1, 2])
def test_layers_are_set_in_order_of_execution(batches):
    net, x = Backwards(), noise(64, 4)
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


class Shared(nn.Module):
    """The first layer is called again behind the last one that is to be set."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.b(self.a(x)).relu())


@pytest.mark.parametrize("batches", [1, 2])
def test_a_shared_layer_is_set_at_its_first_call_and_calls_are_counted(batches):
    net, x = Shared(), noise(64, 4)
    report = pv.variance_init(net, [x] * batches, generator=seeded())
    assert report["a"].second_moment == pytest.approx(float(x.double().square().sum(1).mean()))
    assert (report["a"].calls, report["b"].calls) == (2, 1)
    assert "called 2 times, set at the first" in str(report)


@pytest.mark.parametrize("batches", [1, 2])
def test_tied_weights_are_set_where_they_are_reached_first(batches):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.later, self.first = nn.Linear(4, 4), nn.Linear(4, 4)
            self.first.weight = self.later.weight

        def forward(self, x):
            return self.later(3 * self.first(x))

    net, x = Tied(), noise(64, 4)
    report = pv.variance_init(net, [x] * batches, exact=True)
    assert [entry.name for entry in report.layers] == ["first"]
    assert report.left_alone == {"later": "shares its weight with first"}
    assert moment(net.first(x)) == pytest.approx(1, rel=1e-5)
    assert [entry.name for entry in pv.standard_init(net).layers] == ["later"]  # the first by registration


def test_a_point_convolution_that_sees_two_radii_is_an_error():
    class TwoRadii(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pv.MCConv(4, 4, num_basis=4)
            self.head = nn.Linear(4, 2)

        def forward(self, features, small, large):
            return self.conv(self.head(self.conv(features, small)).repeat(1, 2), large)

    features, small = cloud_batch(0.3)
    _, large = cloud_batch(0.5)
    for batches in ((features, small, large), [(features, small, large)] * 2):
        net = TwoRadii()
        before = weights(net)
        with pytest.raises(ValueError, match=r"conv is shared between two .* radius 0.3 and 0.5"):
            pv.variance_init(net, batches)
        assert all(torch.equal(a, b) for a, b in zip(before, weights(net), strict=True))
    pv.variance_init(TwoRadii(), (features, small, small))  # one radius twice is well


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
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.small(x) if len(x) < 50 else self.large(x)

    report = pv.variance_init(Branch(), [noise(10, 4), noise(60, 4), noise(90, 4)])
    assert {entry.name for entry in report.layers} == {"small", "large"}


def test_a_forward_that_reaches_no_layer_is_an_error():
    with pytest.raises(ValueError, match="never reached"):
        pv.variance_init(nn.Linear(4, 4), noise(5, 4), forward=lambda model, x: x)


def test_a_model_may_switch_gradients_on():
    class Force(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.bias_free = nn.Linear(4, 4), nn.Linear(4, 1, bias=False)

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.bias_free(self.inner(x).tanh()).sum(), x)[0]

    net = Force()
    assert len(pv.variance_init(net, noise(8, 4), exact=True).layers) == 2


def test_a_compiled_model_is_initialised_by_its_own_names():
    net = mlp()
    report = pv.variance_init(torch.compile(net, backend="eager"), noise(8, 4))
    assert [entry.name for entry in report.layers] == ["0", "2", "4"]


# Options


def test_targets_by_number_pattern_and_function():
    x = noise(64, 4)
    for target, expected in {
        2.0: [2, 2, 2],
        lambda name, module: 1.0 + int(name): [1, 3, 5],
    }.items():
        report = pv.variance_init(mlp(), x, target, exact=True)
        assert [entry.target for entry in report.layers] == expected
    net = mlp()
    report = pv.variance_init(net, x, {"2": 4.0, "[0-2]": 0.25}, exact=True)
    assert [entry.target for entry in report.layers] == [0.25, 4, 1]
    assert moment(net[:3](x)) == pytest.approx(4, rel=1e-5)


@pytest.mark.parametrize("start", [pv.variance_init, pv.data_dependent_init])
def test_wrong_targets(start):
    for target in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"positive and finite, got .* for 0"):
            start(mlp(), noise(8, 4), target)
    with pytest.raises(ValueError, match="'tail', which is the name of no layer"):
        start(mlp(), noise(8, 4), {"tail": 2.0})


@pytest.mark.parametrize("batches", [1, 3])
def test_exact_gives_the_target_on_the_data(batches):
    data = [noise(40, 4, seed=i) for i in range(batches)]
    net = mlp()
    report = pv.variance_init(net, data, 0.7, exact=True)
    for i in (1, 3, 5):
        measured = sum(moment(net[:i](x)) for x in data) / batches
        assert measured == pytest.approx(0.7, rel=1e-5)
    # In expectation Var[w] = target / Z; the exact factor is around it.
    for entry, layer in zip(report.layers, net[::2], strict=True):
        assert entry.variance == pytest.approx(0.7 / entry.second_moment, rel=0.8)
        assert moment(layer.weight) == pytest.approx(entry.variance, rel=0.8)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(8, 5),
        nn.Linear(5, 8),
        nn.Conv1d(3, 4, 5),
        nn.ConvTranspose1d(3, 20, 2),
        nn.Bilinear(2, 3, 4),
    ],
    ids=str,
)
def test_orthogonal_draws(layer):
    out_dim = 1 if isinstance(layer, nn.ConvTranspose1d) else 0
    data = {nn.Linear: [noise(9, getattr(layer, "in_features", 1))], nn.Bilinear: [noise(9, 2), noise(9, 3)]}
    batch = data.get(type(layer), [noise(9, 3, 9)])
    report = pv.variance_init(layer, tuple(batch), orthogonal=True, generator=seeded())
    matrix = layer.weight.detach().movedim(out_dim, 0).flatten(1)
    small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    expected = report.layers[0].variance * max(matrix.shape) * torch.eye(len(small))
    torch.testing.assert_close(small, expected, rtol=1e-4, atol=1e-5)


def test_orthogonal_point_convolution():
    conv = pv.KPConv(4, 6, num_basis=3)
    pv.variance_init(conv, cloud_batch(), orthogonal=True)
    matrix = conv.weight.detach().flatten(0, 1).T
    small = matrix @ matrix.T
    torch.testing.assert_close(small, small[0, 0] * torch.eye(6), rtol=1e-4, atol=1e-5)


def test_lsuv_is_orthogonal_and_exact():
    x = noise(64, 4)
    a, b = mlp(), mlp()
    report = pv.lsuv_init(a, x, generator=seeded())
    pv.variance_init(b, x, orthogonal=True, exact=True, generator=seeded())
    assert report.method == "LSUV"
    assert same(a, b)
    pv.testing.assert_variance(a, x, 0.9999, 1.0001)
    square = a[2].weight.detach()
    product = square @ square.T
    torch.testing.assert_close(product, product[0, 0] * torch.eye(16), rtol=1e-4, atol=1e-5)


def test_the_generator_fixes_the_weights():
    a, b, c = mlp(), mlp(), mlp()
    for net, seed in ((a, 1), (b, 1), (c, 2)):
        pv.variance_init(net, noise(16, 4), generator=seeded(seed))
    assert same(a, b)
    assert not same(a, c)
    for net in (a, b):
        torch.manual_seed(5)
        pv.variance_init(net, noise(16, 4))
    assert same(a, b)


@pytest.mark.parametrize("batches", [1, 2])
def test_modes(batches):
    """Dropout multiplies the second moment by 1 / (1 - p) in training."""
    x = torch.ones(4000, 4)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4))
    z = {
        mode: pv.variance_init(net, [x] * batches, mode=mode).layers[0].second_moment
        for mode in ("train", "eval", None)
    }
    assert z["eval"] == pytest.approx(4)
    assert z["train"] == pytest.approx(8, rel=0.1)  # 16,000 coins: 0.8 % deviation
    assert z[None] == pytest.approx(8, rel=0.1)
    net.eval()
    assert pv.variance_init(net, x, mode=None).layers[0].second_moment == pytest.approx(4)
    with pytest.raises(ValueError, match="mode must be 'train', 'eval' or None"):
        pv.variance_init(net, x, mode="test")


def test_biases_are_zeroed_or_kept_and_never_measured():
    x = noise(64, 4)
    for bias in ("zero", "keep"):
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
        with torch.no_grad():
            net[0].bias.fill_(7.0)
        report = pv.variance_init(net, x, bias=bias, exact=True)
        assert torch.equal(net[0].bias, torch.full((8,), 0.0 if bias == "zero" else 7.0))
        assert moment(net[0](x) - net[0].bias) == pytest.approx(1, rel=1e-5)
        # The second layer sees the bias of the first: 8 channels of about 1 + 49.
        assert report["1"].second_moment == pytest.approx(float(net[0](x).detach().square().sum(1).mean()))
    with pytest.raises(ValueError, match="bias must be 'zero' or 'keep'"):
        pv.variance_init(net, x, bias="ones")


# Kinds of batches


def test_every_way_to_give_batches():
    data, labels = noise(32, 4), torch.arange(32)
    loader = DataLoader(TensorDataset(data, labels), batch_size=8)
    chunks = list(data.split(8))
    nets = {name: mlp() for name in ("list", "loader", "generator", "dicts", "tuples")}
    take = lambda model, batch: model(batch[0])  # noqa: E731
    pv.variance_init(nets["list"], chunks, generator=seeded())
    pv.variance_init(nets["loader"], loader, forward=take, generator=seeded())
    pv.variance_init(nets["generator"], (x for x in chunks), generator=seeded())
    pv.variance_init(nets["dicts"], [{"input": x} for x in chunks], generator=seeded())
    pv.variance_init(nets["tuples"], [(x,) for x in chunks], generator=seeded())
    assert all(same(net, nets["list"]) for net in nets.values())
    one, other = mlp(), mlp()
    pv.variance_init(one, data, generator=seeded())
    pv.variance_init(other, {"input": data}, generator=seeded())
    assert same(one, other)


def test_num_batches_takes_no_more_than_it_needs():
    taken = []

    def batches():
        for i in range(10):
            taken.append(i)
            yield noise(8, 4, seed=i)

    report = pv.variance_init(mlp(), batches(), num_batches=3)
    assert (report.batches, taken) == (3, [0, 1, 2])
    assert report.to_dict()["batches"] == 3
    for count in (0, -1):
        with pytest.raises(ValueError, match="num_batches must be at least 1"):
            pv.variance_init(mlp(), batches(), num_batches=count)


def test_wrong_kinds_of_batches():
    features, hood = cloud_batch()
    conv = pv.KPConv(4, 4)
    with pytest.raises(TypeError, match="a Neighborhood is no batch"):
        pv.variance_init(conv, hood)
    with pytest.raises(TypeError, match="give one batch as a tuple"):
        pv.variance_init(conv, [features, hood])
    for wrong in (None, "modelnet40", 3, {1, 2}, conv, TensorDataset(features)):
        with pytest.raises(TypeError, match=r"batches must be one batch .* got " + type(wrong).__name__):
            pv.variance_init(conv, wrong)
    for empty in ([], iter(())):
        with pytest.raises(ValueError, match="no batches"):
            pv.variance_init(conv, empty)


# What stays as it was


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
