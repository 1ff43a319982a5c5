"""Every option of the initialisation, and every way to give it batches."""

import sys

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import Wired, cloud_batch, mlp, moment, noise, same
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pointvar as pv


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
    pv.variance_init(net, data, 0.7, exact=True)
    for i in (1, 3, 5):
        assert sum(moment(net[:i](x)) for x in data) / batches == pytest.approx(0.7, rel=1e-5)


ORTHOGONAL = {
    "tall": (nn.Linear(5, 8), lambda: (noise(9, 5),), 0),
    "wide": (nn.Linear(8, 5), lambda: (noise(9, 8),), 0),
    "image": (nn.Conv1d(3, 4, 5), lambda: (noise(9, 3, 9),), 0),
    "transposed": (nn.ConvTranspose1d(3, 20, 2), lambda: (noise(9, 3, 9),), 1),
    "bilinear": (nn.Bilinear(2, 3, 4), lambda: (noise(9, 2), noise(9, 3)), 0),
    "point": (pv.KPConv(4, 6, num_basis=3), cloud_batch, 2),
}


@pytest.mark.parametrize(("layer", "batch", "out_dim"), ORTHOGONAL.values(), ids=ORTHOGONAL)
def test_orthogonal_draws(layer, batch, out_dim):
    report = pv.variance_init(layer, batch(), orthogonal=True, generator=seeded())
    matrix = layer.weight.detach().movedim(out_dim, 0).flatten(1)
    small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    expected = report.layers[0].variance * max(matrix.shape) * torch.eye(len(small))
    torch.testing.assert_close(small, expected, rtol=1e-4, atol=1e-5)
    # Uniform among all such matrices only if R of the Gaussian's Q R has a positive diagonal.
    drawn = torch.randn(layer.weight.shape, generator=seeded()).movedim(out_dim, 0).flatten(1)
    r = matrix.T @ drawn if len(matrix) >= matrix.shape[1] else matrix @ drawn.T
    assert (r.diagonal() > 0).all()
    torch.testing.assert_close(r.tril(-1), torch.zeros_like(r), rtol=0, atol=1e-4)


def test_lsuv_is_orthogonal_and_exact():
    x = noise(64, 4)
    a, b = mlp(), mlp()
    report = pv.lsuv_init(a, x, generator=seeded())
    pv.variance_init(b, x, orthogonal=True, exact=True, generator=seeded())
    assert report.method == "LSUV"
    assert same(a, b)
    pv.testing.assert_variance(a, x, 0.9999, 1.0001)


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
        mode: pv.variance_init(net, [x] * batches, mode=mode, dropout=True).layers[0].second_moment
        for mode in ("train", "eval", None)
    }
    assert z["eval"] == pytest.approx(4)
    assert z["train"] == pytest.approx(8, rel=0.1)  # 16,000 coins: 0.8 % deviation
    assert z[None] == pytest.approx(8, rel=0.1)
    assert pv.variance_init(net, [x] * batches).layers[0].second_moment == pytest.approx(4)
    net.eval()
    assert pv.variance_init(net, x, mode=None).layers[0].second_moment == pytest.approx(4)
    with pytest.raises(ValueError, match="mode must be 'train', 'eval' or None"):
        pv.variance_init(net, x, mode="test")


@pytest.mark.parametrize("start", [pv.variance_init, pv.lsuv_init, pv.data_dependent_init])
def test_behind_dropout_the_variance_is_right_in_evaluation(start):
    """Norms stay in training mode: in evaluation theirs would be the statistics of nothing."""
    parts = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.5))]
    net, x = nn.Sequential(nn.BatchNorm1d(32), *parts, nn.Linear(32, 5)), noise(400, 32) * 100
    start(net, x, generator=seeded())
    assert all(module.training for module in net.modules())
    net[0].momentum = None
    net[0].reset_running_stats()
    net(x)
    pv.testing.assert_variance(net, x, 0.8, 1.2, mode="eval")
    start(net, x, dropout=True, generator=seeded())
    with pytest.raises(AssertionError, match="outside"):
        pv.testing.assert_variance(net, x, 0.5, 2, mode="eval")


def _dropped_rnn():
    return Wired(lambda net, x: net.rnn(x)[0], rnn=nn.RNN(32, 32, 2, dropout=0.9))


def _attended(need_weights):
    def call(net, x):
        return net.attention(x[:, None], x[:, None], x[:, None], need_weights=need_weights)[0][:, 0]

    return lambda: Wired(call, attention=nn.MultiheadAttention(32, 2, dropout=0.9))


def _with_function(drop):
    return lambda: Wired(lambda net, x: drop(net, x))


DROPS = {
    "a function": _with_function(lambda net, x: nn.functional.dropout(x, 0.9, training=net.training)),
    "positional": _with_function(lambda net, x: nn.functional.dropout1d(x[None], 0.9, net.training)[0]),
    "attention": _with_function(
        lambda net, x: nn.functional.scaled_dot_product_attention(x, x, x, None, 0.9 * net.training)
    ),
    "attention by name": _with_function(
        lambda net, x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.9 * net.training)
    ),
    "multi-head attention": _attended(False),
    "its weights": _attended(True),
    "between recurrent layers": _dropped_rnn,
}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("make", DROPS.values(), ids=DROPS)
def test_whatever_drops_lets_all_through(make, batches):
    drop = make()
    net, x = nn.Sequential(nn.Linear(32, 32), drop, nn.Linear(32, 32)), noise(200, 32)
    before = {name: getattr(nn.functional, name) for name in dir(nn.functional)}
    pv.variance_init(net, [x] * batches, exact=True, generator=seeded())
    assert {name: getattr(nn.functional, name) for name in dir(nn.functional)} == before
    pv.testing.assert_variance(net, x, 0.99, 1.01, layers=["0", "2"], mode="eval")
    pv.variance_init(net, [x] * batches, exact=True, dropout=True, generator=seeded())
    with pytest.raises(AssertionError, match="outside"):
        pv.testing.assert_variance(net, x, 0.99, 1.01, layers=["0", "2"], mode="eval")


def test_every_pass_of_a_batch_meets_the_same_dropout():
    """Orthogonal weights keep the norm of a row: Z says what the output will be, if all is the same."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16, bias=False))
    batches = [noise(8, 16, seed=1), noise(8, 16, seed=2)]
    entry = pv.lsuv_init(net, batches, dropout=True).layers[0]
    assert entry.variance == pytest.approx(1 / entry.second_moment, rel=1e-4)


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
    pv.variance_init(nets["list"], chunks, generator=seeded())
    pv.variance_init(nets["loader"], loader, forward=lambda model, batch: model(batch[0]), generator=seeded())
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
    taken.clear()
    assert pv.data_dependent_init(mlp(), batches(), num_batches=2).batches == len(taken) == 2
    assert pv.variance_init(mlp(), batches(), num_batches=1).batches == 1
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


class Two(nn.Module):
    """Takes a tensor, and perhaps another one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, scale=1.0):
        return self.linear(x * scale)


LABELLED = {
    "tuple": lambda x: (x, torch.arange(8)),
    "mapping": lambda x: {"x": x, "label": torch.arange(8), "scale": 1.0},
    "loader": lambda x: DataLoader(TensorDataset(x, torch.arange(8)), batch_size=8),
}


@pytest.mark.parametrize("make", LABELLED.values(), ids=LABELLED)
def test_labels_that_a_model_has_no_parameter_for_are_left_out(make):
    one, other, x = Two(), Two(), noise(8, 4)
    pv.variance_init(one, make(x), generator=seeded())
    pv.variance_init(other, x, generator=seeded())
    assert same(one, other)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_an_error_inside_of_the_model_names_the_way_out_too():
    def call(net, x, mask=None):
        return net.linear(x if mask is None else x[mask + 100])

    net = Wired(call, linear=nn.Linear(4, 4))
    net.forward = lambda x, mask=None: call(net, x, mask)
    for run in (pv.variance_init, pv.norm_free, pv.variance_report):
        with pytest.raises(
            IndexError, match=r"out of (.|\n)*forward=lambda model, batch: model\(batch\[0\]\)"
        ):
            run(net, (noise(8, 4), torch.arange(8)))


@pytest.mark.parametrize("batch", [{"y": noise(8, 4)}, ()], ids=["mapping", "empty"])
def test_a_batch_that_does_not_fit_is_an_error_that_names_the_way_out(batch):
    with pytest.raises(TypeError, match=r"does not fit the forward of Two .*: say by forward="):
        pv.variance_init(Two(), batch)
