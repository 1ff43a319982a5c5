"""Which layers are found, and what is left alone, and why."""

import random

import numpy as np
import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, moment, noise
from torch import nn
from torch.nn.utils import parametrizations

import pointvar as pv
from pointvar.layers import devices_of, find_layers, restored


def names(model, **options):
    return [layer.name for layer in find_layers(model, **options)[0]]


def net_of_all():
    return Wired(
        lambda net, x: net.head(net.image(net.norm(net.encoder(x))[:, None]).flatten(1)),
        encoder=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)),
        norm=nn.BatchNorm1d(8),
        image=nn.Conv1d(1, 2, 3),
        head=nn.Linear(12, 2),
    )


SELECTIONS = {
    "all": (None, ["encoder.0", "encoder.2", "image", "head"]),
    "type": (nn.Conv1d, ["image"]),
    "types": ((nn.Conv1d, nn.Linear), ["encoder.0", "encoder.2", "image", "head"]),
    "pattern": ("encoder.*", ["encoder.0", "encoder.2"]),
    "patterns": (["head", "*.0"], ["encoder.0", "head"]),
    "predicate": (lambda name, module: getattr(module, "in_features", 0) == 8, ["encoder.2"]),
}


@pytest.mark.parametrize(("select", "expected"), SELECTIONS.values(), ids=SELECTIONS)
def test_selection(select, expected):
    net = net_of_all()
    before = {n: p.clone() for n, p in net.named_parameters()}
    report = pv.variance_init(net, noise(16, 4), layers=select, generator=seeded())
    assert [entry.name for entry in report.layers] == expected == names(net, select=select)
    assert report.left_alone["norm"] == "no rule for BatchNorm1d"
    for name, parameter in net.named_parameters():
        layer, kind = name.rsplit(".", 1)
        changed = not torch.equal(parameter, before[name])
        assert changed == (layer in expected and (kind == "weight" or bool(before[name].any())))
        if layer not in expected and layer != "norm":
            assert report.left_alone[layer] == "not selected"


@pytest.mark.parametrize("select", [3, [], [3], [nn.Linear, "head"]])
def test_a_selection_of_no_kind(select):
    with pytest.raises(TypeError, match="types, name patterns or a predicate"):
        pv.variance_init(net_of_all(), noise(16, 4), layers=select)


def test_nothing_to_set_says_why():
    with pytest.raises(ValueError, match=r"Wired has no layer.*'head': 'not selected'"):
        pv.variance_init(net_of_all(), noise(16, 4), layers="tail")
    with pytest.raises(ValueError, match="no parameters"):
        pv.variance_init(nn.ReLU(), noise(3))


class Own(nn.Module):
    """Linear in two weights of its own, and has a layer inside."""

    def __init__(self, channels=6):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(4, channels))
        self.skip = nn.Linear(4, channels)
        self.added = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x.flip(0) @ self.kernel + self.skip(x) + self.added


def test_the_outermost_registered_module_owns_what_is_inside():
    model = nn.Sequential(Own(), nn.ReLU(), nn.Linear(6, 3))
    assert names(model) == ["0.skip", "2"]
    pv.register_layer(Own, weight=("kernel", "skip.weight"), bias=("added", "*.bias"))
    assert names(model) == ["0", "2"]
    assert names(nn.Sequential(type("Subclass", (Own,), {})())) == ["0"]
    x = noise(64, 4)
    report = pv.variance_init(model, x, target={"0": 3.0}, generator=seeded())
    assert report["0"].note == "probed"
    assert moment(model[0](x)) == pytest.approx(3, rel=1e-5)  # a probe is exact: only rounding
    assert not model[0].added.any()
    assert not model[0].skip.bias.any()
    assert float(model[0].kernel.detach().square().mean()) == pytest.approx(report["0"].variance, rel=0.9)


def test_parameters_that_a_rule_does_not_name_are_named_in_the_report():
    pv.register_layer(Own, weight="kernel", bias="added")
    model = nn.Sequential(Own(), nn.Linear(6, 3), pv.PointConv(3, 3).requires_grad_(False))
    why = "the rule for Own does not name it"
    expected = {"0.skip.weight": why, "0.skip.bias": why}
    assert find_layers(model)[1] == {**expected, "2": "frozen"}
    assert find_layers(model, select=nn.Linear)[1] == {"0": "not selected", "2": "not selected"}
    pv.register_layer(Own, weight="kernel", bias="added", kept="skip.*")
    assert find_layers(model)[1] == {"2": "frozen"}
    assert find_layers(pv.PointConv(3, 3, precondition=True))[1] == {}  # a basis draws itself


class Measured(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(4, 6))

    def forward(self, x, twice):
        return (2 if twice else 1) * x @ self.kernel


def test_a_type_can_be_registered_by_name_and_say_its_second_moment():
    pv.register_layer(
        f"{__name__}.Measured",
        weight="kernel",
        second_moment=lambda module, x, twice: x.double().square().sum(1).mean() * (4 if twice else 1),
        out_dim=1,
    )
    layer, x = Measured(), noise(16, 4)
    for twice in (False, True):
        entry = pv.variance_init(layer, {"x": x, "twice": twice}, orthogonal=True).layers[0]
        z = float(x.double().square().sum(1).mean()) * (4 if twice else 1)
        assert entry.second_moment == pytest.approx(z)
        assert entry.note == ""
    rows = layer.kernel.detach()  # 4 x 6: orthogonal rows, since it is wide
    product = rows @ rows.T
    torch.testing.assert_close(product, product.diagonal().mean() * torch.eye(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("z", [0.0, -1.0, float("nan"), float("inf")])
def test_a_second_moment_that_is_none(z):
    kind = type("Wrong", (Measured,), {"forward": Measured.forward})
    pv.register_layer(kind, weight="kernel", second_moment=lambda *_: torch.tensor(z))
    with pytest.raises(ValueError, match=r"Wrong: its input .* no weights can be derived from it"):
        pv.variance_init(kind(), (noise(16, 4), False))


@pytest.mark.parametrize("layer", [3, int, nn.Linear(2, 2)])
def test_only_types_of_modules_can_be_registered(layer):
    with pytest.raises(TypeError, match=r"type of nn\.Module or its full name"):
        pv.register_layer(layer)


NONLINEAR = {
    "relu": torch.relu,  # homogeneous: scaling by a positive number does not tell
    "square": torch.square,
    "tanh": torch.tanh,
    "normalised": nn.functional.normalize,
    "residual": lambda x: x + 1,
}


class Bent(nn.Module):
    def __init__(self, bend):
        super().__init__()
        self.weight, self.bend = nn.Parameter(noise(4, 6)), bend

    def forward(self, x):
        return self.bend(x @ self.weight)


@pytest.mark.parametrize("start", [pv.variance_init, pv.data_dependent_init])
@pytest.mark.parametrize("bend", NONLINEAR.values(), ids=NONLINEAR)
def test_what_is_not_linear_in_its_weights_is_left_alone_with_a_warning(bend, start):
    pv.register_layer(Bent)
    model = nn.Sequential(Bent(bend), nn.Linear(6, 3))
    before = model[0].weight.clone()
    with pytest.warns(UserWarning, match="0 is not linear in its weights"):
        report = start(model, noise(16, 4))
    assert report.left_alone == {"0": "not linear in its weights"}
    assert [entry.name for entry in report.layers] == ["1"]
    assert torch.equal(model[0].weight, before)


class Standardised(nn.Linear):
    """A subclass whose formula is another one: Z of a plain Linear would be wrong for it."""

    def forward(self, input):
        return 3 * super().forward(input)


def test_a_subclass_with_a_forward_of_its_own_is_probed():
    layer, x = Standardised(4, 8, bias=False), noise(16, 4)
    report = pv.variance_init(layer, x)
    assert report.layers[0].note == "probed"
    assert moment(layer(x)) == pytest.approx(1, rel=1e-5)
    patched = nn.Linear(4, 8)
    patched.forward = lambda x: 2 * nn.functional.linear(x, patched.weight)
    assert pv.variance_init(patched, x).layers[0].note == "probed"
    assert moment(patched(x)) == pytest.approx(1, rel=1e-5)


class Several(nn.Linear):
    def forward(self, x):
        return [(super().forward(nn.functional.dropout(x, 0.5, self.training)), x)], 3


def test_the_first_of_several_outputs_counts_and_every_trial_draws_the_same_dropout():
    layer, x = Several(4, 8), noise(16, 4)
    layer.bias.data.fill_(5.0)
    report = pv.variance_init(layer, x, bias="keep", mode="eval")
    assert report.layers[0].note == "probed"
    assert moment(layer.eval()(x)[0][0][0] - 5) == pytest.approx(1, rel=1e-5)
    assert pv.variance_init(layer, x).left_alone == {}  # with other dropout it would not be linear


def own_dropout(numbers):
    class Dropped(nn.Linear):
        def forward(self, x):
            return super().forward(x * torch.as_tensor(numbers(len(x)) > 0.5, dtype=x.dtype)[:, None])

    return Dropped(4, 8)


@pytest.mark.parametrize(
    "numbers", [np.random.rand, lambda n: torch.tensor([random.random() for _ in range(n)])]
)
def test_random_numbers_of_numpy_and_python_are_the_same_in_every_trial(numbers):
    layer, x = own_dropout(numbers), noise(64, 4)
    before = random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    for batches in (x, [x, x]):
        assert pv.variance_init(layer, batches).left_alone == {}  # with others it would not be linear
    assert (random.getstate(), np.random.get_state()[2]) == before  # noqa: NPY002


def test_an_output_that_is_no_tensor_is_an_error_that_names_the_layer():
    class Strange(nn.Linear):
        def forward(self, x):
            return {"x": super().forward(x)}

    with pytest.raises(TypeError, match=r"Strange must return a tensor to be measured, got dict"):
        pv.variance_init(Strange(4, 4), noise(3, 4))


@pytest.mark.parametrize(
    "norm", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_parametrised_weights_are_left_alone(norm):
    model = nn.Sequential(norm(nn.Linear(4, 8)), nn.Linear(8, 2))
    before = {n: p.clone() for n, p in model.named_parameters() if n.startswith("0.")}
    report = pv.variance_init(model, noise(16, 4))
    assert report.left_alone == {"0": "its weight is parametrised (weight norm, spectral norm, ...)"}
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters() if n in before)


def test_weight_norm_of_the_old_kind_is_left_alone():
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(4, 8))
    report = pv.variance_init(nn.Sequential(old, nn.Linear(8, 2)), noise(16, 4))
    assert report.left_alone == {"0": "it has no parameter named weight"}


def test_frozen_weights_and_biases_stay():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    frozen = [model[0].weight.clone(), model[0].bias.clone(), model[1].bias.clone()]
    report = pv.variance_init(model, noise(16, 4))
    assert report.left_alone == {"0": "frozen"}
    assert [entry.name for entry in report.layers] == ["1", "2"]
    now = [model[0].weight, model[0].bias, model[1].bias]
    assert all(torch.equal(a, b) for a, b in zip(now, frozen, strict=True))


def test_a_partly_frozen_layer_stays():
    pv.register_layer(Own, weight=("kernel", "skip.weight"), bias=("added", "*.bias"))
    model = nn.Sequential(Own(), nn.Linear(6, 2))
    model[0].kernel.requires_grad_(False)
    assert pv.variance_init(model, noise(16, 4)).left_alone == {"0": "frozen"}


@pytest.mark.parametrize(
    "lazy", [lambda: nn.LazyLinear(8), lambda: nn.Sequential(nn.Linear(4, 8), nn.LazyBatchNorm1d())]
)
@pytest.mark.parametrize(
    "start",
    [
        lambda m: pv.variance_init(m, noise(16, 4)),
        pv.standard_init,
        lambda m: pv.variance_report(m, noise(16, 4)),
    ],
    ids=["direct", "standard", "report"],
)
def test_lazy_modules_need_a_pass_before(start, lazy):
    model = lazy()
    with pytest.raises(ValueError, match="is lazy, without a shape as yet: run the model once"):
        start(model)
    assert any(nn.parameter.is_lazy(p) for p in model.parameters())
    model(noise(16, 4))
    start(model)


def test_modules_without_a_rule_are_named():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.MultiheadAttention(8, 2))
    report = pv.variance_init(model, noise(16, 4), forward=lambda m, x: m[2](*[m[1](m[0](x))] * 3))
    assert report.left_alone == {"1": "no rule for LayerNorm"}


FANS = {
    "linear": (nn.Linear(6, 10), (6, 6, 10)),
    "convolution": (nn.Conv2d(6, 10, 3), (6, 54, 90)),
    "grouped": (nn.Conv2d(6, 10, 3, groups=2), (3, 27, 45)),
    "transposed": (nn.ConvTranspose2d(6, 10, 3), (6, 54, 90)),
    "grouped, transposed": (nn.ConvTranspose2d(6, 10, 3, groups=2), (3, 27, 45)),
    "point": (pv.KPConvN(6, 10, num_basis=5), (6, 30, 50)),
}


@pytest.mark.parametrize(("module", "fans"), FANS.values(), ids=FANS)
def test_fans(module, fans):
    assert find_layers(module)[0][0].fans() == fans
    assert find_layers(module)[0][0].kind.second_moment is not None  # by a formula, not by a probe


def test_a_shared_weight_belongs_to_the_first():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    layers, left = find_layers(model)
    assert [layer.name for layer in layers] == ["0", "1"]
    assert left == {"2": "shares its weight with 0"}


def test_a_pass_that_fails_leaves_no_trace():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def fail():
        nn.init.zeros_(model[0].weight)
        model(noise(8, 4))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), restored(model):
        fail()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_only_cuda_has_a_random_state_of_its_own():
    assert devices_of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))) == []


CALLS = {
    "variance_init": pv.variance_init,
    "norm_free": pv.norm_free,
    "variance_report": pv.variance_report,
    "closed_form_init": lambda model, _, **options: pv.closed_form_init(model, **options),
    "transfer_init": lambda model, _, **options: pv.transfer_init(model, "modelnet40", **options),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_model_is_told(call):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got Tensor"):
        CALLS[call](torch.rand(4, 3), nn.Linear(3, 2))
    with pytest.raises(TypeError, match="got the class Linear"):
        CALLS[call](nn.Linear, torch.rand(4, 3))


@pytest.mark.parametrize("call", ["variance_init", "norm_free"])
def test_a_seed_is_no_generator(call):
    with pytest.raises(TypeError, match=r"generator must be .*manual_seed\(3\), got int"):
        CALLS[call](nn.Linear(3, 2), torch.rand(4, 3), generator=3)
