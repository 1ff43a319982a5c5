"""A run that was stopped, however and wherever, ends with the weights of one that never was."""

import json
import multiprocessing
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
from training_cases import room_data, tiny

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
    """Presses Ctrl-C in the middle of a batch, or sends another signal, or several."""

    def __init__(self, batch: int, *signals: signal.Signals) -> None:
        self.batch, self.signals = batch, signals or (signal.SIGINT,)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            for number in self.signals:
                os.kill(os.getpid(), number)


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


@pytest.mark.parametrize(
    ("steps", "batch"), [(None, 2), (None, 7), (None, 12), (None, 18), (4, 10), (4, 12), (4, 13)]
)
def test_crashed(tmp_path: Path, steps: int | None, batch: int) -> None:
    config = case(tmp_path / "run", {"checkpoint_steps": steps})
    with pytest.raises(Crash):
        fit(config, callbacks=[Crashing(batch)], verbose=False)
    done = batch - 1
    kept = max(done - done % 6, 0 if steps is None else done - done % steps)  # an epoch, or so many steps
    assert (tmp_path / "run" / "last.ckpt").exists() == (kept > 0)
    if kept:
        assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == kept
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


def test_sigterm(tmp_path: Path) -> None:
    config, before = case(tmp_path / "run"), signal.getsignal(signal.SIGTERM)
    stopped = fit(config, callbacks=[Signal(8, signal.SIGTERM)], verbose=False)
    assert stopped.interrupted
    assert stopped.seconds > stopped.history[-1]["seconds"]
    assert signal.getsignal(signal.SIGTERM) == before
    same(never_stopped(), fit(config, resume=True, verbose=False))
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    config, before = case(tmp_path / "run"), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(config, callbacks=[Signal(8, signal.SIGINT, signal.SIGINT)], verbose=False)
    assert signal.getsignal(signal.SIGINT) == before
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 6  # of the first epoch
    same(never_stopped(), fit(config, resume=True, verbose=False))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resumed_again_and_again(tmp_path: Path, accumulate: int) -> None:
    """A crash soon after a resume, also between the batches of one step, whose gradients nothing holds."""
    config = case(tmp_path / "run", {"checkpoint_steps": 1, "optimizer": {"accumulate": accumulate}})
    for batch in (4, 5, 6, 7, 10):
        with pytest.raises(Crash):
            fit(config, resume=True, callbacks=[Crashing(batch)], verbose=False)
    same(never_stopped(accumulate), fit(config, resume=True, verbose=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_spheres_of_scenes_are_resumed_in_mid_epoch(tmp_path: Path, workers: int) -> None:
    """Where the next sphere is depends on all spheres before it; workers have fetched ahead."""
    change: dict[str, Any] = {
        "data": {"radius": 1.5, "context": 1.5, "crops": 5, "batch_size": 1, "workers": workers},
        "model": {"network": "unet", "channels": [4, 4], "radii": [0.2, 0.4], "head": None},
        "epochs": 2,
    }
    whole = fit(tiny(change), room_data())
    config = tiny(change, {"checkpoint_steps": 1}, output=str(tmp_path / "run"))
    for batch in (3, 8):
        with pytest.raises(Crash):
            fit(config, room_data(), resume=True, callbacks=[Crashing(batch)], verbose=False)
    same(whole, fit(config, room_data(), resume=True, verbose=False))


def test_resumed_with_workers_which_end_with_the_run(tmp_path: Path) -> None:
    config = case(tmp_path / "run", {"data": {"workers": 2}})
    assert fit(config, callbacks=[Signal(8)], verbose=False).interrupted
    assert not multiprocessing.active_children()
    same(never_stopped(), fit(config, resume=True, verbose=False))
    assert not multiprocessing.active_children()


SCHEDULES: dict[str, dict[str, Any]] = {
    "sgd, cosine": {"schedule": "cosine", "warmup": 0.2},
    "adamw, cosine": {"name": "adamw", "schedule": "cosine"},
    "adamw, one cycle": {"name": "adamw", "schedule": "one-cycle", "accumulate": 2},
    "sgd, one cycle": {"schedule": "one-cycle"},
    "adamw": {"name": "adamw"},
}


@pytest.mark.parametrize("precondition", [False, True])
@pytest.mark.parametrize("optimizer", SCHEDULES.values(), ids=SCHEDULES)
def test_optimisers_and_schedules_go_on(
    tmp_path: Path, optimizer: dict[str, Any], precondition: bool
) -> None:
    """In the middle of an epoch and of a warm-up; with weights that are learned in other coordinates, too."""
    change: dict[str, Any] = {
        "optimizer": {"refresh": 4, **optimizer},
        "model": {"precondition": precondition},
    }
    whole = fit(tiny(change))
    config = tiny(change, {"checkpoint_steps": 1}, output=str(tmp_path / "run"))
    for batch in (3, 10):
        with pytest.raises(Crash):
            fit(config, resume=True, callbacks=[Crashing(batch)], verbose=False)
    same(whole, fit(config, resume=True, verbose=False))
    steps = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"]
    assert steps == whole.steps == 18 // optimizer.get("accumulate", 1)


def test_a_schedule_over_all_steps_fixes_their_number(tmp_path: Path) -> None:
    change = {"optimizer": {"schedule": "cosine"}, "epochs": 2}
    fit(tiny(change, output=str(tmp_path / "run")), verbose=False)
    with pytest.raises(ValueError, match="epochs: 2 in the run, 3 given"):
        fit(tiny(change, {"epochs": 3}, output=str(tmp_path / "run")), resume=True, verbose=False)


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = case(tmp_path / "run")
    replace = os.replace

    def fail(source: Any, target: Any) -> None:
        if Path(target).name == "last.ckpt" and (tmp_path / "run" / "previous.ckpt").exists():
            raise OSError("no space left")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space left"):
            fit(config, verbose=False)
    assert not list((tmp_path / "run").glob(".*.writing"))
    with pytest.warns(UserWarning, match=r"last\.ckpt is missing.*goes on from .*previous\.ckpt, step 6"):
        same(never_stopped(), fit(config, resume=True, verbose=False))


def test_a_run_that_was_moved_goes_on(tmp_path: Path) -> None:
    fit(case(tmp_path / "run"), callbacks=[Signal(8)], verbose=False)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    same(never_stopped(), fit(case(tmp_path / "elsewhere"), resume=True, verbose=False))


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
