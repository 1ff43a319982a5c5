"""Training end to end, on runs of a second."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import room_data, tiny

import pointvar as pv
from pointvar.train import Data, fit, load_data

NORMS = ["none", "batch", "group", "layer"]


def test_learns_what_can_be_learned() -> None:
    """Twelve shapes of three classes, forty times: the network must know them by heart."""
    samples = [
        s for s in load_data(tiny({"data": {"train_size": 50, "rotate": False}}).data).train if s.label < 3
    ]
    data = Data(samples, samples, ["a", "b", "c"], 1)
    config = tiny(
        {
            "data": {"batch_size": 3, "scale": 0.0, "rotate": False},
            "model": {
                "channels": [16, 32],
                "head": 32,
                "unit_response": True,
                "dropout": 0,
                "head_dropout": 0,
            },
            "optimizer": {"rate": 0.01, "agc": 0.05},
        },
        epochs=40,
        evaluate_every=20,
    )
    result = fit(config, data)
    assert result.metrics["accuracy"] == 1.0
    assert len(result.accuracy) == 2
    assert len(result.history) == 40


@pytest.mark.parametrize("norm", NORMS)
def test_last_batch_of_one_cloud(norm: str) -> None:
    change = {"data": {"train_size": 5}, "model": {"norm": norm, "head_norm": "none"}, "epochs": 1}
    assert fit(tiny(change)).steps == 3


@pytest.mark.parametrize("norm", ["none", "group", "layer"])
def test_batches_of_one_cloud(norm: str) -> None:
    assert fit(tiny({"data": {"batch_size": 1}, "model": {"norm": norm}, "epochs": 1})).diverged is None


@pytest.mark.parametrize(("size", "batch_size"), [(5, 2), (6, 1)])
def test_batch_norm_in_the_head_refuses_one_cloud_at_once(size: int, batch_size: int) -> None:
    change = {"data": {"train_size": size, "batch_size": batch_size}, "model": {"norm": "batch"}}
    with pytest.raises(ValueError, match=r"a batch of one cloud is to come.*head_norm") as caught:
        fit(tiny(change))
    assert ("drop_last" in str(caught.value)) == (batch_size == 2)


def test_batch_norm_in_the_head_without_the_rest() -> None:
    change = {"data": {"train_size": 5, "drop_last": True}, "model": {"norm": "batch"}, "epochs": 1}
    assert fit(tiny(change)).steps == 2


@pytest.mark.parametrize(
    "method", ["direct", "transfer", "closed", "standard", "authors", "xavier", "lsuv", "data-dependent"]
)
def test_every_initialisation(method: str) -> None:
    if method == "transfer" and not (Path(pv.init.__file__).parent / "tables").is_dir():
        pytest.skip("no table is shipped")
    change = {"init": {"method": method}, "model": {"unit_response": method == "closed"}, "epochs": 1}
    result = fit(tiny(change))
    assert result.init is not None
    assert len(result.init["layers"]) == 4
    assert result.diverged is None


def test_direct_initialisation_sees_the_batches() -> None:
    """Before the first step the outputs of the convolutions have a second moment of one."""
    result = fit(tiny({"init": {"batches": 6}, "optimizer": {"rate": 1e-12}, "epochs": 1}))
    model = result.model
    assert model is not None
    assert isinstance(model, pv.models.Classifier)
    sample = load_data(tiny().data).train[0]
    levels = model.hierarchy(pv.PointCloud(sample.points), generator=torch.Generator().manual_seed(0))
    report = pv.variance_report(model, (sample.features, levels), backward=False)
    for layer in report.layers[:4]:
        assert 0.1 < layer.variance < 10  # one cloud of 64 points and four channels, not the mean of all


def test_diverged_run_names_the_layer() -> None:
    result = fit(tiny({"optimizer": {"rate": 1e20}}))
    assert result.diverged is not None
    assert "epoch 1" in result.diverged
    assert "blocks." in result.diverged or "head." in result.diverged
    assert result.metrics == {}


def test_run_directory(tmp_path: Path) -> None:
    config = tiny({"epochs": 2}, output=str(tmp_path / "run"), votes=3)
    result = fit(config, verbose=False)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        "config.yaml",
        "versions.json",
        "metrics.jsonl",
        "summary.json",
        "last.ckpt",
        "model.safetensors",
        "tensorboard",
    } == names
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"] == result.metrics
    assert summary["steps"] == 12
    model = pv.load(tmp_path / "run" / "model.safetensors")
    assert result.model is not None
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_same_seed_same_weights_whatever_the_workers() -> None:
    results = [fit(tiny({"data": {"workers": workers}, "epochs": 2})) for workers in (0, 1)]
    first, second = (r.model.state_dict() for r in results if r.model is not None)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = fit(tiny({"epochs": 2}, seed=1)).model
    assert other is not None
    assert not all(torch.equal(first[name], value) for name, value in other.state_dict().items())


def test_random_state_of_the_caller_is_kept() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    fit(tiny({"epochs": 1}))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("change", [{"bf16": True}, {"optimizer": {"clip_norm": 0.1, "accumulate": 4}}])
def test_options(change: dict[str, Any]) -> None:
    result = fit(tiny(change, {"epochs": 1}))
    assert result.diverged is None
    assert math.isfinite(result.history[0]["train_loss"])
    assert result.steps == (2 if "optimizer" in change else 6)


def test_accumulation_is_a_larger_batch() -> None:
    """Without norm, dropout and random geometry, two batches of two are one of four."""
    plain = {
        "data": {"rotate": False, "scale": 0.0},
        "model": {
            "dropout": 0.0,
            "head_dropout": 0.0,
            "max_neighbors": None,
            "radii": [1e-4, 2e-4],
            "reach": 3000,
        },
        "init": {"method": "standard"},
        "epochs": 1,
    }
    large = fit(tiny(plain, {"data": {"batch_size": 4}})).model
    small = fit(tiny(plain, {"optimizer": {"accumulate": 2}})).model
    assert large is not None
    assert small is not None
    for name, value in large.state_dict().items():
        torch.testing.assert_close(value, small.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_weight_decay_is_for_convolutions_only() -> None:
    """With a learning rate of 1 and no gradient to speak of, convolutions shrink and nothing else does."""
    config = tiny({"optimizer": {"rate": 1e-3, "weight_decay": 100.0, "clip_norm": 1e-12, "momentum": 0.0}})
    still = tiny({"optimizer": {"rate": 1e-3, "weight_decay": 0.0, "clip_norm": 1e-12, "momentum": 0.0}})
    decayed, kept = fit(config).model, fit(still).model
    assert decayed is not None
    assert kept is not None
    for name, value in kept.state_dict().items():
        convolution = name.endswith("convolution.weight")
        factor = 0.9**18 if convolution else 1.0
        torch.testing.assert_close(decayed.state_dict()[name], factor * value, rtol=1e-4, atol=1e-6, msg=name)


def test_segmentation(tmp_path: Path) -> None:
    model = {"network": "unet", "channels": [8, 8], "radii": [0.2, 0.4], "head": None}
    change = {
        "data": {"radius": 0.6, "context": 0.9, "crops": 8, "batch_size": 2},
        "model": model,
        "optimizer": {"class_weights": True},
        "epochs": 2,
    }
    result = fit(tiny(change, output=str(tmp_path), votes=2), room_data(), verbose=False)
    assert result.diverged is None
    assert result.steps == 8
    assert result.metrics["count"] == 2 * 300
    assert set(result.metrics["iou"]) == {"floor", "wall", "nothing"}
    assert result.metrics["iou"]["nothing"] is None or result.metrics["iou"]["nothing"] == 0


def test_wrong_network_for_the_data() -> None:
    with pytest.raises(ValueError, match="is for segmentation"):
        fit(tiny({"model": {"network": "unet"}}))
    with pytest.raises(ValueError, match=r"first_reach=2\.0 means nothing"):
        fit(tiny({"model": {"first_reach": 2.0}}))
