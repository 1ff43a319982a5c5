"""Every figure is made as pictures and as numbers, on a small scale, and the numbers are right."""

import json

import pytest
import torch
from conftest import ROOT
from experiments import FIGURES, fig_collapse, fig_correlation, fig_rank, figures, load
from experiments.__main__ import main
from experiments.options import Options

import pointvar as pv
from pointvar.data import Shapes

SMALL = {
    "DEPTH": 3,
    "CHANNELS": 4,
    "CLOUDS": 2,
    "SEEDS": 2,
    "CALIBRATION": 2,
    "UNSEEN": 2,
    "POINTS": 120,
    "REPEATS": 1,
    "SIDE": 9,
}
WRITES = {
    "fig-basis": ("fig-basis", "fig-estimators"),
    "fig-closed-form": ("fig-closed-form-synthetic-shapes",),
    "fig-depth": ("fig-depth-activations", "fig-depth-gradients"),
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes a figure of two methods, and gives its numbers by file."""

    def made(name):
        module = load(name)
        monkeypatch.setattr(figures, "METHODS", ("SPHConv", "KPConvN"))
        for constant, value in SMALL.items():
            if hasattr(module, constant):
                monkeypatch.setattr(module, constant, value)
        assert main([name, "--output", str(tmp_path), "--synthetic"]) == 0
        return {
            stem: json.loads((tmp_path / f"{stem}.json").read_text(), parse_constant=pytest.fail)
            for stem in WRITES.get(name, (name,))
        }

    return made


def batch_by_hand(first, last):
    """Normals of built-in shapes, thinned, and their neighbourhoods."""
    shapes = Shapes(last, normals=True)
    samples = [shapes[i] for i in range(first, last)]
    cloud = pv.PointCloud.from_list([s.points for s in samples])
    levels = pv.Hierarchy(cloud, [0.1], 3.0, 16, torch.Generator().manual_seed(0))
    return torch.cat([s.features for s in samples])[levels.kept[0]], levels.within(0)


@torch.no_grad()
def moments_by_hand(method, draw, seed, calibrated, batch, **options):
    """Mean squares of what each convolution gives, layer by layer as the network is defined."""
    features, hood = batch
    radius, generator = float(calibrated[1].radius.mean()), torch.Generator().manual_seed(seed)
    options = {"unit_response": False, "precondition": False} | options
    net = pv.models.PlainNet(3, 4, 3, method=method, radius=radius, generator=generator, **options)
    draw(net, calibrated, torch.Generator().manual_seed(1000 + seed))
    result = []
    for module in net.modules():
        if isinstance(module, pv.PointConvolution):
            features = module(features, hood)
            result.append(float(features.square().mean()))
            features = torch.nn.functional.leaky_relu(features, 0.2)
    return result


def standard(net, batch, generator):
    pv.standard_init(net, generator=generator)


def direct(net, batch, generator):
    pv.variance_init(net, batch, generator=generator)


def centred(net, batch, generator):
    pv.variance_init(net, batch, generator=generator, center=1)


KINDS = {"standard": standard, "direct": direct, "centred": centred, "centred, unit response": centred}


def test_fig_variance_has_the_second_moments_of_every_draw(make):
    found = make("fig-variance")["fig-variance"]
    batch = batch_by_hand(0, 2)
    assert set(found["second_moment"]) == {"SPHConv", "KPConvN"}
    for method, curves in found["second_moment"].items():
        for name, draw in {"standard": standard, "direct": direct}.items():
            for seed, curve in enumerate(curves[name]):
                assert curve == pytest.approx(moments_by_hand(method, draw, seed, batch, batch), rel=1e-4)
        exact = torch.tensor(curves["direct, exact"])
        assert exact.shape == (2, 3)
        torch.testing.assert_close(exact, torch.ones(2, 3), rtol=1e-3, atol=0)
        standards = torch.tensor(curves["standard"], dtype=torch.float64).mean(0)
        shown = [f"{float(standards.min()):.3g}", f"{float(standards.max()):.3g}"]
        assert found["summary"][method]["standard"]["mean"] == shown
        assert curves["transfer"] != curves["direct"]


def test_fig_unseen_has_the_second_moments_of_each_other_cloud(make):
    found = make("fig-unseen")["fig-unseen"]
    seen = batch_by_hand(0, 2)
    for method, curves in found["second_moment"].items():
        for name, draw in KINDS.items():
            for number, curve in enumerate(curves[name]):
                other = batch_by_hand(2 + number, 3 + number)
                unit = name == "centred, unit response"
                by_hand = moments_by_hand(method, draw, 0, seen, other, unit_response=unit)
                assert curve == pytest.approx(by_hand, rel=1e-4)
            last = sorted(curve[-1] for curve in curves[name])
            shown = found["layer_3"][method][name]
            assert shown == {"median": pytest.approx(last[0]), "least": last[0], "largest": last[1]}


def test_fig_collapse_has_the_parts_of_the_second_moment(make, monkeypatch):
    monkeypatch.setattr("experiments.fig_collapse.METHODS", ("SPHConv",))
    curves = make("fig-collapse")["fig-collapse"]["by_layer"]["SPHConv"]
    seen, other = batch_by_hand(0, 2), batch_by_hand(2, 4)
    for kind, draw in KINDS.items():
        unit = kind == "centred, unit response"
        for name, batch in {"calibrated": seen, "unseen": other}.items():
            by_hand = moments_by_hand("SPHConv", draw, 0, seen, batch, unit_response=unit)
            assert curves[kind][name]["second moment"] == pytest.approx(by_hand, rel=1e-4)
    assert curves["centred"]["calibrated"]["share around the mean"] == pytest.approx([1, 1, 1], abs=1e-5)


def test_parts_of_a_second_moment():
    """Two clouds of two points, one channel: 1, 3 and 5, 7 have the mean 4, around which 5 of 21 is left."""
    cloud = pv.PointCloud.from_list([torch.zeros(2, 3), torch.zeros(2, 3)])
    found = fig_collapse.moments(torch.tensor([[1.0], [3.0], [5.0], [7.0]]).double(), cloud)
    assert found == pytest.approx((21, 5 / 21, 4 / 21))


def test_fig_depth_has_activations_and_gradients(make):
    found = make("fig-depth")
    batch = batch_by_hand(0, 2)
    names = {"standard", "direct", "unit response, direct"}
    for what in ("activations", "gradients"):
        curves = found[f"fig-depth-{what}"]["second_moment"]
        assert {name: torch.tensor(c).shape for name, c in curves["SPHConv"].items()} == dict.fromkeys(
            names, (2, 3)
        )
        assert all(value > 0 for by in curves.values() for c in by.values() for d in c for value in d)
    by_hand = moments_by_hand("SPHConv", direct, 1, batch, batch, unit_response=True)
    activations = found["fig-depth-activations"]["second_moment"]["SPHConv"]
    assert activations["unit response, direct"][1] == pytest.approx(by_hand, rel=1e-4)
    gradients = found["fig-depth-gradients"]["second_moment"]["SPHConv"]
    assert gradients["direct"] != activations["direct"]


def test_fig_closed_form_has_both_kinds_of_weights_and_the_coherence(make):
    batch = batch_by_hand(0, 2)
    (found,) = make("fig-closed-form").values()
    by_hand = moments_by_hand("SPHConv", direct, 0, batch, batch, unit_response=True)
    assert found["second_moment"]["SPHConv"]["direct"][0] == pytest.approx(by_hand, rel=1e-4)
    shown = found["summary"]["SPHConv"]
    last = torch.tensor([curve[-1] for curve in found["second_moment"]["SPHConv"]["closed form"]])
    assert shown["closed form, last layer"] == pytest.approx(float(last.prod()) ** 0.5, rel=1e-4)
    assert 0 < shown["coherence, least"] <= shown["coherence, mean"] <= shown["coherence, largest"] <= 1.05


@pytest.mark.parametrize("name", ["fig-motivation", "fig-correlation", "fig-basis", "fig-architecture"])
def test_a_figure_is_written_as_pictures_and_numbers(name, make, tmp_path):
    for stem, numbers in make(name).items():
        assert (tmp_path / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (tmp_path / f"{stem}.svg").read_text()
        assert numbers.get("clouds", "synthetic shapes") == "synthetic shapes"
        assert numbers.pop("caption").lower() == f"{FIGURES[name].lower()}."
        if name == "fig-motivation":
            curves = numbers["variance"]
            assert {len(curve) for curve in curves.values()} == {3}
            assert curves["points, variance-aware"][-1] == pytest.approx(1, rel=0.9)
        if stem == "fig-estimators":
            errors = numbers["relative_error_of_shape"]
            assert errors["true integral"] == pytest.approx(0, abs=1e-6)
            assert set(errors) == {"Monte Carlo", "Average", "Sum", "true integral"}
        if name == "fig-architecture":
            assert [layer["kind"] for layer in numbers["classifier"]].count("linear") > 0
            assert numbers["U-Net"][0]["incoming"] == 3


def test_only_monte_carlo_follows_the_integral_where_points_are_uneven(tmp_path):
    load("fig-basis")._estimators(Options(tmp_path))
    errors = json.loads((tmp_path / "fig-estimators.json").read_text())["relative_error_of_shape"]
    assert errors["Monte Carlo"] < 0.5 * min(errors["Average"], errors["Sum"])


def test_unknown_experiments_are_named(capsys):
    with pytest.raises(SystemExit) as end:
        main(["fig-nothing"])
    assert end.value.code == 2
    assert "fig-variance" in capsys.readouterr().err


def test_correlogram_of_what_is_alike_and_of_what_is_not():
    points = torch.tensor([[0.0], [0.01], [0.1], [0.11]])
    alike = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    curve = fig_correlation.correlogram(points, alike)
    near, far = int(0.01 / 0.2 * 40 + 1e-3), int(0.1 / 0.2 * 40 + 1e-3)
    assert curve[near] == pytest.approx(1)
    assert curve[far] == pytest.approx(-1)
    assert curve[near + 5].isnan()


def test_effective_rank_counts_functions_that_differ(make):
    one = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    assert fig_rank.effective_rank(torch.eye(5)) == pytest.approx(5)
    assert fig_rank.effective_rank(torch.cat([one, 2 * one, -one], 1)) == pytest.approx(1)
    # Two that are orthogonal, one with a variance of 9: (1 + 9)^2 / (1 + 81).
    assert fig_rank.effective_rank(torch.tensor([[1.0, 0.0], [0.0, 3.0]])) == pytest.approx(100 / 82)
    found = make("fig-rank")["fig-rank"]
    assert found["mean"]["FlexConv"] == pytest.approx(sum(found["ranks"]["FlexConv"]) / 2)
    assert all(1 <= rank <= found["sizes"][method] for method, rank in found["mean"].items())


def test_committed_figures_have_their_captions():
    for path in (ROOT / "results" / "figures").glob("*.json"):
        caption = json.loads(path.read_text())["caption"]
        assert caption == figures.caption("fig-basis" if path.stem == "fig-estimators" else path.stem)
