"""The report of variances against plain loops, and what it must leave as it was."""

import itertools
import json
import re
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, cloud_batch, noise
from torch import nn
from torch.utils.checkpoint import checkpoint

import pointvar as pv


def clouds_net():
    return Wired(
        lambda net, features, hood: net.head(net.b(net.norm(net.a(features, hood)).relu(), hood).tanh()),
        a=pv.MCConv(4, 6, num_basis=4),
        norm=nn.BatchNorm1d(6),
        b=pv.KPConv(6, 5),
        head=nn.Linear(5, 2),
    )


def image_net():
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(6)),
        *(nn.ConvTranspose2d(6, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)),
    )


def mlp_of(width):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3))


CASES = {
    "clouds": (clouds_net, cloud_batch, ["a", "b", "head"]),
    "images": (image_net, lambda: (noise(2, 3, 8, 8),), ["0", "3", "5"]),
    "mlp": (mlp, lambda: (noise(20, 4),), ["0", "3"]),
}


@pytest.mark.parametrize(("make", "data", "names"), CASES.values(), ids=CASES)
def test_values_and_gradients_against_plain_hooks(make, data, names):
    torch.manual_seed(0)
    net, batch = make(), data()
    weights = noise(7, seed=5)

    def loss(output):
        return (output.flatten()[:7] * weights).sum()

    torch.manual_seed(1)
    report = pv.variance_report(net, batch, loss=loss)
    kept = {}
    for name in names:
        net.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: kept.setdefault(name, out).clone()
        )
    torch.manual_seed(1)
    total = loss(net(*batch))
    assert [entry.name for entry in report.layers] == names
    for entry in report.layers:
        out, weight = kept[entry.name], net.get_submodule(entry.name).weight
        to_out, to_weight = torch.autograd.grad(total, [out, weight], retain_graph=True)
        rows = out.detach().movedim(1, -1).reshape(-1, out.shape[1])
        assert entry.mean == pytest.approx(float(rows.mean()), rel=1e-3, abs=1e-6)
        assert entry.variance == pytest.approx(float(rows.square().mean()), rel=1e-5)
        spatial = sum(float(c.var(correction=0)) for c in rows.T) / rows.shape[1]
        assert entry.spatial == pytest.approx(spatial, rel=1e-4)
        assert entry.dead == sum(bool((c <= 0).all()) for c in rows.T) / rows.shape[1]
        assert entry.activation_gradient == pytest.approx(float(to_out.square().mean()), rel=1e-5)
        assert entry.weight_gradient == pytest.approx(float(to_weight.square().mean()), rel=1e-5)


def test_without_a_loss_the_gradient_of_the_output_has_variance_1():
    report = pv.variance_report(nn.Sequential(nn.Linear(4, 6400)), noise(10, 4))
    # 6,400 Gaussian numbers, one per channel: 1.8 % deviation.
    assert report.layers[-1].activation_gradient == pytest.approx(1, rel=0.08)


def test_without_backward_there_are_no_gradients():
    report = pv.variance_report(mlp(), noise(9, 4), backward=False)
    assert all(x.activation_gradient is x.weight_gradient is None for x in report.layers)


@pytest.mark.parametrize("mode", ["train", "eval", None])
@pytest.mark.parametrize("make", [clouds_net, image_net])
def test_nothing_of_the_model_changes(make, mode):
    net = make()
    batch = cloud_batch() if make is clouds_net else (noise(2, 3, 8, 8),)
    net(*batch).square().sum().backward()
    modules = list(net.modules())
    modules[2].eval()

    def state():
        return {
            "tensors": {k: v.clone() for k, v in net.state_dict().items()},
            "gradients": [p.grad.clone() for p in net.parameters() if p.grad is not None],
            "modes": [m.training for m in modules],
            "hooks": [len(m._forward_hooks) for m in modules],
            "random": torch.get_rng_state(),
        }

    before = state()
    pv.variance_report(net, batch, mode=mode)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    with pytest.raises(ZeroDivisionError):
        pv.variance_report(net, batch, mode=mode, loss=lambda output: 1 / 0)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)


def test_of_a_shared_layer_the_call_farthest_from_1_counts():
    layer, x = nn.Linear(4, 4, bias=False), noise(30, 4)
    nn.init.eye_(layer.weight).data.mul_(0.6)
    net = nn.Sequential(*[layer] * 20)
    report = pv.variance_report(net, x)
    (entry,) = report.layers
    assert (entry.name, entry.calls, entry.call) == ("0", 20, 20)
    assert entry.variance == pytest.approx(float(net(x).detach().square().mean()), rel=1e-4)
    assert report.verdict == "vanishing"
    assert "call 20 of 20" in str(report)
    with pytest.raises(AssertionError, match="outside"):
        pv.testing.assert_variance(net, x)
    layer.weight.data.mul_(1 / 0.6)
    assert pv.variance_report(net, x).layers[0].call == 1


def test_frozen_layers_are_measured_too():
    net = mlp()
    net[0].requires_grad_(False)
    report = pv.variance_report(net, noise(9, 4))
    assert report.layers[0].weight_gradient is None
    assert report.layers[1].weight_gradient is not None
    net.requires_grad_(False)
    assert pv.variance_report(net, noise(9, 4)).layers[1].activation_gradient is None


def test_modules_without_known_layers():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return x * self.factor

    x = noise(50, 4)
    report = pv.variance_report(nn.Sequential(Scale(), nn.Tanh(), Scale()), x)
    assert [entry.name for entry in report.layers] == ["0", "2"]
    assert report.layers[0].variance == pytest.approx(9 * float(x.square().mean()), rel=1e-5)
    with pytest.raises(ValueError, match="reaches no layer of Tanh"):
        pv.variance_report(nn.Tanh(), x)


def test_selection_and_forward():
    net = clouds_net()
    batch = {"data": cloud_batch(), "label": 3}
    report = pv.variance_report(
        net, batch, forward=lambda model, b: model(*b["data"]), layers=pv.PointConvolution
    )
    assert [entry.name for entry in report.layers] == ["a", "b"]
    assert [entry.kind for entry in report.layers] == ["MCConv", "KPConv"]


def test_outputs_that_are_no_tensor_need_a_loss():
    net = Wired(lambda net, x: {"y": net.linear(x)}, linear=nn.Linear(4, 4))
    with pytest.raises(TypeError, match="give a loss: the model returns dict"):
        pv.variance_report(net, noise(5, 4))
    report = pv.variance_report(net, noise(5, 4), loss=lambda output: output["y"].sum())
    assert report.layers[0].activation_gradient == pytest.approx(1)


def scaled(*factors):
    """Layers without bias that multiply the second moment by these factors."""
    net = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in factors))
    for layer, factor in zip(net, factors, strict=True):
        nn.init.eye_(layer.weight).data.mul_(factor**0.5)
    return net


VERDICTS = {
    "healthy": ((1, 2, 0.5), ["healthy"] * 3),
    "vanishing": ((1, 1e-3, 1), ["healthy", "vanishing", "vanishing"]),
    "exploding": ((1, 1e3, 1e-3), ["healthy", "exploding", "healthy"]),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdicts_of_layers_and_network(verdict):
    factors, expected = VERDICTS[verdict]
    report = pv.variance_report(scaled(*factors), noise(400, 16))
    assert [entry.verdict for entry in report.layers] == expected
    assert report.verdict == verdict
    assert str(report).startswith(f"variance by layer: {verdict}")


@pytest.mark.parametrize(("factor", "verdict"), [(1e-3, "vanishing"), (1e3, "exploding"), (1.0, "healthy")])
def test_gradients_decide_where_activations_are_healthy(factor, verdict):
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * factor**0.5

    class Weak(nn.Module):
        def forward(self, x):
            return Backward.apply(x)

    one, two = scaled(1, 1)
    report = pv.variance_report(nn.Sequential(one, Weak(), two), noise(400, 16))
    assert [entry.verdict for entry in report.layers] == [verdict, "healthy"]
    assert [entry.relative_gradient for entry in report.layers] == pytest.approx([factor, 1])
    assert report.verdict == verdict
    reason = f"the gradient at 0 is {factor:.2g} times that at 2 (second moments, relative to outputs)"
    assert report.reason == ("" if verdict == "healthy" else reason)


README = Path(__file__).parent.parent / "README.md"


def test_the_network_of_the_readme_is_vanishing_before_and_healthy_after_variance_init(capsys):
    theirs, ours = re.findall(r"^```python\n(.*?)^```", README.read_text("utf8"), re.MULTILINE | re.DOTALL)
    before, call, after = ours.partition("pv.variance_init(")
    assert call
    names: dict = {}
    torch.manual_seed(0)
    exec(theirs + before, names)
    report = pv.variance_report(names["model"], (names["batch"].features, names["levels"]))
    assert report.verdict == "vanishing"
    assert report.reason.startswith("the output of blocks.1.convolution has a second moment of 0.00")
    exec(call + after, names)
    assert "variance by layer: healthy\n" in capsys.readouterr().out


@pytest.mark.parametrize("unit_response", [False, True])
@pytest.mark.parametrize("method", ["KPConvN", "PointConv", "SPHConv"])
def test_plain_networks_of_25_layers(method, unit_response):
    batch = cloud_batch(points=400, channels=3, radius=0.3, cap=16)
    net = pv.models.PlainNet(25, 32, 3, method=method, unit_response=unit_response, generator=seeded(0))
    pv.standard_init(net, generator=seeded(0))
    report = pv.variance_report(net, batch)
    assert report.verdict == "vanishing"
    assert re.match(r"the output of blocks\.\d+\.convolution has a second moment of \d", report.reason)
    pv.variance_init(net, batch, generator=seeded(0))
    assert pv.variance_report(net, batch).headline == "variance by layer: healthy"


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def deep(activation, *widths):
    """Linear layers, each with an activation behind it."""
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for i, o in pairs for part in (nn.Linear(i, o), Apply(activation))))


POOLS = {
    "mean": lambda x: x.mean(0, keepdim=True),
    "sum": lambda x: x.sum(0, keepdim=True),
    "max": lambda x: x.amax(0, keepdim=True),
    "mean of 4 clouds": lambda x: x.unflatten(0, (4, -1)).mean(1),
    "max of 4 clouds": lambda x: x.unflatten(0, (4, -1)).amax(1),
}


@pytest.mark.parametrize("widths", [(64, 64), (3, 64, 128, 512), (32,) * 16], ids=["1", "growing", "deep"])
@pytest.mark.parametrize("pool", POOLS)
def test_pooling_is_no_illness(pool, widths):
    net = nn.Sequential(*deep(torch.relu, *widths), Apply(POOLS[pool]), nn.Linear(widths[-1], 10))
    x = noise(1000, widths[0])
    pv.variance_init(net, x, generator=seeded(0))
    assert pv.variance_report(net, x).headline == "variance by layer: healthy"
    # As the weights are scaled, so are the outputs, but no gradient relative to its output.
    with torch.no_grad():
        net[0].weight *= 1e-3
    report = pv.variance_report(net, x)
    assert report.verdict == "vanishing"
    assert report.reason == f"the output of 0 has a second moment of {report.layers[0].variance:.2g}"
    assert all(0.01 <= entry.relative_gradient <= 100 for entry in report.layers)


ILL = {
    "vanishing": torch.sigmoid,
    "exploding": lambda x: 2**0.5 * torch.sin(8 * x),
}


@pytest.mark.parametrize("pool", ["mean", "max of 4 clouds", None])
@pytest.mark.parametrize("verdict", ILL)
def test_gradients_that_vanish_or_explode_while_all_outputs_are_healthy(verdict, pool):
    """A sigmoid takes off nine tenths of a squared gradient, a fast sine multiplies it by some 64."""
    pooled = [] if pool is None else [Apply(POOLS[pool])]
    net = nn.Sequential(*deep(ILL[verdict], *[64] * 11), *pooled, nn.Linear(64, 5))
    x = noise(400, 64)
    pv.variance_init(net, x, generator=seeded(0))
    report = pv.variance_report(net, x, loss=lambda out: (out * noise(*out.shape, seed=1)).sum())
    assert all(0.5 < entry.variance < 2 for entry in report.layers[:-1])
    assert report.verdict == verdict
    assert re.match(r"the gradient at [02] is \S+ times that at \d+ \(second", report.reason)


def residual(batch_norm):
    """A network with skip connections."""

    def call(net, x):
        x = net.stem(x)
        for i in range(8):
            x = x + getattr(net, f"branch{i}")(x)
        return net.head(x.relu().unflatten(0, (4, -1)).mean(1))

    norm = [nn.BatchNorm1d(32)] if batch_norm else []
    branches = {f"branch{i}": nn.Sequential(nn.ReLU(), nn.Linear(32, 32), *norm) for i in range(8)}
    return Wired(call, stem=nn.Linear(8, 32), head=nn.Linear(32, 5), **branches)


def image_unet():
    """Down twice, up twice, with skip connections."""

    def call(net, x):
        fine = net.first(x).relu()
        middle = net.down(nn.functional.avg_pool2d(fine, 4)).relu()
        coarse = net.bottom(nn.functional.max_pool2d(middle, 4)).relu()
        up = net.up(torch.cat([nn.functional.interpolate(coarse, scale_factor=4), middle], 1)).relu()
        return net.last(torch.cat([nn.functional.interpolate(up, scale_factor=4), fine], 1))

    def conv(i, o):
        return nn.Conv2d(i, o, 3, padding=1)

    layers = {"down": conv(8, 16), "bottom": conv(16, 32), "up": conv(48, 16), "last": conv(24, 4)}
    return Wired(call, first=conv(3, 8), **layers)


def shared():
    layer = nn.Linear(32, 32)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *[layer, nn.ReLU()] * 3, nn.Linear(32, 5))


SOUND = {
    "skip connections": (lambda: residual(False), (400, 8)),
    "skip connections and batch norm": (lambda: residual(True), (400, 8)),
    "a U-Net": (image_unet, (2, 3, 32, 32)),
    "a shared layer": (shared, (400, 8)),
}


@pytest.mark.parametrize(("make", "shape"), SOUND.values(), ids=SOUND)
def test_sound_networks_of_any_wiring_are_healthy(make, shape):
    torch.manual_seed(0)
    net, x = make(), noise(*shape)
    pv.variance_init(net, x, generator=seeded(0))
    assert pv.variance_report(net, x).headline == "variance by layer: healthy"


def test_a_u_net_of_points_is_healthy():
    cloud = pv.PointCloud(torch.rand(600, 3, generator=seeded(0)), [300, 300])
    net = pv.models.SegmentationUNet(3, 4, "MCConv", radii=(0.1, 0.2, 0.4), channels=(16, 32, 64))
    batch = cloud.points, net.hierarchy(cloud, generator=seeded(0))
    pv.variance_init(net, batch, generator=seeded(0))
    assert pv.variance_report(net, batch).headline == "variance by layer: healthy"


@pytest.mark.parametrize("eps", [1e-5, 100.0])
def test_a_layer_with_a_norm_behind_it_is_judged_behind_the_norm(eps):
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16, eps=eps), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        net[0].weight *= 0.1
        net[0].bias.zero_()
    report = pv.variance_report(net, noise(400, 16))
    assert report.layers[0].variance < 0.01
    assert report.layers[1].normalised is None
    if eps < 1:
        assert report.layers[0].normalised == pytest.approx(1, abs=0.01)
        assert report.headline == "variance by layer: healthy"
    else:
        assert report.reason.startswith("the output of 0, normalised, has a second moment of ")


def test_no_norm_is_no_norm():
    net = pv.models.Classifier(1, 3, "MCConv", channels=(4, 8), radii=(0.2, 0.4), norm="none")
    cloud = pv.PointCloud(torch.rand(100, 3, generator=seeded(0)))
    report = pv.variance_report(net, (torch.ones(100, 1), net.hierarchy(cloud)))
    assert all(entry.normalised is None for entry in report.layers)


Pair = namedtuple("Pair", ["value", "note"])


@pytest.mark.parametrize("form", [tuple, list, Pair._make], ids=["tuple", "list", "named tuple"])
def test_layers_that_return_several_things_are_measured_by_the_first(form):
    class Noted(nn.Linear):
        def forward(self, x):
            return form([super().forward(x), "a note"])

    net = Wired(lambda net, x: net.two(net.one(x)[0].relu()), one=Noted(8, 16), two=nn.Linear(16, 3))
    seen = []
    net.one.register_forward_hook(lambda module, args, output: seen.append(output))
    x = noise(50, 8)
    report = pv.variance_report(net, x)
    assert [entry.name for entry in report.layers] == ["one", "two"]
    assert report.layers[0].variance == pytest.approx(float(net.one(x)[0].detach().square().mean()))
    assert report.layers[0].relative_gradient is not None
    assert type(seen[0]) is type(form(["", ""]))
    assert seen[0][1] == "a note"


def test_a_head_that_the_loss_does_not_see_is_nothing_to_compare_with():
    net = Wired(
        lambda net, x: (net.head(net.body(x).relu()), net.second(net.body(x) * 0)),
        **{name: nn.Linear(16, 16) for name in ("body", "head", "second")},
    )
    pv.variance_init(net.body, noise(99, 16), generator=seeded(0))
    nn.init.eye_(net.head.weight)
    report = pv.variance_report(net, noise(99, 16))
    assert [entry.relative_gradient is None for entry in report.layers] == [False, False, True]
    report = pv.variance_report(
        net, noise(99, 16), loss=lambda outputs: outputs[0].sum() + 0 * outputs[1].sum()
    )
    assert report.layers[1].relative_gradient == 1
    assert report.layers[2].relative_gradient == 0


def test_a_layer_that_no_gradient_reaches_is_named():
    net = nn.Sequential(nn.Linear(16, 16), Apply(lambda x: 0 * x + noise(99, 16, seed=2)), nn.Linear(16, 16))
    pv.variance_init(net, noise(99, 16), generator=seeded(0))
    report = pv.variance_report(net, noise(99, 16))
    assert (report.verdict, report.reason) == ("vanishing", "no gradient reaches 0")


def test_gradients_that_are_not_finite_are_named():
    net = nn.Sequential(nn.Linear(16, 16), Apply(lambda x: (x * 0).sqrt() + x), nn.Linear(16, 16))
    pv.variance_init(net, noise(99, 16), generator=seeded(0))
    report = pv.variance_report(net, noise(99, 16))
    assert (report.verdict, report.reason) == ("exploding", "the gradient at 0 is not finite")


def test_the_thresholds_apply_to_outputs_and_gradients():
    net, x = scaled(1, 4), noise(400, 16)
    assert pv.variance_report(net, x).verdict == "healthy"
    assert pv.variance_report(net, x, high=3).reason.startswith("the output of 1 has a second moment of 4")
    assert pv.variance_report(net, x, low=2).reason.startswith("the output of 0 has a second moment of")
    torch.manual_seed(0)
    sigmoids = nn.Sequential(*deep(torch.sigmoid, *[32] * 3), nn.Linear(32, 4))
    pv.variance_init(sigmoids, noise(400, 32), generator=seeded(0))
    least = min(x.relative_gradient for x in pv.variance_report(sigmoids, noise(400, 32)).layers)
    for factor, verdict in ((0.9, "healthy"), (1.1, "vanishing")):
        assert pv.variance_report(sigmoids, noise(400, 32), low=factor * least).verdict == verdict


def test_values_that_are_not_finite_are_no_health():
    report = pv.variance_report(scaled(1, 1), torch.full((4, 16), float("nan")))
    assert report.verdict == "exploding"
    with pytest.raises(ValueError, match="low and high"):
        pv.variance_report(scaled(1), noise(4, 16), low=2, high=1)


def test_the_report_as_text_numbers_and_picture(tmp_path):
    report = pv.variance_report(clouds_net(), cloud_batch())
    values = json.loads(json.dumps(report.to_dict()))
    assert [layer["name"] for layer in values["layers"]] == ["a", "b", "head"]
    assert values["verdict"] == report.verdict
    lines = str(report).splitlines()
    assert len(lines) == 5
    assert all(
        word in lines[1] for word in ("layer", "variance", "spatial", "d weight", "relative d", "verdict")
    )
    assert lines[0] == report.headline
    assert values["reason"] == report.reason
    for name, line in zip(("a", "b", "head"), lines[2:], strict=True):
        assert line.split()[0] == name
    figure = report.plot(tmp_path / "variance.png")
    assert (tmp_path / "variance.png").stat().st_size > 1000
    assert len(figure.axes[0].lines) == 5  # four curves, and the line at 1


@pytest.mark.parametrize("backward", [False, True])
def test_a_dead_network_can_be_drawn(backward, tmp_path):
    net = scaled(0, 0)
    report = pv.variance_report(net, noise(9, 16), backward=backward)
    assert report.verdict == "vanishing"
    assert [entry.dead for entry in report.layers] == [1.0, 1.0]
    report.plot(tmp_path / "dead.png")


def test_assert_variance():
    net, x = scaled(1, 8, 1), noise(400, 16)
    pv.testing.assert_variance(net, x, 0.5, 10)
    pv.testing.assert_variance(net, x, layers="0")
    with pytest.raises(AssertionError, match=r"outside \[0.5, 2.0\] at 1, 2\n(.|\n)*variance by layer"):
        pv.testing.assert_variance(net, x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_nothing(reentrant):
    def call(net, x):
        return net.head(checkpoint(net.body, net.stem(x), use_reentrant=reentrant))

    torch.manual_seed(0)
    net = Wired(call, stem=nn.Linear(4, 8), body=mlp_of(8), head=nn.Linear(8, 3))
    plain = Wired(lambda net, x: net.head(net.body(net.stem(x))), **dict(net.named_children()))
    x = noise(30, 4)
    assert pv.variance_report(net, x) == pv.variance_report(plain, x)
    pv.variance_init(net, [x, x])
    x.requires_grad_()
    net(x).sum().backward()  # checkpoints are as they were
    assert net.body[0].weight.grad is not None


class Kernel(nn.Module):
    """Known to nobody."""

    def __init__(self, i, o, form=lambda x: x):
        super().__init__()
        self.kernel, self.form = nn.Parameter(noise(i, o) / i**0.5), form

    def forward(self, x):
        return self.form(x @ self.kernel)


@dataclass
class Hidden:
    value: torch.Tensor


FORMS = {
    "tensor": (lambda x: x, lambda y: y),
    "nested": (lambda x: ([(x, 1)], None), lambda y: y[0][0][0]),
    "mapping": (lambda x: {"n": 3, "x": x}, lambda y: y["x"]),
}


@pytest.mark.parametrize(("form", "back"), FORMS.values(), ids=FORMS)
def test_no_layer_goes_unseen(form, back):
    """Neither one that returns a structure, nor one that nobody has registered beside others."""
    net = Wired(
        lambda net, x: net.head(back(net.own(net.first(x)))) / 1000,
        **{"first": nn.Linear(16, 16), "own": Kernel(16, 16, form), "head": nn.Linear(16, 3)},
    )
    pv.variance_init(net, noise(200, 16), generator=seeded(0))
    pv.testing.assert_variance(net, noise(200, 16), 0.2, 5)
    with torch.no_grad():
        net.own.kernel *= 1000
        net.head.weight /= 1000
    report = pv.variance_report(net, noise(200, 16))
    assert [entry.name for entry in report.layers] == ["first", "own", "head"]
    assert report.layers[1].weight_gradient is not None
    assert report.reason.startswith("the output of own has a second moment of")
    with pytest.raises(AssertionError, match="at own"):
        pv.testing.assert_variance(net, noise(200, 16), 0.2, 5)


def test_layers_that_cannot_be_measured_are_named():
    net = Wired(
        lambda net, x: net.head(net.own(x).value),
        **{"own": Kernel(4, 4, Hidden), "head": nn.Linear(4, 4), "unused": nn.Linear(4, 4)},
    )
    report = pv.variance_report(net, noise(20, 4), loss=torch.sum)
    why = "it returns Hidden, without a tensor"
    assert report.unmeasured == {"own": why, "unused": "never called"}
    assert "not measured:\n  own     it returns Hidden" in str(report)
    with pytest.raises(AssertionError, match=f"own cannot be measured: {why}"):
        pv.testing.assert_variance(net, noise(20, 4), 0, 100)


# Clouds


def packed():
    cloud = pv.PointCloud(torch.rand(90, 3, generator=seeded(0)), [20, 30, 40])
    return (noise(90, 4), pv.ball_query(cloud, cloud, 0.4)), cloud.batch


def geometric():
    index = torch.tensor([0] * 20 + [1] * 30 + [2] * 40)
    return {"x": noise(90, 4), "batch": index}, index


def dense():
    return noise(3, 30, 4), torch.arange(3).repeat_interleave(30)


KINDS_OF_BATCHES = {"packed": packed, "PyG": geometric, "dense": dense}


@pytest.mark.parametrize("make", KINDS_OF_BATCHES.values(), ids=KINDS_OF_BATCHES)
def test_the_share_between_clouds_by_loops(make):
    batch, index = make()

    def call(net, x, *rest):
        y = net.point(x)
        rows = y.reshape(-1, 6)
        return net.head(torch.stack([rows[index == b].amax(0) for b in range(3)]))

    net = Wired(call, point=nn.Linear(4, 6), head=nn.Linear(6, 5))
    net.forward = lambda x, batch=None: net.call(net, x)
    report = pv.variance_report(net, batch)
    x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple) else batch
    rows = net.point(x).detach().reshape(-1, 6).double()
    cases = (rows, index), (net(x).detach().double(), torch.arange(3))
    for entry, (rows, index) in zip(report.layers, cases, strict=True):
        share = 0.0
        for c in range(rows.shape[1]):
            means = [float(rows[index == b, c].mean()) for b in range(3)]
            share += sum((m - sum(means) / 3) ** 2 for m in means) / 3 / rows.shape[1]
        assert entry.between == pytest.approx(share / float(rows.square().mean()), rel=1e-5)
        assert entry.rows == len(rows)


def test_features_that_are_the_same_for_all_clouds_have_collapsed():
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), Apply(lambda x: x.amax(1)), nn.Linear(32, 5))
    x = noise(8, 50, 3)
    pv.variance_init(net, x, generator=seeded(0))
    assert pv.variance_report(net, x).headline == "variance by layer: healthy"
    net[0].bias.data.fill_(300.0)
    net[0].weight.data *= 10
    pv.variance_init(net[1:], net[0](x).detach(), generator=seeded(0))
    report = pv.variance_report(net, x, high=1e9)
    assert report.verdict == report.layers[-1].verdict == "collapsed"
    assert re.match(r"of the output of 3 only a share of 0\.00\d+ differs at all", report.reason)
    assert pv.variance_report(net, x[:1], high=1e9).verdict == "healthy"  # of one cloud nobody can tell
