"""Any network without its batch norms: networks that know nothing of this library, written as anyone
would."""

import copy
import json
import warnings

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, moment, noise
from torch import nn

import pointvar as pv
from pointvar.init.center import Centering
from pointvar.nn import Affine


class TNet(nn.Module):
    """A matrix for each cloud, near the identity: by an addition, or by its bias."""

    def __init__(self, size, added):
        super().__init__()
        self.size, self.added = size, added
        self.points = nn.Sequential(nn.Conv1d(size, 32, 1), nn.BatchNorm1d(32), nn.ReLU())
        self.last = nn.Linear(32, size * size)
        if not added:
            nn.init.normal_(self.last.weight, std=1e-3)
            self.last.bias.data.copy_(torch.eye(size).flatten())

    def forward(self, x):
        matrix = self.last(self.points(x).amax(2))
        if self.added:
            matrix = matrix + torch.eye(self.size).flatten().repeat(len(x), 1)
        return matrix.view(-1, self.size, self.size)


class PointNet(nn.Module):
    def __init__(self, added=True):
        super().__init__()
        self.head = nn.Sequential(
            *(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(32, 5),
        )
        self.transform = TNet(3, added)
        self.points = nn.Sequential(
            *(nn.Conv1d(3, 32, 1, bias=False), nn.BatchNorm1d(32), nn.ReLU()),
            *(nn.Conv1d(32, 64, 1, bias=False), nn.BatchNorm1d(64), nn.ReLU()),
        )

    def forward(self, x):
        x = x.transpose(1, 2)
        return self.head(self.points(self.transform(x) @ x).amax(2))


class Block(nn.Module):
    """Two layers beside a stream; the gain of the last norm begins at 0, or the last layer, or a gate."""

    def __init__(self, width, start):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.last = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.gate = nn.Parameter(torch.zeros(())) if start == "gate" else 1.0
        if start == "gain":
            nn.init.zeros_(self.last.weight)
        if start == "weight":
            nn.init.zeros_(self.two.weight)
            nn.init.zeros_(self.two.bias)

    def forward(self, x):
        return x + self.gate * self.last(self.two(self.norm(self.one(x)).relu()))


class Residual(nn.Module):
    def __init__(self, start="", depth=5, width=48):
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.blocks = nn.Sequential(*(Block(width, start) for _ in range(depth)))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).relu())


class EdgeConv(nn.Module):
    """Of DGCNN: differences to the nearest neighbours in feature space."""

    def __init__(self, i, o):
        super().__init__()
        self.edges = nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))

    def forward(self, x):
        near = torch.cdist(x, x).topk(6, largest=False).indices
        neighbours = torch.stack([cloud[index] for cloud, index in zip(x, near, strict=True)])
        here = x[:, :, None].expand_as(neighbours)
        return self.edges(torch.cat([here, neighbours - here], 3).permute(0, 3, 1, 2)).amax(3).transpose(1, 2)


def dgcnn():
    def call(net, x):
        found = []
        for conv in (net.one, net.two, net.three):
            found.append(x := conv(x))
        return net.head(net.norm(net.wide(torch.cat(found, 2)).transpose(1, 2)).relu().amax(2))

    edges = {"one": EdgeConv(3, 32), "two": EdgeConv(32, 32), "three": EdgeConv(32, 64)}
    return Wired(
        call, **edges, wide=nn.Linear(128, 64, bias=False), norm=nn.BatchNorm1d(64), head=nn.Linear(64, 5)
    )


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.stem = nn.Sequential(nn.Linear(3, 32), nn.LayerNorm(32))
        self.attention = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        x = self.stem(x) + self.token
        for attention, mlp in zip(self.attention, self.mlps, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + mlp(x)
        return self.head(x.mean(1))


class ChannelsLast(nn.Module):
    """A wrapper that turns its input so that torch's norm can take it."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def wrapped():
    body = [part for _ in range(3) for part in (nn.LazyLinear(32), ChannelsLast(32), nn.ReLU())]
    net = nn.Sequential(*body, nn.Linear(32, 5))
    net(noise(4, 40, 3))
    return net


NETWORKS = {
    "PointNet": PointNet,
    "PointNet, identity": lambda: PointNet(added=False),
    "DGCNN": dgcnn,
    "transformer": Transformer,
    "wrapper": wrapped,
    "residual": Residual,
}


def clouds(seed=0, count=6):
    """Boxes of different shapes: clouds that can be told apart."""
    sizes = 0.2 + torch.rand(count, 1, 3, generator=seeded(seed))
    return torch.rand(count, 40, 3, generator=seeded(seed + 1)) * sizes


def data_of(net):
    return clouds().flatten(0, 1) if isinstance(net, Residual) else clouds()


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_one_call(make, batches):
    torch.manual_seed(0)
    net = make()
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    x = data_of(net)
    report = pv.norm_free(net, [x] * batches, generator=seeded(5))
    assert sorted(report.norms) == sorted(norms)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    assert all(isinstance(net.get_submodule(name), Affine) for name in norms)
    assert report.variance.headline == "variance by layer: healthy"
    assert report.share > 0.98
    goals = report.branches | {"transform.last": 0.01 / 3}
    for layer in report.variance.layers:
        assert layer.variance == pytest.approx(goals.get(layer.name, 1), rel=0.01)
    assert report.init.passes == batches
    net.train()
    assert len(net(x[:1])) == 1  # a single cloud, or point, can be trained on
    optimizer = torch.optim.AdamW(net.parameters(), report.settings["rate"])
    assert net.get_submodule(report.head).out_features == 5  # the last by execution
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_dry_run_tells_the_same_and_touches_nothing(make):
    torch.manual_seed(0)
    net, generator = make(), seeded(5)
    x = data_of(net)
    before, modules = copy.deepcopy(net.state_dict()), list(net.modules())
    random = torch.get_rng_state(), generator.get_state()
    tried = pv.norm_free(net, x, apply=False, generator=generator)
    assert list(net.modules()) == modules
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random[0])
    assert torch.equal(generator.get_state(), random[1])
    done = pv.norm_free(net, x, generator=generator)
    assert not tried.applied
    tried.applied, tried.init.seconds, done.init.seconds = True, 0.0, 0.0
    assert tried.to_dict() == done.to_dict()


def test_a_dry_run_of_a_model_that_remembers_and_of_a_fused_encoder():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(3, 32), nn.LayerNorm(32))
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            self.passes += 1
            self.features = self.stem(x)  # part of a graph, which cannot be copied
            return self.encoder(self.features)

    net = Remembers()
    net(clouds())
    features, before = net.features, copy.deepcopy(net.state_dict())
    assert len(pv.norm_free(net, clouds(), apply=False, norms="all").norms) == 3
    assert net.features is features
    assert net.encoder.activation_relu_or_gelu == 1
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_an_error_puts_everything_back():
    net = PointNet()
    before, modules = copy.deepcopy(net.state_dict()), list(net.modules())

    def forward(net, x):
        if not any(isinstance(m, nn.BatchNorm1d) for m in net.modules()) and not torch.is_grad_enabled():
            net(x)
            raise RuntimeError("half-way")
        return net(x)

    with pytest.raises(RuntimeError, match="half-way"):
        pv.norm_free(net, clouds(), forward)
    assert list(net.modules()) == modules
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# Norms


def test_a_gain_and_a_bias_take_the_place_of_a_norm():
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
    net[1].weight.data, net[1].bias.data = noise(4), noise(4, seed=1)
    net[1].bias.requires_grad_(False)
    gain, bias, x = net[1].weight.clone(), net[1].bias.clone(), noise(2, 3, 5, 5)
    assert pv.nn.remove_norms(net) == {"1": "BatchNorm2d"}
    y = net[0](x)
    for c in range(4):
        torch.testing.assert_close(net(x)[:, c], gain[c] * y[:, c] + bias[c])
    assert (net[1].gain.requires_grad, net[1].bias.requires_grad) == (True, False)


def every_norm():
    """One of each kind, with what each takes."""
    pytorch = {
        "batch": (nn.BatchNorm1d(6), noise(8, 6)),
        "batch of points": (nn.BatchNorm1d(6), noise(8, 6, 5)),
        "plain batch": (nn.BatchNorm1d(6, affine=False), noise(8, 6)),
        "synchronised": (nn.SyncBatchNorm(6), noise(8, 6, 5)),
        "group": (nn.GroupNorm(2, 6), noise(8, 6, 5)),
        "layer": (nn.LayerNorm(6), noise(8, 5, 6)),
        "image": (nn.LayerNorm((5, 6)), noise(8, 5, 6)),
        "root": (nn.RMSNorm(6), noise(8, 5, 6)),
        "instance": (nn.InstanceNorm1d(6, affine=True), noise(8, 6, 5)),
        "plain instance": (nn.InstanceNorm2d(6), noise(8, 6, 5, 5)),
    }
    cloud = pv.PointCloud(torch.rand(8, 3), [3, 5])
    ours = {name: (pv.nn.make_norm(name, 6), noise(8, 6), cloud) for name in ("batch", "group", "layer")}
    return {**pytorch, **{f"our {name}": case for name, case in ours.items()}}


@pytest.mark.parametrize("name", every_norm())
def test_norms_of_every_kind(name):
    norm, *inputs = every_norm()[name]
    net, kept = nn.ModuleDict({"norm": norm}), "batch" not in name and name != "synchronised"
    replaced = pv.nn.remove_norms(net)
    assert bool(replaced) != kept
    pv.nn.remove_norms(net, "all")
    torch.testing.assert_close(net["norm"](*inputs), inputs[0])  # a gain of 1, a bias of 0
    with pytest.raises(ValueError, match="itself a norm"):
        pv.nn.remove_norms(nn.BatchNorm1d(6))
    with pytest.raises(ValueError, match="norms must be 'batch' or 'all'"):
        pv.nn.remove_norms(net, "none")


def test_a_norm_in_two_places_stays_one():
    norm = nn.BatchNorm1d(4)
    net = nn.Sequential(norm, nn.Linear(4, 4), norm)
    assert pv.nn.remove_norms(net) == {"0": "BatchNorm1d"}
    assert net[0] is net[2]


class Transposed(nn.BatchNorm1d):
    """Of a library whose channels come last."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Activated(nn.BatchNorm1d):
    """A norm and an activation in one, with its own call of the function."""

    def forward(self, x):
        x, batch = x.transpose(1, 2), self.training or self.running_mean is None
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return nn.functional.batch_norm(x, *statistics, batch, 0.1, self.eps).transpose(1, 2).relu()


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("norm", [Transposed, Activated])
def test_a_norm_with_a_forward_of_its_own_keeps_what_else_it_does(norm, options):
    net = nn.Sequential(nn.Linear(3, 16, bias=False), norm(16, **options), nn.Linear(16, 40))
    if "affine" not in options:
        net[1].weight.data, net[1].bias.data = noise(16), noise(16, seed=1)
        net[1].bias.requires_grad_(False)
    gain, bias = (torch.ones(16), torch.zeros(16)) if "affine" in options else (net[1].weight, net[1].bias)
    x, before = clouds(), copy.deepcopy(net[1].state_dict())
    old = net[1]
    report = pv.norm_free(net, x, generator=seeded(1))
    assert report.norms == {"1": norm.__name__}
    assert (report.share, report.functions) == (1, {})
    for mode in (True, False):
        y = net[0](x) * gain + bias
        torch.testing.assert_close(net.train(mode)[1](net[0](x)), y.relu() if norm is Activated else y)
    assert [p.requires_grad for p in net[1].parameters()] == [True, "affine" in options]
    assert pv.nn.remove_norms(net, "all") == {}  # once is enough
    assert old.training
    assert all(torch.equal(value, before[name]) for name, value in old.state_dict().items())


def test_a_norm_with_a_forward_of_its_own_may_be_folded_or_zero():
    net = nn.Sequential(nn.Linear(3, 16), Activated(16), nn.Linear(16, 5))
    for _ in range(3):
        net(clouds())
    expected = net.eval()(clouds())
    pv.norm_free(net, clouds(), fold=True)
    torch.testing.assert_close(net.train()(clouds()), expected)

    def call(net, x):
        x = net.stem(x)
        return net.head(x + net.norm(net.branch(x)))

    parts = {"stem": nn.Linear(3, 16), "branch": nn.Linear(16, 16), "norm": Transposed(16)}
    net = Wired(call, **parts, head=nn.Linear(16, 5))
    nn.init.zeros_(net.norm.weight)
    report = pv.norm_free(net, clouds())
    assert report.kept == {"norm.norm.weight": "the gain of its norm is 0 on purpose"}
    assert report.branches == {}
    assert not net.norm.norm.weight.any()


@pytest.mark.parametrize("norms", ["batch", "all"])
def test_the_encoder_of_torch_works_in_evaluation_too(norms):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(16, 3))
    x = noise(4, 9, 16)
    report = pv.norm_free(net, x, norms=norms, generator=seeded(1))
    assert len(report.norms) == (4 if norms == "all" else 0)
    net.eval()
    with torch.no_grad():
        fast = net(x)
    torch.testing.assert_close(fast, net(x).detach())


def test_folding_keeps_what_a_trained_network_computes():
    net, x = PointNet(), clouds()
    for _ in range(20):
        net(x)
    net.eval()
    expected = net(x)
    weights = net.points[0].weight.clone()
    report = pv.norm_free(net, x, fold=True)
    torch.testing.assert_close(net(x), expected)
    assert torch.equal(net.points[0].weight, weights)
    assert report.init is None
    assert len(report.norms) == 4
    bare = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ValueError, match="1 has no running statistics to fold in"):
        pv.norm_free(bare, noise(8, 4), fold=True)
    assert isinstance(bare[1], nn.BatchNorm1d)


# What is 0 on purpose, and streams


@pytest.mark.parametrize("start", ["gain", "weight", "gate"])
def test_what_is_zero_on_purpose_stays(start):
    net = Residual(start)
    report = pv.norm_free(net, noise(60, 3), generator=seeded(1))
    names = {"gain": "blocks.0.last.gain", "weight": "blocks.0.two", "gate": "blocks.0.gate"}
    assert names[start] in report.kept
    assert len(report.kept) == 5
    assert report.branches == {}
    assert report.share == 1
    x = noise(60, 3)
    torch.testing.assert_close(net.blocks(net.stem(x)), net.stem(x))
    assert report.variance.verdict == "healthy"


@pytest.mark.parametrize(("residual", "low", "high"), [("scale", 1.5, 3), ("zero", 1, 1), ("keep", 4, 10)])
def test_a_stream_neither_grows_nor_dies(residual, low, high):
    net, x = Residual(width=256), noise(200, 3)
    report = pv.norm_free(net, x, residual=residual, generator=seeded(1))
    assert list(report.branches) == [f"blocks.{i}.two" for i in range(5)]
    assert set(report.branches.values()) == {1.0 if residual == "keep" else 0.2}
    assert low * 0.999 < moment(net.blocks(net.stem(x))) < high * 1.001
    with pytest.raises(ValueError, match="residual must be"):
        pv.norm_free(net, x, residual="none")


def projected():
    """A shortcut with a layer of its own, an addition in place, positions that are no branch, and a gate."""

    def call(net, x):
        stream = net.stem(x)
        y = net.two(net.one(stream).relu())
        y += net.shortcut(stream)
        y = y + net.positions(x.tanh())
        return net.head(y * net.gate(y).sigmoid())

    layers = {"stem": (3, 64), "one": (64, 64), "two": (64, 64), "shortcut": (64, 64), "gate": (64, 64)}
    made = {name: nn.Linear(*sizes) for name, sizes in layers.items()}
    return Wired(call, **made, positions=nn.Linear(3, 64), head=nn.Linear(64, 4))


def test_shortcuts_have_layers_and_not_every_sum_is_a_stream():
    report = pv.norm_free(projected(), noise(50, 3))
    assert report.branches == {"two": 1.0}

    def equals(net, x):  # two ways of the same length: neither is a stream
        x = net.stem(x)
        return net.head(net.b(net.a(x).relu()) + net.d(net.c(x).relu()))

    pair = {name: nn.Linear(32, 32) for name in "abcd"}
    net = Wired(equals, stem=nn.Linear(3, 32), **pair, head=nn.Linear(32, 4))
    assert pv.norm_free(net, noise(50, 3)).branches == {}


@pytest.mark.parametrize("added", [True, False])
def test_the_transform_of_pointnet_stays_near_the_identity(added):
    net, x = PointNet(added), clouds()
    report = pv.norm_free(net, x)
    matrices = net.transform(x.transpose(1, 2)).detach()
    assert float((matrices - torch.eye(3)).square().mean()) < 0.01
    assert report.kept == ({} if added else {"transform.last": "its bias is the identity matrix"})


# The report


def test_the_report_as_text_and_numbers():
    net = nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.GRU(32, 8))
    with pytest.warns(
        UserWarning, match=r"only \d\d% of the parameters were set; not: 3.weight_ih_l0 \(\d\d%\)"
    ):
        report = pv.norm_free(net, clouds(), lambda net, x: net(x.flatten(0, 1)))
    assert report.left_alone["3.weight_ih_l0"] == ("not linear in its weights", 24 * 32)
    left = sum(p.numel() for p in net[3].parameters())
    assert report.share == pytest.approx(1 - left / report.parameters)
    assert report.parameters == sum(p.numel() for p in net.parameters())
    lines = str(report).splitlines()
    assert lines[0].startswith("norm-free: 1 norms replaced, 1 layers set, ")
    assert any("3.weight_ih_l0" in line and "not linear" in line for line in lines)
    assert lines[-1].startswith("train with AdamW, rate 0.0003")
    assert json.loads(json.dumps(report.to_dict()))["share"] == report.share


def test_parameters_of_the_model_itself():
    """Of any shape: what is 0 is so on purpose, and of the rest it is said whose they are."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.token = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(noise(1, 1, 32))
            self.stem, self.head = nn.Linear(3, 32), nn.Linear(32, 32)

        def forward(self, x):
            x = self.stem(x) + self.token
            return self.head(x + self.gate * x)

    report = pv.norm_free(Model(), clouds())
    assert report.kept == {"gate": "0 on purpose"}
    assert report.left_alone == {"token": ("no rule for Model, which holds other layers", 32)}


def test_what_holds_layers_is_neither_the_head_nor_the_end_of_a_branch():
    """Positions are learned by the model itself, and by a block whose output is that of its last layer."""

    class Positions(nn.Module):
        def __init__(self, *layers):
            super().__init__()
            self.positions, self.layers = nn.Parameter(noise(40, 32)), nn.ModuleList(layers)

        def forward(self, x):
            *stem, last = self.layers
            for layer in stem:
                x = x + layer(x) if x.shape[-1] == 32 else layer(x)
            return last(x + self.positions)

    net = Positions(nn.Linear(3, 32), Positions(nn.Linear(32, 32)), nn.Linear(32, 5))
    with pytest.warns(UserWarning, match="only 35% of the parameters were set; not: positions"):
        report = pv.norm_free(net, clouds(), residual="zero")
    assert report.head == "layers.2"
    assert list(report.branches) == ["layers.1.layers.0"]
    assert not net.layers[1].layers[0].weight.any()
    assert net.layers[1].positions.all()


class Prototypes(nn.Module):
    """A head that nobody has registered."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(noise(32, 5))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("head", ["of its own type", "tied"])
def test_gradients_are_clipped_whatever_the_head_is_and_whatever_wraps_the_model(head):
    net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))
    net[3].weight = net[0].weight
    if head == "of its own type":
        net[3] = Prototypes()
    report = pv.norm_free(net, noise(60, 32))
    assert report.head == "3"
    for model in (net, nn.ModuleDict({"part": net})):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)
        report.clipping(model)()
        assert all(parameter.grad.max() < 1 for parameter in net.parameters())


def test_a_compiled_model_is_known_by_its_own_names():
    net = nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    compiled = torch.compile(net, backend="eager")
    report = pv.norm_free(compiled, noise(60, 3))
    assert (report.share, report.head, list(report.norms)) == (1, "3", ["1"])
    assert isinstance(net[1], Affine)
    assert len(report.clipping(compiled).parameters) == 6


def test_lazy_modules_are_an_error_that_names_them():
    for apply in (True, False):
        with pytest.raises(ValueError, match=r"0\.weight is lazy"):
            pv.norm_free(nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d()), noise(9, 3), apply=apply)


def test_the_share_between_clouds_is_restored():
    """Without centring, what is the same for all clouds has taken over behind a few layers."""

    def deep():
        torch.manual_seed(0)
        parts = [p for _ in range(6) for p in (nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU())]
        return Wired(
            lambda net, x: net.tail(net.stem(x).relu().amax(1)),
            stem=nn.Linear(3, 64),
            tail=nn.Sequential(*parts, nn.Linear(64, 5)),
        )

    x = clouds(count=8)
    shares = {}
    for center in (0.0, "auto", 1.0):
        report = pv.norm_free(deep(), x, center=center, generator=seeded(1))
        shares[center] = report.variance.layers[-1].between
        assert "between clouds" in str(report)
    assert shares[0.0] < 0.1
    assert shares["auto"] > 2 * shares[0.0]
    assert shares[1.0] == pytest.approx(1, abs=1e-3)


def test_functions_that_normalise_are_named():
    def call(net, x):
        x = nn.functional.batch_norm(net.one(x).relu(), None, None, None, None, True)
        still = nn.functional.batch_norm(x, torch.zeros(32), torch.ones(32))  # a scale, whatever the batch
        return net.two(still)

    net = Wired(call, one=nn.Linear(3, 32), two=nn.Linear(32, 5))
    with pytest.warns(UserWarning, match=r"1 calls of functional.batch_norm stay: they are no modules"):
        report = pv.norm_free(net, noise(60, 3))
    assert report.functions == {"batch_norm": 1}
    assert "functions that stay:" in str(report)
    assert pv.norm_free(PointNet(), clouds()).functions == {}


def test_depth_is_that_of_the_longest_way():
    """Layers beside each other do not make a network deeper; one that is called twice does."""

    def call(net, x):
        x = torch.cat([layer(net.stem(x).relu()) for layer in net.side], 1).relu()
        for layer in (*net.chain, *net.chain):
            x = layer(x).relu()
        return net.head(x)

    torch.manual_seed(0)
    side, chain = ([nn.Linear(32, width) for _ in range(count)] for width, count in ((2, 16), (32, 5)))
    parts = {"side": nn.ModuleList(side), "chain": nn.ModuleList(chain)}
    net = Wired(call, stem=nn.Linear(3, 32), head=nn.Linear(32, 5), **parts)
    assert_depth(net, 1 + 0.1 * noise(60, 3), 1 + 1 + 10 + 1)


def assert_depth(net, x, depth):
    """Layers that are centred at all have the share that this depth allows."""
    report = pv.norm_free(net, x, generator=seeded(1))
    centred = [entry for entry in report.init.layers if entry.center]
    assert len(centred) > 1
    for entry in centred:
        assert entry.share == pytest.approx(Centering("auto", depth).share, rel=1e-3), entry.name


@pytest.mark.parametrize("added", [True, False])
def test_what_changes_a_stream_little_makes_it_no_deeper(added):
    """The transform of PointNet has two layers of its own before the four that follow."""
    torch.manual_seed(0)
    assert_depth(PointNet(added), 1 + 0.1 * clouds(), 4)


@pytest.mark.parametrize("start", ["", "gain", "weight", "gate"])
def test_a_branch_makes_a_stream_deeper_by_its_share(start):
    """Block i adds two layers to a stream of second moment i; a branch that is 0 adds none."""
    torch.manual_seed(0)
    depth = 1.0
    for block in range(1, 6):
        depth += 0 if start else 2 / (block + 1)
    assert_depth(Residual(start, 5), 1 + 0.1 * noise(60, 3), depth + 1)


def test_networks_of_pytorch_geometric():
    pyg = pytest.importorskip("torch_geometric.nn", reason="PyTorch Geometric is not installed")

    def call(net, x, pos, edges, batch):
        x = net.norm(net.points(x, pos, edges)).relu()
        x = net.sage(net.edges(x, edges).relu(), edges).relu()
        return net.head(pyg.global_max_pool(x, batch))

    net = Wired(
        call,
        points=pyg.PointNetConv(pyg.MLP([3 + 3, 32, 32], norm="batch_norm"), nn.Linear(32, 32)),
        norm=pyg.BatchNorm(32, allow_single_element=True),
        edges=pyg.EdgeConv(pyg.MLP([64, 32, 32])),
        sage=pyg.SAGEConv(32, 32),
        head=pyg.MLP([32, 32, 5], dropout=0.5),
    )
    x = clouds().flatten(0, 1)
    batch = torch.arange(6).repeat_interleave(40)
    cloud = pv.PointCloud(x, [40] * 6)
    edges = pv.knn(cloud, cloud, 6).edge_index
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = pv.norm_free(net, (x, x, edges, batch), generator=seeded(1))
    assert len(report.norms) == 4
    assert report.share == 1
    assert report.variance.headline == "variance by layer: healthy"
    assert report.variance.layers[-1].between is not None
    assert report.head == "head.lins.1"
