"""A run that was stopped, however and wherever, ends with the weights of one that never was."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from training_cases import tiny

from pointvar.train import Config, Result, fit, load_config

KILLED = """
import os, signal, sys
import lightning.pytorch as lightning
from pointvar.train import fit, load_config

class Kill(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, number):
        if trainer.fit_loop.total_batch_idx + 1 == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

fit(load_config(sys.argv[1]), callbacks=[Kill()])
"""


def weights(result: Result) -> dict[str, torch.Tensor]:
    assert result.model is not None
    return result.model.state_dict()


def same(first: Result, second: Result) -> None:
    assert weights(first).keys() == weights(second).keys()
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name]), name
    clean = [[{k: v for k, v in row.items() if k != "seconds"} for row in r.history] for r in (first, second)]
    assert clean[0] == clean[1]
    assert first.metrics == second.metrics


class Signal(lightning.Callback):
    """Presses Ctrl-C in the middle of a batch."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            os.kill(os.getpid(), signal.SIGINT)


@cache
def never_stopped(accumulate: int = 1) -> Result:
    return fit(case(None, {"optimizer": {"accumulate": accumulate}}))


def case(folder: Path | None, *changes: dict[str, Any]) -> Config:
    return tiny(
        {"optimizer": {"agc": 0.05, "milestones": [1, 2]}}, *changes, output=folder and str(folder), votes=2
    )


class Crash(BaseException):
    """Leaves as little behind as a kill does, in the middle of a batch."""


class Crashing(Signal):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            raise Crash


def test_killed(tmp_path: Path) -> None:
    """-9 in the second of three epochs of six batches."""
    config = case(tmp_path / "run", {"checkpoint_steps": 2})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(tmp_path / "config.yaml"), "9"]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == -signal.SIGKILL
    same(never_stopped(), fit(config, resume=True, verbose=False))
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2, 3]


@pytest.mark.parametrize("batch", [2, 7, 10, 12, 13, 18])
@pytest.mark.parametrize("steps", [None, 4])
def test_crashed(tmp_path: Path, steps: int | None, batch: int) -> None:
    config = case(tmp_path / "run", {"checkpoint_steps": steps})
    with pytest.raises(Crash):
        fit(config, callbacks=[Crashing(batch)], verbose=False)
    same(never_stopped(), fit(config, resume=True, verbose=False))


@pytest.mark.parametrize("batch", [6, 7, 8, 18])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_interrupted(tmp_path: Path, batch: int, accumulate: int) -> None:
    change = {"optimizer": {"accumulate": accumulate}}
    config = case(tmp_path / "run", change)
    stopped = fit(config, callbacks=[Signal(batch)], verbose=False)
    assert stopped.interrupted == (batch < 18)  # in the last batch there is nothing left to interrupt
    if stopped.interrupted:
        same(never_stopped(accumulate), fit(config, resume=True, verbose=False))


def test_resumed_with_workers(tmp_path: Path) -> None:
    config = case(tmp_path / "run", {"data": {"workers": 2}})
    assert fit(config, callbacks=[Signal(8)], verbose=False).interrupted
    same(never_stopped(), fit(config, resume=True, verbose=False))


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    config = case(tmp_path / "run", {"epochs": 1})
    fit(config, verbose=False)
    with pytest.raises(ValueError, match="holds a run already"):
        fit(config, verbose=False)


def test_finished_run_has_nothing_to_resume(tmp_path: Path) -> None:
    config = case(tmp_path / "run", {"epochs": 1})
    same(fit(config, verbose=False), fit(config, resume=True, verbose=False))


def test_yaml_of_a_run_repeats_it(tmp_path: Path) -> None:
    first = fit(case(tmp_path / "run", {"epochs": 1}), verbose=False)
    again = load_config(tmp_path / "run" / "config.yaml", {"output": None})
    same(first, fit(again))
