"""Training against the same steps in plain torch, written from the formulas of the documentation.

A callback records the batches that ``fit`` trains on and the weights that it starts from. The loop here takes
the same steps without any of its code: losses, clipping, momentum, decay and rates are written out.
"""

from functools import cache
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from torch import Tensor, nn
from training_cases import one_cloud, tiny

from pointvar.data import Sample
from pointvar.train import Data, fit

PLAIN: dict[str, Any] = {
    "data": {"batch_size": 3, "train_size": 12},
    "model": {"bias": True, "dropout": 0.0, "head_dropout": 0.0},
    "init": {"method": "standard"},
    "optimizer": {"rate": 0.1, "momentum": 0.7, "weight_decay": 0.05},
}
SEGMENT: dict[str, Any] = {
    "data": {"radius": 5.0, "context": 5.0, "crops": 6, "batch_size": 3},
    "model": {"network": "unet", "channels": [4, 4], "radii": [0.3, 0.6], "head": None, "head_dropout": None},
}


class Recorder(lightning.Callback):
    """Keeps the weights at the start, and the batches with their epochs."""

    def __init__(self) -> None:
        self.start: dict[str, Tensor] = {}
        self.batches: list[tuple[int, Any]] = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if not self.start:
            self.start = {name: value.clone() for name, value in module.model.state_dict().items()}

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        self.batches.append((trainer.current_epoch, batch))


def cloud_loss(scores: Tensor, batch: Any, weights: list[float]) -> Tensor:
    """The mean over clouds of -log p of the label's class, each with the weight of its class."""
    logs = [-row.float().log_softmax(0)[label] for row, label in zip(scores, batch.labels, strict=True)]
    weight = [weights[label] for label in batch.labels]
    return sum(w * log for w, log in zip(weight, logs, strict=True)) / sum(weight)


def point_loss(scores: Tensor, batch: Any, weights: list[float]) -> Tensor:
    """That mean over the labelled points of each cloud, then the mean over the clouds that have a label."""
    means, begin = [], 0
    for length in batch.levels.queries.lengths.tolist():
        rows = [row for row in range(begin, begin + length) if batch.labels[row] >= 0]
        begin += length
        if rows:
            weight = [weights[batch.labels[row]] for row in rows]
            logs = [-scores[row].float().log_softmax(0)[batch.labels[row]] for row in rows]
            means.append(sum(w * log for w, log in zip(weight, logs, strict=True)) / sum(weight))
    return sum(means) / len(means) if means else 0 * scores.sum()


def clip_units(model: nn.Module, limit: float) -> None:
    """No unit's gradient is longer than ``limit`` times its weights."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # as a whole
            units = [(parameter.data, parameter.grad)]
        elif name.endswith("convolution.weight"):  # [basis, in, out]
            outs = range(parameter.shape[2])
            units = [(parameter.data[:, :, o], parameter.grad[:, :, o]) for o in outs]  # type: ignore[index]
        else:  # [out, in]
            units = [(parameter.data[o], parameter.grad[o]) for o in range(len(parameter))]  # type: ignore[index]
        for weight, gradient in units:
            assert gradient is not None
            longest = limit * max(float(weight.norm()), 1e-3)
            if float(gradient.norm()) > longest:
                gradient *= longest / float(gradient.norm())


def by_hand(config: Any, model: nn.Module, record: Recorder, loss: Any, weights: list[float]) -> None:
    """The steps of a run, from the recorded start."""
    model.load_state_dict(record.start)
    model.train()
    settings = config.optimizer
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    epochs = [[batch for epoch, batch in record.batches if epoch == e] for e in range(config.epochs)]
    for epoch, batches in enumerate(epochs):
        rate = settings.rate
        for milestone in settings.milestones:
            rate *= settings.gamma if epoch >= milestone else 1
        for begin in range(0, len(batches), settings.accumulate):
            model.zero_grad()
            for batch in batches[begin : begin + settings.accumulate]:
                with torch.autocast("cpu", torch.bfloat16, enabled=config.bf16):
                    value = loss(model(batch.features, batch.levels), batch, weights)
                (value / settings.accumulate).backward()
            if settings.agc is not None:
                clip_units(model, settings.agc)
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            length = float(torch.cat([g.flatten() for g in gradients]).norm())
            factor = min(1.0, settings.clip_norm / length) if settings.clip_norm is not None else 1.0
            for name, p in model.named_parameters():
                assert p.grad is not None, name
                decay = settings.weight_decay if name.endswith("convolution.weight") else 0.0
                velocity[name] = settings.momentum * velocity[name] + factor * p.grad + decay * p.data
                p.data -= rate * velocity[name]


def compare(config: Any, data: Data | None, loss: Any, weights: list[float]) -> dict[str, Tensor]:
    record = Recorder()
    result = fit(config, data, callbacks=[record])
    assert result.diverged is None
    model = result.model
    assert model is not None
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    by_hand(config, model, record, loss, weights)
    moved = 0.0
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-6, msg=name)
        moved = max(moved, float((value - record.start[name]).abs().max()))
    assert moved > 1e-3  # there was something to compare
    return trained


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": {"milestones": [1, 2], "gamma": 0.3}},
        {"optimizer": {"agc": 0.05}},
        {"optimizer": {"clip_norm": 0.5}},
        {"optimizer": {"agc": 0.1, "clip_norm": 0.1, "accumulate": 3, "milestones": [1]}},
        {"bf16": True},
    ],
    ids=["momentum and decay", "milestones", "agc", "clip_norm", "all with accumulate", "bf16"],
)
def test_classification(change: dict[str, Any]) -> None:
    """The change must make a difference, too: what is ignored on both sides would go unnoticed."""
    trained = compare(tiny(PLAIN, change), None, cloud_loss, [1.0] * 25)
    same = all(torch.equal(trained[name], value) for name, value in plain_weights().items())
    assert same == (not change)


@cache
def plain_weights() -> dict[str, Tensor]:
    model = fit(tiny(PLAIN)).model
    assert model is not None
    return model.state_dict()


def test_weights_of_classes() -> None:
    """w_c = labels / (classes that occur * labels of c): three of a, one of b, none of c."""
    samples = [one_cloud(label, seed) for seed, label in enumerate([0, 0, 0, 1])]
    data = Data(samples, samples, ["a", "b", "c"], 1)
    config = tiny(PLAIN, {"data": {"batch_size": 2}, "optimizer": {"class_weights": True}})
    compare(config, data, cloud_loss, [4 / 6, 4 / 2, 0.0])


@pytest.mark.parametrize("weighted", [False, True])
def test_segmentation_of_clouds_of_which_one_has_no_labels(weighted: bool) -> None:
    first, second, third = (one_cloud(0, seed) for seed in range(3))
    scenes = [
        Sample(first.points, first.features, torch.tensor([0] * 30 + [1] * 10 + [-1] * 24)),
        Sample(second.points, second.features, torch.tensor([-1] * 54 + [0] * 5 + [1] * 5)),
        Sample(third.points, third.features, torch.full((64,), -1)),
    ]
    data = Data(scenes, scenes[:1], ["a", "b", "c"], 1, "segmentation")
    config = tiny(PLAIN, SEGMENT, {"optimizer": {"class_weights": weighted}})
    record = Recorder()
    fit(config, data, callbacks=[record])
    lengths = [batch.levels.queries.lengths.tolist() for _, batch in record.batches]
    assert any(0 in each and max(each) > 0 for each in lengths), "no batch mixes both kinds of cloud"
    compare(config, data, point_loss, [50 / 70, 50 / 30, 0.0] if weighted else [1.0] * 3)


@pytest.mark.parametrize("mirror", [False, True])
def test_mirrored_clouds_are_trained_on(mirror: bool) -> None:
    """Each of the four combinations of signs of the level axes, and the up axis (here y) never."""
    samples = [one_cloud(0, seed) for seed in range(2)]
    data = Data(samples, samples, ["a", "b"], 1)
    change = {"rotate": False, "scale": 0.0, "box": False, "up": "y", "mirror": mirror, "batch_size": 1}
    record = Recorder()
    fit(tiny({"data": change}, epochs=8), data, callbacks=[record])
    seen = set()
    for _, batch in record.batches:
        points = batch.levels.input.points
        signs = [
            signs
            for signs in [(1, 1, 1), (-1, 1, 1), (1, 1, -1), (-1, 1, -1)]
            for sample in samples
            if torch.equal(points, sample.points * torch.tensor(signs, dtype=torch.float32))
        ]
        assert len(signs) == 1
        seen.update(signs)
    assert seen == ({(1, 1, 1), (-1, 1, 1), (1, 1, -1), (-1, 1, -1)} if mirror else {(1, 1, 1)})
