"""The Lightning modules one call at a time: what they count, refuse, optimise and give back."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_cases import one_cloud, prepared, small_classifier

from pointvar.train import RECIPES, ClassificationModule, DivergedError, OptimizerConfig, SegmentationModule


class Given(nn.Module):
    """Gives back two features, or what dropout leaves of them."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.same = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.same.weight)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, levels: Any) -> Tensor:
        return self.dropout(self.same(features))


def batch(scores: Any, labels: list[int], seed: int = 0) -> Any:
    return SimpleNamespace(
        features=torch.tensor(scores, requires_grad=True), levels=None, labels=torch.tensor(labels), seed=seed
    )


def module(model: nn.Module | None = None, steps: int | None = None, **settings: Any) -> ClassificationModule:
    """As in a trainer that has come to the third epoch, on the second of two ranks."""
    chosen = OptimizerConfig(**{**RECIPES["published"]["optimizer"], **settings})
    made = ClassificationModule(model or Given(), ["a", "b"], chosen, steps=steps)
    strategy = SimpleNamespace(
        reduce_boolean_decision=lambda bad, all: bad if not all else None,
        reduce=lambda totals, reduce_op: totals.mul_({"mean": 0.5}[reduce_op]),
    )
    made._trainer = SimpleNamespace(strategy=strategy, current_epoch=2, global_step=7)  # type: ignore[assignment]
    return made


ONE = batch([[2.0, 0.0], [0.0, 2.0], [5.0, 0.0]], [0, 0, -1])
TWO = batch([[0.0, 0.0], [0.0, 1.0]], [-1, 1])


def test_totals_of_an_epoch() -> None:
    """Loss times labels, labels that were predicted, labels; a label of -1 is none."""
    model = module()
    losses = [model.training_step(each, 0).item() for each in (ONE, TWO)]
    expected = torch.tensor([2 * losses[0] + losses[1], 2, 3], dtype=torch.float64)
    torch.testing.assert_close(model.totals, expected)
    assert losses[1] == pytest.approx(-torch.tensor([0.0, 1.0]).log_softmax(0)[1].item())
    torch.testing.assert_close(model.epoch_totals(), expected / 2)
    torch.testing.assert_close(model.totals, expected)  # it was a copy that was reduced
    checkpoint: dict[str, Any] = {}
    model.on_save_checkpoint(checkpoint)
    other = module()
    other.on_load_checkpoint(checkpoint)
    torch.testing.assert_close(other.totals, expected / 2)
    model.on_train_epoch_start()
    assert model.totals.tolist() == [0, 0, 0]


def test_the_loss_has_a_gradient_and_the_totals_have_none() -> None:
    model = module()
    model.training_step(ONE, 0).backward()
    assert ONE.features.grad is not None
    assert not model.totals.requires_grad


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_divergence(number: float) -> None:
    with pytest.raises(
        DivergedError, match=r"the loss is nan in epoch 3, step 7: the input features are not"
    ):
        module().training_step(batch([[number, 0.0]], [0]), 0)


def test_another_process_has_diverged() -> None:
    """All stop, or none."""
    model = module()
    model.trainer.strategy.reduce_boolean_decision = lambda bad, all: True  # type: ignore[method-assign, assignment]
    with pytest.raises(DivergedError, match=r"the loss is 0\.126.*: all outputs are finite"):
        model.training_step(batch([[2.0, 0.0]], [0]), 0)


def test_dropout_depends_on_the_batch() -> None:
    model = module(Given(0.5))
    wide = [[float(n), -float(n)] for n in range(1, 40)]
    losses = []
    for seed in (1, 2, 1):
        losses.append(model.training_step(batch(wide, [0] * 39, seed), 0).item())
        torch.rand(3)
    assert losses[0] == losses[2] != losses[1]


def test_metrics_of_an_evaluation() -> None:
    model, logged = module(), dict[str, float]()
    model.log = lambda name, value, **_: logged.update({name: value})  # type: ignore[method-assign, assignment]
    for _ in range(2):  # the second starts from nothing
        for each in (ONE, TWO):
            model.validation_step(each, 0)
        model.on_validation_epoch_end()
        assert model.metrics is not None
        assert (model.metrics.count, model.metrics.accuracy) == (3, pytest.approx(2 / 3))
        assert model.metrics.iou == {"a": 0.5, "b": 0.5}
        assert logged == {"score": model.metrics.accuracy}


def test_optimizer_and_rates() -> None:
    network = small_classifier()
    frozen = network.head[1].linear  # type: ignore[union-attr]
    frozen.weight.requires_grad_(False)
    settings = {"rate": 0.5, "momentum": 0.25, "weight_decay": 0.125, "milestones": [1, 3], "gamma": 0.5}
    parts = module(network, **settings).configure_optimizers()
    optimizer, schedule = parts["optimizer"], parts["lr_scheduler"]
    names = {id(p): name for name, p in network.named_parameters()}
    found = {g["weight_decay"]: [names[id(p)] for p in g["params"]] for g in optimizer.param_groups}
    convolutions = [name for name in names.values() if name.endswith("convolution.coordinates")]
    others = [name for name in names.values() if name not in convolutions and name != "head.1.linear.weight"]
    assert found == {0.125: convolutions, 0.0: others}
    assert {g["momentum"] for g in optimizer.param_groups} == {0.25}
    rates = []
    for _ in range(4):
        rates.append({g["lr"] for g in optimizer.param_groups})
        optimizer.step()
        schedule.step()
    assert rates == [{0.5}, {0.25}, {0.25}, {0.125}]


def rates(steps: int = 20, **settings: Any) -> tuple[torch.optim.Optimizer, list[float]]:
    """The learning rate of each step of a training of so many, and one more."""
    parts = module(rate=0.5, steps=steps, **settings).configure_optimizers()
    optimizer, schedule = parts["optimizer"], parts["lr_scheduler"]
    assert schedule["interval"] == "step"
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule["scheduler"].step()
    return optimizer, [*found, optimizer.param_groups[0]["lr"]]


def test_lightning_knows_how_many_steps_there_are() -> None:
    made = module(schedule="cosine", warmup=0.0)
    made.trainer.estimated_stepping_batches = 12  # type: ignore[misc]
    assert made.configure_optimizers()["lr_scheduler"]["scheduler"].T_max == 12


@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_cosine(warmup: float) -> None:
    """Up in equal steps that end with the rate, then down along half a wave to 0."""
    rise = round(20 * warmup)
    up = [0.5 * (t + 1) / (rise + 1) for t in range(rise)]
    down = [0.25 * (1 + math.cos(math.pi * t / (20 - rise))) for t in range(21 - rise)]
    assert rates(schedule="cosine", warmup=warmup)[1] == pytest.approx([*up, *down], abs=1e-12)


def test_one_cycle() -> None:
    optimizer, found = rates(schedule="one-cycle", warmup=0.25, momentum=0.7)
    reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5, 0.7)
    schedule = torch.optim.lr_scheduler.OneCycleLR(reference, 0.5, total_steps=20, pct_start=0.25)
    expected = []
    for _ in range(20):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        if len(expected) < 20:
            schedule.step()
    assert found[:20] == pytest.approx(expected)
    assert max(found) == pytest.approx(0.5) == found[4]
    assert found[0] == pytest.approx(0.5 / 25)
    assert optimizer.param_groups[0]["momentum"] == 0.7


def test_adamw() -> None:
    parts = module(small_classifier(), name="adamw", momentum=0.8, weight_decay=0.5).configure_optimizers()
    optimizer = parts["optimizer"]
    assert type(optimizer) is torch.optim.AdamW
    assert {(g["lr"], g["betas"]) for g in optimizer.param_groups} == {(0.005, (0.8, 0.999))}
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.5, 0.0]


@pytest.mark.parametrize("method", ["MCConv", "KPConvN"])
def test_preconditioning_follows_a_basis_that_is_learned(method: str) -> None:
    """After every 3 steps, at the first of two batches whose gradients are summed."""
    network = small_classifier(method=method, precondition=True)
    conv = network.blocks[1].convolution  # type: ignore[union-attr]
    made = module(network, refresh=3, accumulate=2)
    refreshed = []
    for step in range(8):
        for number in (2 * step, 2 * step + 1):
            made.trainer.global_step = step  # type: ignore[misc]
            with torch.no_grad():
                for parameter in conv.basis.parameters():
                    parameter.add_(0.1)
            before = conv.preconditioner.clone()
            made.on_train_batch_start(None, number)
            refreshed += [] if torch.equal(conv.preconditioner, before) else [number]
    assert refreshed == ([6, 12] if method == "MCConv" else [])


def test_a_network_without_convolutions() -> None:
    groups = module(nn.Linear(2, 2), weight_decay=0.5).configure_optimizers()["optimizer"].param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(2, 0.0)]


def test_default_settings() -> None:
    assert ClassificationModule(Given(), ["a"]).settings == OptimizerConfig()


def test_batches_move_to_the_device_if_they_are_elsewhere() -> None:
    model, given = module(), prepared([one_cloud(0, 0)], small_classifier())
    assert model.transfer_batch_to_device(given, torch.device("cpu"), 0) is given
    assert model.transfer_batch_to_device(given, torch.device("meta"), 0).labels.device.type == "meta"


def test_losses_are_in_float32_and_no_label_costs_nothing() -> None:
    queries = SimpleNamespace(num_clouds=2, batch=torch.tensor([0, 0, 1]))
    scores = torch.tensor([[8.0, 0.0], [1.0, 0.0], [0.0, 3.0]], dtype=torch.bfloat16, requires_grad=True)
    clouds, points = (kind(Given(), ["a", "b"]) for kind in (ClassificationModule, SegmentationModule))
    given = SimpleNamespace(labels=torch.tensor([0, -1, 0]), levels=SimpleNamespace(queries=queries))
    exact = -scores.detach().double().log_softmax(1)[:, 0]
    for kind in (clouds, points):
        loss = kind.loss(scores, given)  # type: ignore[arg-type]
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(float(exact[0] + exact[2]) / 2)
    given.labels = torch.full((3,), -1)
    loss = points.loss(scores, given)  # type: ignore[arg-type]
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_weights_of_classes_are_no_part_of_a_checkpoint() -> None:
    model = ClassificationModule(Given(), ["a", "b"], None, torch.tensor([1.0, 3.0]))
    assert not any("weights" in name for name in model.state_dict())
    assert float(model.loss(ONE.features.detach(), ONE)) > 0
    assert model.class_weights.tolist() == [1.0, 3.0]  # type: ignore[union-attr, operator]
