"""The report of variances against plain loops, and what it must leave as it was."""

import json

import pytest
import torch
from initialisation_cases import Wired, cloud_batch, noise
from torch import nn

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


def test_a_shared_layer_is_measured_at_its_first_call():
    layer, x = nn.Linear(4, 4), noise(30, 4)
    report = pv.variance_report(nn.Sequential(layer, nn.ReLU(), layer), x)
    assert [entry.name for entry in report.layers] == ["0"]
    assert report.layers[0].variance == pytest.approx(float(layer(x).detach().square().mean()), rel=1e-5)


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
    assert [entry.verdict for entry in report.layers] == ["healthy", "healthy"]
    assert report.verdict == verdict


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
    assert all(word in lines[1] for word in ("layer", "variance", "spatial", "d weight", "verdict"))
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
