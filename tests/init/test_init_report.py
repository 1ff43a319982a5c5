"""The report of an initialisation: as text, by name, as plain numbers; and what it counts."""

import json
from types import SimpleNamespace

import pytest
import torch
from convolution_cases import seeded
from initialisation_cases import cloud_batch, mlp, noise

import pointvar as pv
from pointvar.init import InitReport, LayerInit

REPORT = InitReport(
    "direct",
    [
        LayerInit("a", "Linear", 0.25, 1.0, 4.0),
        LayerInit("longer", "KPConv", 1 / 3, depth=2, calls=2, note="probed"),
        LayerInit("b", "Conv2d", 1e-7, 2.0, 12345.678, note="x"),
    ],
    {"norm": "no rule for BatchNorm1d", "head.1": "frozen"},
    batches=1,
    clouds=2,
    points=1234,
    passes=1,
    seconds=0.5,
)
TEXT = """\
direct: 3 layers set from 1 batch, 2 clouds, 1,234 points, 1 pass in 0.50 s
  layer   type            Z  Var[w]  target
  a       Linear          4    0.25       1
  longer  KPConv             0.3333          depth 2; probed; called 2 times, set at the first
  b       Conv2d  1.235e+04   1e-07       2  x
left alone:
  norm    no rule for BatchNorm1d
  head.1  frozen"""


def test_as_text():
    assert str(REPORT) == TEXT
    without_data = InitReport("standard", [LayerInit("a", "Linear", 0.25)] * 2)
    assert str(without_data) == (
        "standard: 2 layers set\n"
        "  layer  type    Z  Var[w]  target\n"
        "  a      Linear       0.25\n"
        "  a      Linear       0.25"
    )
    unknown = InitReport("direct", without_data.layers, batches=2, passes=6, seconds=0.126)
    assert str(unknown).startswith("direct: 2 layers set from 2 batches, 6 passes in 0.13 s\n")


def test_by_name_and_as_plain_numbers():
    assert REPORT["longer"] is REPORT.layers[1]
    with pytest.raises(KeyError, match=r"no layer 'c' was set; those that were: \['a', 'longer', 'b'\]"):
        REPORT["c"]
    plain = json.loads(json.dumps(REPORT.to_dict()))
    assert InitReport(**{**plain, "layers": [LayerInit(**layer) for layer in plain["layers"]]}) == REPORT


def test_what_an_initialisation_says_of_itself():
    report = pv.variance_init(mlp(), noise(8, 4))
    assert (report.method, report.batches, report.passes) == ("direct", 1, 1)
    assert (report.clouds, report.points) == (None, None)
    assert report.seconds > 0
    assert [entry.kind for entry in report.layers] == ["Linear"] * 3
    methods = {pv.lsuv_init: "LSUV", pv.data_dependent_init: "data-dependent"}
    for start, method in methods.items():
        assert start(mlp(), noise(8, 4)).method == method
    assert pv.variance_init(mlp(), noise(8, 4), orthogonal=True).method == "direct"
    rules = {pv.standard_init: "standard", pv.xavier_init: "Xavier", pv.channel_init: "1/C"}
    for start, method in rules.items():
        report = start(mlp())
        assert (report.method, report.batches, report.passes) == (method, 0, 0)
        assert all(entry.target is entry.second_moment is entry.depth is None for entry in report.layers)


FEATURES, HOOD = cloud_batch()  # two clouds of 60 points
LEVELS = pv.Hierarchy(HOOD.support, radii=[0.1], generator=seeded())
FINE = LEVELS.clouds[0].num_points
SIZES = {
    "tuple": ((FEATURES, HOOD), (2, 120)),
    "mapping": ({"features": FEATURES, "hood": HOOD}, (2, 120)),
    "nested": (((FEATURES, [HOOD]), 3), (2, 120)),
    "hierarchy": ((torch.ones(FINE, 4), LEVELS), (2, FINE)),
    "cloud": ((HOOD.support, HOOD), (2, 120)),
    "object": (SimpleNamespace(cloud=HOOD.support), (2, 120)),
    "object without a cloud": (SimpleNamespace(cloud=3), (None, None)),
    "tensors": ((FEATURES, FEATURES), (None, None)),
    "nothing": ((), (None, None)),
}


@pytest.mark.parametrize(("batch", "sizes"), SIZES.values(), ids=SIZES)
def test_clouds_and_points_are_counted_where_a_batch_says_them(batch, sizes):
    conv = pv.KPConv(4, 4)
    report = pv.variance_init(conv, batch, forward=lambda model, batch: model(FEATURES, HOOD))
    assert (report.clouds, report.points) == sizes
    several = [batch, (FEATURES, HOOD), batch]
    report = pv.variance_init(conv, several, forward=lambda model, batch: model(FEATURES, HOOD))
    clouds, points = sizes
    assert (report.clouds, report.points) == (
        (None, None) if clouds is None else (2 * clouds + 2, 2 * points + 120)
    )
