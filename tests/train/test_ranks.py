"""Two processes do what one does that accumulates the gradients of two batches."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from training_cases import tiny

from pointvar.train import fit

SCRIPT = """
import os, sys
from pathlib import Path
import lightning.pytorch as lightning
import torch
from pointvar.train import fit, load_config

rank, folder = os.environ.get("LOCAL_RANK", "0"), Path(sys.argv[1])

class Start(lightning.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 0:
            torch.save(module.model.state_dict(), folder / f"start{rank}.pt")

config = load_config(folder / "config.yaml")
result = fit(config, callbacks=[Start()], verbose=False)
torch.save({"weights": result.model.state_dict(), "history": result.history}, folder / f"end{rank}.pt")
"""


def test_two_processes(tmp_path: Path) -> None:
    # Dropout is off because the measuring passes of the initialisation draw it from the rank's own state.
    change: dict[str, Any] = {
        "model": {"dropout": 0.0, "head_dropout": 0.0},
        "optimizer": {"agc": 0.05},
        "epochs": 2,
    }
    config = tiny(change, {"devices": 2, "init": {"batches": 2}}, output=str(tmp_path / "run"))
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=600, text=True)
    assert done.returncode == 0, done.stderr
    starts = [torch.load(tmp_path / f"start{rank}.pt") for rank in range(2)]
    ends = [torch.load(tmp_path / f"end{rank}.pt") for rank in range(2)]
    for name in starts[0]:
        assert torch.equal(starts[0][name], starts[1][name]), f"the initialisation of {name} differs"
        assert torch.equal(ends[0]["weights"][name], ends[1]["weights"][name])
    one = fit(tiny(change, {"init": {"batches": 4}, "optimizer": {"accumulate": 2}}))
    assert one.model is not None
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(ends[0]["weights"][name], value, rtol=1e-4, atol=1e-5)
    assert one.steps == ends[0]["history"][-1]["step"] == 6
    for two, single in zip(ends[0]["history"], one.history, strict=True):
        assert abs(two["train_loss"] - single["train_loss"]) < 1e-4
        assert two["accuracy"] == single["accuracy"]
    assert (tmp_path / "run" / "summary.json").exists()
    # Between epochs, one process may go on with what two have done.
    alone = fit(replace(config, devices=1, epochs=3), resume=True, verbose=False)
    assert [row["step"] for row in alone.history] == [3, 6, 12]
    assert {change["setting"] for change in alone.changed} == {"devices", "epochs"}
