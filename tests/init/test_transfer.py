"""Tables of z: how they are made, kept, and used."""

import json
from datetime import date

import pytest
import torch
from convolution_cases import seeded
from torch import nn

import pointvar as pv
from pointvar.init import Table, compute_table, tables

Z = [0.5, 0.2, 0.1]


def a_table(**changes):
    values = {
        "name": "made up",
        "z": {"MCConv": Z, "KPConvN": [0.3], "MCConv unit": [0.9, 0.8, 0.7], "PointConv": Z},
        "num_basis": {"MCConv": 16, "KPConvN": 16, "MCConv unit": 16, "PointConv": 16},
        "activation_moment": 0.52,
        "max_neighbors": 16,
    }
    return Table(**{**values, **changes})


class Net(nn.Module):
    def __init__(self, *convs, activation=None):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.convs = nn.ModuleList(convs)
        if activation is not None:
            self.activation = activation


def three(**options):
    return [pv.MCConv(4 * (i + 1), 4 * (i + 2), **options) for i in range(3)]


def variances(report):
    return [entry.variance for entry in report.layers]


def test_the_formula_by_depth_and_channels():
    report = pv.transfer_init(Net(*three()), a_table(), target=2.0, input_moment=5.0)
    assert variances(report) == pytest.approx([2 / (4 * 0.5 * 5), 1 / (8 * 0.2), 1 / (12 * 0.1)])
    assert [entry.depth for entry in report.layers] == [0, 1, 2]
    assert [entry.second_moment for entry in report.layers] == pytest.approx([10.0, 3.2, 2.4])
    assert report.left_alone == {"stem": "no point convolution"}
    assert report.method == "transfer from made up"
    assert "depth 2" in str(report)


def test_unit_response_has_its_own_row():
    report = pv.transfer_init(Net(*three(unit_response=True)), a_table())
    assert variances(report) == pytest.approx([1 / (4 * 0.9), 1 / (8 * 0.8), 1 / (12 * 0.7)])


def test_depths_override_the_order_of_registration():
    report = pv.transfer_init(Net(*three()), a_table(), depths={"convs.0": 2, "convs.2": 0})
    assert [entry.depth for entry in report.layers] == [2, 1, 0]
    assert variances(report) == pytest.approx([1 / (4 * 0.1), 1 / (8 * 0.2), 1 / (12 * 0.5)])


def test_depth_counts_layers_that_are_not_set():
    net = Net(*three())
    net.convs[0].requires_grad_(False)
    report = pv.transfer_init(net, a_table(), layers=["convs.0", "convs.2"], input_moment=9.0)
    assert [(entry.name, entry.depth) for entry in report.layers] == [("convs.2", 2)]
    assert variances(report) == pytest.approx([1 / (12 * 0.1)])


def test_beyond_the_table_the_last_value_serves_and_a_warning_says_so():
    net = Net(*three(), pv.MCConv(16, 4), pv.MCConv(4, 4))
    with pytest.warns(UserWarning, match=r"2 layers lie deeper .* from convs\.3 on"):
        report = pv.transfer_init(net, a_table())
    assert variances(report)[3:] == pytest.approx([1 / (16 * 0.1), 1 / (4 * 0.1)])
    assert [entry.note for entry in report.layers] == ["", "", ""] + ["beyond the table: its last value"] * 2


ACTIVATIONS = {
    "module": ({"activation": nn.ReLU()}, None),
    "name": ({}, "relu"),
    "function": ({}, torch.relu),
    "number": ({}, 0.5 * 3.0),  # of a Gaussian of the target variance
}


@pytest.mark.parametrize(("model", "activation"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_z_scales_with_the_second_moment_of_another_activation(model, activation):
    report = pv.transfer_init(Net(*three(), **model), a_table(), target=3.0, activation=activation)
    ratio = 0.5 / 0.52
    expected = [3 / (4 * 0.5), 1 / (8 * 0.2 * ratio), 1 / (12 * 0.1 * ratio)]
    assert variances(report) == pytest.approx(expected, rel=1e-5)


def test_activations_inside_of_a_basis_are_not_between_the_layers():
    convs = [pv.PointConv(4, 4, radius=0.1), pv.PointConv(4, 4, radius=0.1)]
    report = pv.transfer_init(Net(*convs), a_table(), target=3.0)
    assert variances(report) == pytest.approx([3 / (4 * 0.5), 1 / (4 * 0.2)])


ERRORS = {
    "method": (lambda: [pv.PCCNN(4, 4)], {}, r"convs\.0 is 'PCCNN', which table 'made up' does .* make one"),
    "unit": (lambda: [pv.KPConvN(4, 4, unit_response=True)], {}, "'KPConvN unit', which"),
    "size": (lambda: [pv.MCConv(4, 4, num_basis=8)], {}, "has K = 8 basis functions, .* with 16 for MCConv"),
    "cap": (three, {"max_neighbors": 32}, "made with at most 16 neighbours, not 32"),
    "target": (three, {"target": 0.0}, "target must be positive"),
    "moment": (three, {"input_moment": -1.0}, "input_moment must be positive"),
    "name": (three, {"depths": {"convs.9": 0}}, r"depths names convs\.9, no point convolution"),
    "depth": (three, {"depths": {"convs.1": -1}}, r"depth of convs\.1 must be at least 0"),
    "nothing": (list, {}, "has no layer that could be initialised"),
}


@pytest.mark.parametrize(("convs", "options", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_come_before_anything_is_drawn(convs, options, message):
    net = Net(*convs())
    before = {name: p.clone() for name, p in net.named_parameters()}
    with pytest.raises(ValueError, match=message):
        pv.transfer_init(net, a_table(), **options)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_the_same_cap_is_accepted():
    pv.transfer_init(Net(*three()), a_table(), max_neighbors=16)


def test_a_table_survives_its_file(tmp_path):
    table = a_table(provenance={"data": "Würfel", "seed": 3})
    table.save(tmp_path / "own.json")
    assert Table.load(tmp_path / "own.json") == table
    a, b = Net(*three()), Net(*three())
    pv.transfer_init(a, str(tmp_path / "own.json"), generator=seeded())
    pv.transfer_init(b, table, generator=seeded())
    assert all(torch.equal(x.weight, y.weight) for x, y in zip(a.convs, b.convs, strict=True))
    rows = "MCConv, KPConvN, MCConv unit, PointConv"
    assert str(table) == f"table 'made up': z of {rows} at 3 depths, {{'data': 'Würfel', 'seed': 3}}"


CORRUPT = {
    "no JSON": "{",
    "a list": "[1, 2]",
    "a number": "3",
    "fields missing": '{"name": "x"}',
    "another field": json.dumps({**a_table().__dict__, "more": 1}),
    "empty row": json.dumps({**a_table().__dict__, "z": {"MCConv": []}}),
    "no rows": json.dumps({**a_table().__dict__, "z": {}}),
    "negative z": json.dumps({**a_table().__dict__, "z": {"MCConv": [0.3, -0.1]}}),
    "infinite z": json.dumps({**a_table().__dict__, "z": {"MCConv": [0.3, float("inf")]}}),
    "infinite moment": json.dumps({**a_table().__dict__, "activation_moment": float("inf")}),
    "text for z": json.dumps({**a_table().__dict__, "z": {"MCConv": ["a"]}}),
    "z is a list": json.dumps({**a_table().__dict__, "z": [0.1]}),
    "no K": json.dumps({**a_table().__dict__, "num_basis": {}}),
    "no moment": json.dumps({**a_table().__dict__, "activation_moment": 0}),
}


@pytest.mark.parametrize("text", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_an_error_that_names_it(text, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json is not a table of z"):
        Table.load(tmp_path / "bad.json")


def test_unknown_tables_and_files():
    with pytest.raises(ValueError, match="there is no table 'nowhere'; shipped: "):
        pv.transfer_init(Net(*three()), "nowhere")
    with pytest.raises(ValueError, match="there is no file nowhere"):
        pv.transfer_init(Net(*three()), "nowhere.json")


@pytest.mark.parametrize("name", tables())
def test_shipped_tables_can_be_read(name):
    table = Table.load(name)
    assert table.name == name
    assert table.provenance


@pytest.mark.parametrize("method", pv.methods.METHODS)
def test_a_computed_table_is_what_direct_initialisation_measures(method):
    """The same networks from the same seeds, set layer by layer."""
    batches = []
    for seed in range(2):
        cloud = pv.PointCloud(torch.rand(60, 3, generator=seeded(seed)))
        hood = pv.ball_query(cloud, cloud, 0.3 + 0.1 * seed, max_neighbors=16, generator=seeded(seed))
        batches.append((2 * torch.randn(60, 3, generator=seeded(seed)), hood))
    table = compute_table("own", batches, [method], depth=3, channels=8, repeats=2, seed=4, max_neighbors=16)
    assert list(table.z) == list(table.num_basis) == [method, f"{method} unit"]
    for row, unit in zip(table.z, (False, True), strict=True):
        expected = torch.zeros(3, dtype=torch.float64)
        for seed in (4, 5):
            generator, inputs = seeded(seed), batches
            for depth in range(3):
                channels = inputs[0][0].shape[1]
                conv = pv.methods.resolve(
                    method, channels, 8, bias=False, unit_response=unit, generator=generator
                )
                entry = pv.variance_init(conv, inputs, exact=False, generator=generator).layers[0]
                moment = sum(float(f.square().mean()) for f, _ in batches) / 2 if depth == 0 else 1
                expected[depth] += entry.second_moment / channels / moment / 2
                inputs = [(nn.functional.leaky_relu(conv(f, hood).detach(), 0.2), hood) for f, hood in inputs]
        torch.testing.assert_close(torch.tensor(table.z[row]).double(), expected, rtol=1e-4, atol=0)
        assert table.num_basis[row] == conv.basis.size


def test_a_computed_table_says_how_it_was_made():
    cloud = pv.PointCloud(torch.rand(30, 3, generator=seeded()))
    batch = torch.randn(30, 3, generator=seeded()), pv.ball_query(cloud, cloud, 0.4)
    options = {"depth": 2, "channels": 4, "repeats": 1, "seed": 3, "max_neighbors": 9}
    shown = []
    table = compute_table(
        "own",
        [batch],
        ["KPConv", "FlexConv"],
        num_basis=5,
        activation=nn.ReLU(),
        provenance={"data": "random"},
        progress=lambda rows: shown.extend(rows) or rows,
        **options,
    )
    assert shown == [("KPConv", False), ("KPConv", True), ("FlexConv", False), ("FlexConv", True)]
    assert table.num_basis == {"KPConv": 5, "KPConv unit": 5, "FlexConv": 4, "FlexConv unit": 4}
    assert (table.name, table.max_neighbors) == ("own", 9)
    assert table.activation_moment == pytest.approx(0.5, rel=1e-5)
    today = {"date": date.today().isoformat(), "activation": "ReLU()", "data": "random"}
    assert table.provenance == {**options, **today}
    assert all(float(f"{z:.6g}") == z for row in table.z.values() for z in row)


def test_a_table_gives_its_own_network_the_target_variance():
    cloud = pv.PointCloud(torch.rand(300, 3, generator=seeded()))
    hood = pv.ball_query(cloud, cloud, 0.35, max_neighbors=16, generator=seeded())
    features = torch.randn(300, 3, generator=seeded())
    table = compute_table("own", [(features, hood)], ["MCConv"], depth=5, channels=64)
    net = pv.models.PlainNet(5, 64, 3, method="MCConv", unit_response=True)
    pv.transfer_init(net, table, input_moment=float(features.square().mean()), generator=seeded())
    pv.testing.assert_variance(net, (features, hood), 0.25, 4)
