"""Muon for matrices and AdamW for the rest, against torch's own optimisers on copies."""

from pathlib import Path

import pytest
import torch
from torch import nn
from training_cases import small_classifier, tiny

from pointvar.train import fit
from pointvar.train.muon import Muon

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")


def gradients(parameters: list[nn.Parameter], step: int) -> None:
    random = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=random)


def test_steps_are_those_of_torch() -> None:
    network = small_classifier()
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() == 3], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() != 3], "weight_decay": 0.0},
    ]
    twins = [
        nn.Parameter(p.detach().clone().flatten(0, -2) if p.dim() > 1 else p.detach().clone())
        for p in parameters
    ]
    flat = [t for p, t in zip(parameters, twins, strict=True) if p.dim() == 3]
    linear = [t for p, t in zip(parameters, twins, strict=True) if p.dim() == 2]
    assert flat
    assert linear
    options = {"momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}
    muon = torch.optim.Muon(
        [{"params": flat, "weight_decay": 0.1}, {"params": linear, "weight_decay": 0.0}], 0.01, **options
    )
    rest = [t for t in twins if t.dim() == 1]
    adamw = torch.optim.AdamW(rest, 0.01, (0.9, 0.999), weight_decay=0.0)
    optimizer = Muon(groups, 0.01, 0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], 0.1)
    for step in range(4):
        if step == 2:  # from a checkpoint, in other objects
            state = optimizer.state_dict()
            optimizer = Muon(groups, 0.5, 0.1)
            optimizer.load_state_dict(state)
            for group in (*muon.param_groups, *adamw.param_groups):
                group["lr"] = 0.001
        gradients(parameters, step)
        for twin, parameter in zip(twins, parameters, strict=True):
            assert parameter.grad is not None
            twin.grad = parameter.grad.reshape(twin.shape).clone()
        for each in (optimizer, muon, adamw):
            each.step()
        if step < 2:
            schedule.step()
        for twin, parameter in zip(twins, parameters, strict=True):
            assert torch.equal(parameter.reshape(twin.shape), twin)
    optimizer.zero_grad()
    assert all(p.grad is None for p in parameters)


def test_a_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    settings = {"optimizer": {"name": "muon", "rate": 0.02, "schedule": "milestones"}}
    whole = fit(tiny(settings, epochs=3))
    fit(tiny(settings, epochs=2, output=str(tmp_path / "run")), verbose=False)
    resumed = fit(tiny(settings, epochs=3, output=str(tmp_path / "run")), resume=True, verbose=False)
    assert whole.model is not None
    assert resumed.model is not None
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
