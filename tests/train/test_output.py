"""The folder of a run: one process at a time, checkpoints that can be trusted, a record that is true."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger
from training_cases import room_data, tiny

from pointvar.cli import main
from pointvar.train import Config, Result, evaluate, fit, load_config
from pointvar.train.output import MAY_CHANGE, AtomicCheckpoints, DamagedError, RunFolder

POINTS = [
    "nothing written",
    "half written",
    "written",
    "on the disk",
    "last renamed",
    "replaced",
    "half a row",
]
KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
from pointvar import atomic
from pointvar.train import fit, load_config

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def run(point, folder):
    state = {"writes": 0}
    replace, fsync, fdopen = os.replace, os.fsync, os.fdopen
    def due():
        return state["writes"] == 3  # the third checkpoint; two are there
    class File:
        def __init__(self, file):
            self.file = file
        def __enter__(self):
            return self
        def __exit__(self, *_):
            self.file.close()
        def __getattr__(self, name):
            return getattr(self.file, name)
        def write(self, data):
            if due() and point == "half written":
                self.file.write(data[: len(data) // 2])
                self.file.flush()
                die()
            self.file.write(data)
            self.file.flush()
            if due() and point == "written":
                die()
    mkstemp = tempfile.mkstemp
    def make(prefix, **options):
        state["writes"] += prefix == ".last.ckpt."
        state["checkpoint"] = prefix == ".last.ckpt."
        result = mkstemp(prefix=prefix, **options)
        if due() and point == "nothing written":
            die()
        return result
    def move(source, target):
        if due() and point == "on the disk":
            die()
        replace(source, target)
        name = Path(target).name
        if due() and (point, name) in (("last renamed", "previous.ckpt"), ("replaced", "last.ckpt")):
            die()
    tempfile.mkstemp, os.replace = make, move
    os.fdopen = lambda *given: File(fdopen(*given))
    if point == "half a row":
        path_open = Path.open
        def open_path(path, mode="r", *rest, **more):
            file = path_open(path, mode, *rest, **more)
            if path.name == "metrics.jsonl" and mode == "a" and state["writes"] >= 2:
                file.write('{"epoch": 2, "tra')
                file.flush()
                die()
            return file
        Path.open = open_path
    fit(load_config(sys.argv[1], {"output": str(folder)}), verbose=False)

for point in sys.argv[3:]:
    child = os.fork()
    if child == 0:
        try:
            run(point, Path(sys.argv[2]) / point)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, point
"""


class Stop(BaseException):
    """Leaves as little behind as a kill does."""


class Stopping(lightning.Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            raise Stop


def case(folder: Path | None, **top: Any) -> Config:
    """Three epochs of six steps."""
    settings = {"output": None if folder is None else str(folder), "checkpoint_steps": 3, "logger": "none"}
    return tiny({**settings, **top})


def stopped(folder: Path, batch: int = 9, **top: Any) -> Config:
    """A run that ended in the middle of a batch."""
    config = case(folder, **top)
    with pytest.raises(Stop):
        fit(config, callbacks=[Stopping(batch)], verbose=False)
    return config


@cache
def never_stopped() -> Result:
    return fit(case(None))


def same(result: Result) -> None:
    assert result.model is not None
    expected = never_stopped()
    assert expected.model is not None
    for name, value in expected.model.state_dict().items():
        assert torch.equal(value, result.model.state_dict()[name]), name
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in r.history] for r in (expected, result)
    ]
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its second epoch: checkpoints of the steps 9 and 12."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stopped(folder, 14)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that were killed at each point of the writing of a checkpoint, or of a row."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.yaml").write_text(case(None).to_yaml())
    (folder / "script.py").write_text(KILLED)
    command = [sys.executable, folder / "script.py", folder / "config.yaml", folder, *POINTS]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.filterwarnings("ignore:.*last.ckpt is missing")
def test_killed_inside_a_write(killed: Path, point: str) -> None:
    folder = killed / point
    assert (folder / "last.ckpt").exists() == (point != "last renamed")
    assert (folder / "running.json").exists()  # of a process that is gone
    same(fit(case(folder), resume=True, verbose=False))
    assert not list(folder.glob(".*.writing"))
    assert not (folder / "running.json").exists()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 3] ^= 4
    path.write_bytes({"empty": b"", "truncated": content[: len(content) // 2]}.get(how, bytes(content)))


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(copy: Path, how: str) -> None:
    damage(copy / "last.ckpt", how)
    with pytest.warns(
        UserWarning, match=r"last\.ckpt is damaged: .*goes on from .*previous\.ckpt, step 9; the"
    ):
        same(fit(case(copy), resume=True, verbose=False))
    assert (copy / "damaged.ckpt").exists()


def test_a_damaged_checkpoint_does_not_replace_the_good_one(copy: Path) -> None:
    """The run that goes on is stopped right after it has saved."""
    damage(copy / "last.ckpt", "flipped")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(Stop):
        fit(case(copy), resume=True, callbacks=[Stopping(13)], verbose=False)
    for name, step in {"last.ckpt": 12, "previous.ckpt": 9}.items():
        assert AtomicCheckpoints().load_checkpoint(copy / name)["global_step"] == step


def test_two_damaged_checkpoints(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(copy / "last.ckpt", "flipped")
    damage(copy / "previous.ckpt", "truncated")
    assert main(["train", str(copy / "config.yaml"), "--resume"]) == 2
    shown = capsys.readouterr().err
    for text in ("last.ckpt is damaged", "previous.ckpt is damaged", "--output=ANOTHER_FOLDER"):
        assert text in shown
    assert {"last.ckpt", "previous.ckpt"} <= {path.name for path in copy.iterdir()}  # nothing was lost


def test_every_flipped_byte_is_found(copy: Path) -> None:
    path, checkpoints = copy / "last.ckpt", AtomicCheckpoints()
    content = path.read_bytes()
    expected = checkpoints.load_checkpoint(path)["state_dict"]
    ends = [*range(200), *range(len(content) - 200, len(content))]
    missed = 0
    for place in [*ends, *range(200, len(content) - 200, 97)]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
        try:
            found = checkpoints.load_checkpoint(path)["state_dict"]
        except DamagedError:
            continue
        missed += 1  # then it was in the mark of the checksum, and nothing else is hurt
        assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert missed <= len(checkpoints.MARK)


def test_checkpoints_of_older_versions(copy: Path, tmp_path: Path) -> None:
    """They have no checksum and no settings; the configuration beside them may lack settings."""
    content = torch.load(copy / "last.ckpt", weights_only=True)  # whoever reads torch's files reads ours
    for name in ("settings", "changed", "init"):
        del content["callbacks"]["History"][name]
    torch.save(content, copy / "last.ckpt")
    (copy / "previous.ckpt").unlink()
    settings = yaml.safe_load((copy / "config.yaml").read_text())
    del settings["checkpoint_steps"], settings["optimizer"]["clip_norm"]
    (copy / "config.yaml").write_text(yaml.safe_dump(settings))
    for change in ({"optimizer": {"momentum": 0.1}}, {"optimizer": {"clip_norm": 3.0}}):
        with pytest.raises(ValueError, match="cannot go on with other settings"):
            fit(case(copy, **change), resume=True, verbose=False)
    same(fit(case(copy), resume=True, verbose=False))


class Foreign:
    """Unpickled, it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_checkpoint_is_executed(copy: Path, tmp_path: Path) -> None:
    made = tmp_path / "executed"
    checkpoint = torch.load(copy / "last.ckpt", weights_only=True)
    AtomicCheckpoints().save_checkpoint({**checkpoint, "hyper_parameters": Foreign(made)}, copy / "last.ckpt")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be loaded"):  # whole, but not one of ours
        fit(case(copy), resume=True, verbose=False)
    assert not made.exists()


def test_an_older_checkpoint_without_its_configuration(copy: Path) -> None:
    content = torch.load(copy / "last.ckpt", weights_only=True)
    del content["callbacks"]["History"]["settings"]
    torch.save(content, copy / "last.ckpt")
    (copy / "config.yaml").unlink()
    with pytest.raises(ValueError, match=r"config\.yaml is missing.*put it back"):
        fit(case(copy), resume=True, verbose=False)


def test_other_settings_are_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    given = ["--resume", "--optimizer.momentum=0.1", "--seed=7", "--data.batch_size=3"]
    assert main(["train", str(copy / "config.yaml"), *given]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "  optimizer.momentum: 0.9 in the run, 0.1 given" in lines
    assert "  seed: 0 in the run, 7 given" in lines
    assert "  data.batch_size: 2 in the run, 3 given" in lines
    assert len(lines) == 5
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_settings_that_were_edited_in_the_record_are_refused(copy: Path) -> None:
    path = copy / "config.yaml"
    path.write_text(path.read_text().replace("momentum: 0.9", "momentum: 0.5"))
    with pytest.raises(ValueError, match=r"optimizer\.momentum: 0\.9 in the run, 0\.5 given"):
        fit(load_config(path, {"output": str(copy)}), resume=True, verbose=False)


def test_settings_that_may_change_are_applied_and_recorded(copy: Path) -> None:
    config = case(copy, epochs=4, votes=2, checkpoint_steps=None, evaluate_every=2)
    result = fit(config, resume=True, verbose=False)
    assert load_config(copy / "config.yaml") == config
    assert ["accuracy" in row for row in result.history] == [True, True, False, True]
    assert AtomicCheckpoints().load_checkpoint(copy / "previous.ckpt")["global_step"] == 18  # of an epoch
    changed = json.loads((copy / "summary.json").read_text())["changed"]
    values = {
        (c["step"], c["setting"]): (c["before"], c["after"]) for c in changed if c["setting"] != "output"
    }
    assert values == {
        (12, "epochs"): (3, 4),
        (12, "votes"): (1, 2),
        (12, "checkpoint_steps"): (3, None),
        (12, "evaluate_every"): (1, 2),
    }
    again = fit(case(copy, epochs=5, votes=2, checkpoint_steps=None, evaluate_every=2), resume=True)
    assert again.changed == [*changed, {"step": 24, "setting": "epochs", "before": 4, "after": 5}]


def test_what_may_change_are_settings() -> None:
    assert MAY_CHANGE.keys() <= {name for name, *_ in Config()._settings()}


def test_processes_change_only_between_epochs(tmp_path: Path) -> None:
    stopped(tmp_path / "run", 11)  # the last checkpoint is of step 9
    with pytest.raises(ValueError, match="devices: 1 in the run, 2 given"):
        fit(case(tmp_path / "run", devices=2), resume=True, verbose=False)


@pytest.mark.parametrize(("batch", "epochs"), [(14, 1), (11, 1)])
def test_fewer_epochs_than_there_were(tmp_path: Path, batch: int, epochs: int) -> None:
    stopped(tmp_path / "run", batch)
    with pytest.raises(ValueError, match="has come to epoch 2: epochs=1 is too few"):
        fit(case(tmp_path / "run", epochs=epochs), resume=True, verbose=False)


def test_init_is_kept(copy: Path) -> None:
    result = fit(case(copy), resume=True, verbose=False)
    assert result.init is not None
    assert json.loads((copy / "summary.json").read_text())["init"] == result.init
    expected = never_stopped().init
    assert expected is not None
    assert result.init["layers"] == expected["layers"]


HOLDER = """
import sys, time
from pointvar.train.output import RunFolder

with RunFolder(sys.argv[1]).held():
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, script = tmp_path / "run", tmp_path / "holder.py"
    script.write_text(HOLDER)
    (tmp_path / "config.yaml").write_text(case(folder, epochs=1).to_yaml())
    command = ["train", str(tmp_path / "config.yaml")]
    holder = subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for resume in ([], ["--resume"]):
            assert main([*command, *resume]) == 2
            shown = capsys.readouterr().err
            assert re.search(rf"in use by process {holder.pid} on \S+, since 20\d\d-.*: wait for it", shown)
        assert {path.name for path in folder.iterdir()} == {".lock", "running.json"}
    finally:
        holder.kill()  # what it leaves is stale
        holder.communicate()
    assert json.loads((folder / "running.json").read_text())["pid"] == holder.pid
    assert main(command) == 0


def test_a_process_of_another_host(tmp_path: Path) -> None:
    with RunFolder(tmp_path).held():
        (tmp_path / "running.json").write_text('{"pid": 1, "host": "elsewhere", "since": "noon"}')
        with pytest.raises(ValueError, match="in use by process 1 on elsewhere, since noon"):
            fit(case(tmp_path), verbose=False)
        (tmp_path / "running.json").write_text("{")
        with pytest.raises(ValueError, match="in use by another process"):
            fit(case(tmp_path), verbose=False)


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is for segmentation"):
        fit(case(tmp_path / "run", model={"network": "unet"}), verbose=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("votes", [1, 2])
def test_the_last_epoch_and_the_final_evaluation_agree(votes: int) -> None:
    """Scenes are predicted in overlapping spheres, whose probabilities are summed in both."""
    change: dict[str, Any] = {
        "data": {"radius": 0.5, "context": 0.7, "crops": 2, "batch_size": 1},
        "model": {"network": "unet", "channels": [4, 4], "radii": [0.2, 0.4], "head": None},
    }
    data, config = room_data(), tiny(change, epochs=1, votes=votes)
    result = fit(config, data)
    assert result.model is not None
    once = evaluate(result.model, data, config.data, 1, config.seed)
    assert result.history[-1].items() >= once.scalars().items()
    assert result.metrics["count"] == once.count == 600  # every labelled point counts once
    assert (result.metrics["mean_iou"] == once.mean_iou) == (votes == 1)


def test_output_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "config.yaml").write_text(case(tmp_path / "file").to_yaml())
    assert main(["train", str(tmp_path / "config.yaml")]) == 2
    assert f"the output {tmp_path / 'file'} is a file: choose a folder" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "config.yaml"), f"--output={tmp_path / 'file' / 'run'}"]) == 2
    assert (
        f"cannot write {tmp_path / 'file' / 'run'}: Not a directory; choose another"
        in capsys.readouterr().err
    )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "choose a folder on another disk")],
)
@pytest.mark.parametrize("name", ["last.ckpt", "summary.json", "config.yaml", "metrics.jsonl"])
def test_a_disk_that_takes_no_more(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    advice: str,
) -> None:
    config, fsync, path_open = tmp_path / "config.yaml", os.fsync, Path.open
    config.write_text(case(tmp_path / "run").to_yaml())

    def full(descriptor: int) -> None:
        if f"/.{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    def full_open(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if path.name == name and mode == "a":
            raise OSError(number, os.strerror(number))
        return path_open(path, mode, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        patch.setattr(Path, "open", full_open)
        assert main(["train", str(config)]) == 2
    shown = capsys.readouterr().err
    assert f"cannot write {tmp_path / 'run' / name}: {os.strerror(number)}; {advice}" in shown
    assert not list((tmp_path / "run").glob(".*.writing"))
    assert main(["train", str(config), "--resume"]) == 0
    capsys.readouterr()


def test_a_run_that_diverges_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(case(tmp_path / "run", optimizer={"rate": 1e20}).to_yaml())
    assert main(["train", str(config)]) == 1
    assert "diverged: " in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["diverged"]


class Interrupting(Stopping):
    def __init__(self, *signals: signal.Signals) -> None:
        super().__init__(8)
        self.signals = signals

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batch:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("signals", "said"), [([signal.SIGTERM], "stopped; go on with"), ([signal.SIGINT] * 2, "interrupted")]
)
def test_a_run_that_is_interrupted_exits_with_130(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    signals: list[signal.Signals],
    said: str,
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(case(tmp_path / "run").to_yaml())
    monkeypatch.setattr("pointvar.train.fit", partial(fit, callbacks=[Interrupting(*signals)]))
    assert main(["train", str(config)]) == 130
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert not (tmp_path / "run" / "running.json").exists()


def test_loggers_of_your_own_and_those_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = CSVLogger(tmp_path, name="own", version="")
    fit(tiny(epochs=2, output=str(tmp_path / "run")), logger=own, verbose=False)
    assert len((tmp_path / "own" / "metrics.csv").read_text().splitlines()) == 3
    assert not (tmp_path / "run" / "tensorboard").exists()

    def missing(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'wandb'")

    monkeypatch.setattr("pointvar.train.output.WandbLogger", missing)
    assert main(["train", "shapes", "--logger=wandb", f"--output={tmp_path / 'other'}"]) == 2
    assert "logger=wandb needs another package: pip install wandb" in capsys.readouterr().err
