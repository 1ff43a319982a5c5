"""Training end to end, on runs of a second."""

import json
import logging
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from lightning.pytorch.loggers import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_cases import room_data, tiny

import pointvar as pv
from pointvar.train import Data, fit, load_data, output

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
    names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert {
        "config.yaml",
        "versions.json",
        "metrics.jsonl",
        "summary.json",
        "last.ckpt",
        "previous.ckpt",
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


def test_tensorboard_has_the_rows(tmp_path: Path) -> None:
    result = fit(tiny(output=str(tmp_path / "run")), verbose=False)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name in ("train_loss", "rate", "accuracy"):
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2, 3]
        assert [scalar.value for scalar in scalars] == pytest.approx([row[name] for row in result.history])
    fit(tiny(output=str(tmp_path / "quiet"), logger="none", epochs=1), verbose=False)
    assert not (tmp_path / "quiet" / "tensorboard").exists()
    assert (tmp_path / "quiet" / "metrics.jsonl").exists()


@pytest.mark.parametrize(("name", "kind"), [("wandb", "WandbLogger"), ("mlflow", "MLFlowLogger")])
def test_other_loggers_get_settings_and_rows(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = MagicMock(spec=Logger, save_dir=None)
    monkeypatch.setattr(output, kind, lambda *_, **__: logger)
    result = fit(tiny(output=str(tmp_path / "run"), logger=name), verbose=False)
    assert logger.log_hyperparams.call_args.args[0]["optimizer"]["rate"] == 0.005
    rows = [call.args for call in logger.log_metrics.call_args_list]
    assert [epoch for _, epoch in rows] == [1, 2, 3]
    assert [row["train_loss"] for row, _ in rows] == [row["train_loss"] for row in result.history]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_per_epoch_and_a_bar_on_a_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    result = fit(tiny(epochs=2), verbose=True)
    shown = capsys.readouterr().out
    for row in result.history:
        line = f"epoch {row['epoch']}/2  loss {row['train_loss']:.4f}  accuracy {row['accuracy']:.4f}"
        assert shown.count(line) == 1
    assert ("6/6" in shown) == ("epoch 2/2: 100%" in shown) == terminal  # batches


def test_the_rate_of_each_epoch_is_recorded() -> None:
    result = fit(tiny({"optimizer": {"rate": 0.08, "milestones": [1, 2], "gamma": 0.5}}))
    assert [row["rate"] for row in result.history] == pytest.approx([0.08, 0.04, 0.02])


def test_same_seed_same_weights_whatever_the_workers() -> None:
    results = [fit(tiny({"data": {"workers": workers}, "epochs": 2})) for workers in (0, 1)]
    first, second = (r.model.state_dict() for r in results if r.model is not None)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = fit(tiny({"epochs": 2}, seed=1)).model
    assert other is not None
    assert not all(torch.equal(first[name], value) for name, value in other.state_dict().items())


def test_random_state_and_log_level_of_the_caller_are_kept() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    fit(tiny({"epochs": 1}))
    assert torch.equal(before, torch.random.get_rng_state())
    assert logger.level == logging.ERROR
    logger.setLevel(level)


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
