"""Attention, and modules that nobody has registered: which are tried, set, or left alone."""

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, moment, noise
from torch import nn

import pointvar as pv


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 5}, {"bias": False}, {"batch_first": True}])
def test_attention(options, batches):
    """Queries, keys and values of unit variance, and an output of the target variance."""
    attention = nn.MultiheadAttention(64, 4, **options)
    data = [
        (
            noise(10, 7, 64, seed=i) * 9,
            noise(12 if i % 2 else 10, 7, options.get("kdim", 64), seed=i + 9) * 5,
            noise(12 if i % 2 else 10, 7, options.get("vdim", 64), seed=i + 18) / 7,
        )
        for i in range(batches)
    ]
    if options.get("batch_first"):
        data = [(q, q, q) for q, *_ in data]
    report = pv.variance_init(attention, data, 2.0, generator=seeded(99))
    assert [(entry.name, entry.note) for entry in report.layers] == [("MultiheadAttention", "probed")]
    assert report.left_alone == {}
    assert sum(moment(attention(*batch)[0]) for batch in data) / batches == pytest.approx(2, rel=1e-4)
    weights = (
        attention.in_proj_weight.chunk(3)
        if attention.in_proj_weight is not None
        else (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    )
    for i, weight in enumerate(weights):  # 64 channels of 70 points at least, 5 inputs at least: 20 %
        assert sum(moment(batch[i] @ weight.T) for batch in data) / batches == pytest.approx(1, rel=0.4)


def test_attention_by_keywords_and_per_channel():
    attention, x = nn.MultiheadAttention(16, 2), noise(10, 7, 16)
    batch = {"query": x, "key": x, "value": x, "need_weights": False}
    pv.variance_init(attention, batch)
    pv.data_dependent_init(attention, batch)
    out = attention(x, x, x)[0].detach().flatten(0, 1)
    torch.testing.assert_close(out.mean(0), torch.zeros(16), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.var(0, correction=0), torch.ones(16), rtol=1e-4, atol=0)


class Kernel(nn.Module):
    """[K, in, out], as of a kernel point convolution, with an inner layer for its offsets."""

    def __init__(self, taps=3, i=4, o=8, inner=False):
        super().__init__()
        self.weights, self.bias = nn.Parameter(noise(taps, i, o)), nn.Parameter(torch.ones(o))
        self.offsets = nn.Linear(i, taps) if inner else None

    def forward(self, x):
        values = torch.stack([x.roll(k, 0) for k in range(len(self.weights))])
        if self.offsets is not None:
            values = values * self.offsets(x).sigmoid().T[..., None]
        return torch.einsum("kni,kio->no", values, self.weights) + self.bias


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("inner", [False, True])
def test_an_unknown_module_that_is_linear_in_its_weights_is_set(inner, batches):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Kernel(inner=inner), nn.ReLU(), nn.Linear(8, 40))
    data = [noise(64, 3, seed=i) * 5 for i in range(batches)]
    assert "2" in pv.variance_init(net, data).left_alone
    report = pv.variance_init(net, data, 3.0, unknown=True, generator=seeded())
    inside = ["2.offsets"] if inner else []
    assert [entry.name for entry in report.layers] == ["0", *inside, "2", "4"]
    assert [entry.calls for entry in report.layers] == [1] * (3 + inner)
    assert report.left_alone == {}
    assert not net[2].bias.any()
    outputs = [net[:3](x).detach() for x in data]
    assert sum(map(moment, outputs)) / batches == pytest.approx(3, rel=1e-4)
    z = sum(float(y.relu().double().square().sum(1).mean()) for y in outputs) / batches
    assert report["4"].second_moment == pytest.approx(z, rel=1e-5)  # what comes behind sees its new output


class Flat(nn.Module):
    """Weights in one dimension, as of e3nn, or gains."""

    def __init__(self, numbers):
        super().__init__()
        self.weight = nn.Parameter(noise(numbers))

    def forward(self, x):
        full = self.weight.numel() == 8 * 8
        return x @ self.weight.view(8, 8) if full else x * self.weight


class Token(nn.Module):
    """Holds other layers, and a parameter that is small beside them."""

    def __init__(self):
        super().__init__()
        self.token, self.body = nn.Parameter(noise(1, 8)), nn.Linear(8, 32)

    def forward(self, x):
        return self.body(x + self.token)


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.eye(8))

    def forward(self, x):
        if not torch.equal(self.kernel, torch.eye(8)):
            raise RuntimeError("only the identity")
        return x @ self.kernel


class Bent(Breaks):
    def forward(self, x):
        return (x @ self.kernel).relu()


class Zero(Breaks):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.kernel)

    def forward(self, x):
        return x + x @ self.kernel


LEFT = {
    "gains": (lambda: Flat(8), "no rule for Flat, whose weights are gains"),
    "small": (Token, "no rule for Token, which holds other layers"),
    "not linear": (Bent, "not linear in its weights"),
    "zero": (Zero, "0 on purpose"),
    "cannot be tried": (Breaks, "no rule for Breaks, and it cannot be tried: only the identity"),
    "norm": (lambda: nn.LayerNorm(8), "no rule for LayerNorm"),
    "recurrent": (lambda: Wired(lambda net, x: net.rnn(x)[0], rnn=nn.GRU(8, 8)), "not linear in its weights"),
}


@pytest.mark.parametrize(("make", "why"), LEFT.values(), ids=LEFT)
def test_what_is_left_alone_stays_as_it_was(make, why):
    net = nn.Sequential(nn.Linear(4, 8), make(), nn.Linear(8 if make is not Token else 32, 3))
    before = {name: p.detach().clone() for name, p in net[1].named_parameters(recurse=False)}
    report = pv.variance_init(net, [noise(20, 4), noise(20, 4, seed=1)], unknown=True)
    assert report.left_alone == {"1.rnn" if make is LEFT["recurrent"][0] else "1": why}
    assert all(torch.equal(p, before[n]) for n, p in net[1].named_parameters(recurse=False))


def test_flat_weights_are_drawn():
    net = nn.Sequential(nn.Linear(4, 8), Flat(64))
    report = pv.variance_init(net, noise(20, 4), unknown=True)
    assert [entry.name for entry in report.layers] == ["0", "1"]
    assert moment(net(noise(20, 4))) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_a_layer_that_is_probed_is_centred_by_its_bias(strength):
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x) - self.bias

    for layer, x in ((Twice(4, 8), noise(50, 4) + 3), (nn.MultiheadAttention(8, 2), noise(9, 5, 8) + 3)):
        args = (x,) * (3 if isinstance(layer, nn.MultiheadAttention) else 1)
        plain = pv.variance_init(layer, args, 2.0, generator=seeded()).layers[0]
        assert plain.center == 0
        entry = pv.variance_init(layer, args, 2.0, center=strength, generator=seeded()).layers[0]
        out = layer(*args)
        out = (out[0] if isinstance(out, tuple) else out).detach().double().flatten(0, -2)
        assert moment(out) == pytest.approx(2, rel=1e-3)
        assert entry.center == strength
        assert entry.share == pytest.approx(1 - float(out.mean(0).square().mean()) / 2, rel=1e-3)
        assert entry.share > 0.99 or strength < 1


def test_a_bias_that_is_not_simply_added_is_not_used():
    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) + self.bias * x[:, :1]

    layer, x = Odd(4, 8), noise(50, 4) + 3
    entry = pv.variance_init(layer, x, center=1.0).layers[0]
    assert entry.center == 0
    assert not layer.bias.any()
    assert moment(layer(x)) == pytest.approx(1, rel=1e-4)


class Mixture(nn.Module):
    """Linear in its kernels, not in the centres and widths of the functions that they belong to; linear in
    gains too, but not in both at once."""

    def __init__(self):
        super().__init__()
        self.centres, self.widths = nn.Parameter(noise(5, 4)), nn.Parameter(noise(5, 4, seed=1).exp())
        self.kernels, self.gains = nn.Parameter(noise(5, 4, 40, seed=2)), nn.Parameter(torch.ones(1, 40))

    def forward(self, x):
        values = (-((x[:, None] - self.centres) * self.widths).square().sum(2)).exp()
        return torch.einsum("nk,ni,kio->no", values, x, self.kernels) * self.gains


@pytest.mark.parametrize("batches", [1, 3])
def test_of_several_weights_the_largest_that_a_module_is_linear_in_is_set(batches):
    net = nn.Sequential(nn.Linear(3, 4), Mixture(), nn.ReLU(), nn.Linear(40, 40))
    data = [noise(64, 3, seed=i) for i in range(batches)]
    others = ("centres", "gains", "widths")
    before = {name: net[1].get_parameter(name).clone() for name in others}
    report = pv.variance_init(net, data, unknown=True, generator=seeded())
    assert report["1"].note == "probed, kernels alone"
    why = "Mixture is not linear in it"
    assert report.left_alone == {f"1.{name}": why for name in others}
    assert all(torch.equal(net[1].get_parameter(name), value) for name, value in before.items())
    outputs = [net[:2](x).detach() for x in data]
    assert sum(map(moment, outputs)) / batches == pytest.approx(1, rel=1e-4)
    free = pv.norm_free(net, data, generator=seeded())
    assert free.left_alone == {f"1.{name}": (why, 40 if name == "gains" else 20) for name in others}
