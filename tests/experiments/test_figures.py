"""Every figure is made by its command, as pictures and as numbers, on a small scale."""

import json

import pytest
import torch

from pointvar import experiments
from pointvar.cli import main
from pointvar.experiments import fig_correlation, fig_rank

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
    "fig-closed-form": (
        "fig-closed-form-synthetic-shapes",
        "fig-closed-form-synthetic-shapes-orthonormal",
    ),
    "fig-depth": ("fig-depth-activations", "fig-depth-gradients"),
}


@pytest.mark.parametrize("name", [n for n in experiments.EXPERIMENTS if n.startswith("fig-")])
def test_a_figure_is_written_as_picture_and_numbers(name, tmp_path, monkeypatch, capsys):
    module = experiments.load(name)
    for constant, value in SMALL.items():
        if hasattr(module, constant):
            monkeypatch.setattr(module, constant, value)
    assert main(["reproduce", name, "--output", str(tmp_path), "--synthetic"]) == 0
    for stem in WRITES.get(name, (name,)):
        assert (tmp_path / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (tmp_path / f"{stem}.svg").read_text()
        numbers = json.loads((tmp_path / f"{stem}.json").read_text(), parse_constant=pytest.fail)
        assert numbers.get("clouds", "synthetic shapes") == "synthetic shapes"


def test_unknown_experiments_are_named(capsys):
    assert main(["reproduce", "fig-nothing"]) == 2
    assert "fig-variance" in capsys.readouterr().err


def test_correlogram_of_what_is_alike_and_of_what_is_not():
    points = torch.tensor([[0.0], [0.01], [0.1], [0.11]])
    alike = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    curve = fig_correlation.correlogram(points, alike)
    near, far = int(0.01 / 0.2 * 40 + 1e-3), int(0.1 / 0.2 * 40 + 1e-3)
    assert curve[near] == pytest.approx(1)
    assert curve[far] == pytest.approx(-1)
    assert curve[near + 5].isnan()


def test_effective_rank_counts_functions_that_differ():
    one = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    assert fig_rank.effective_rank(torch.eye(5)) == pytest.approx(5)
    assert fig_rank.effective_rank(torch.cat([one, 2 * one, -one], 1)) == pytest.approx(1)
    # Two that are orthogonal, one with a variance of 9: (1 + 9)^2 / (1 + 81).
    assert fig_rank.effective_rank(torch.tensor([[1.0, 0.0], [0.0, 3.0]])) == pytest.approx(100 / 82)
