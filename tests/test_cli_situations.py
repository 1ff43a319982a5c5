"""Commands where something is wrong with a file: a line that names it, exit code 2, never a traceback."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from pointvar.cli import main

SMALL = ["train", "empty.yaml", "--epochs=1", "--model.channels=[4,8]", "--model.radii=[0.2,0.4]"]
SMALL += ["--logger=none", "--data.name=folder", "--init.batches=1"]
SCENES = ["--model.network=unet", "--data.task=segmentation", "--data.radius=0.5", "--data.context=0.5"]
SEGMENT, CLASSIFY = [*SMALL, *SCENES], [*SMALL, "--model.head=8"]
TABLE = ["--methods", "MCConv", "--depth", "1", "--channels", "2", "--clouds", "1", "--repeats", "1"]


def write_cloud(path, classes=2, broken=False):
    """200 points; without labels if there are no classes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    points = np.random.default_rng(0).random((200, 3)).astype(np.float32)
    points[3, 1] = np.nan if broken else 0
    labels = {"label": np.arange(200) % classes} if classes else {}
    np.savez(path, points=points, **labels)


def name_one_class_less(path):
    """Takes a class from the notes of a saved network, which goes on to predict it."""
    with safe_open(path, "pt") as content:
        description = json.loads(content.metadata()["pointvar"])
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    description["notes"]["classes"].pop()
    save_file(tensors, path, {"pointvar": json.dumps(description)})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data sets good and bad, a run that segments, and one that classifies."""
    root = tmp_path_factory.mktemp("situations")
    for split in ("train", "test"):
        write_cloud(root / "scenes" / split / "a.npz")
        write_cloud(root / "one" / split / "a.npz", classes=1)
        write_cloud(root / "unlabelled" / split / "a.npz", classes=0)
        write_cloud(root / "broken" / split / "a.npz", broken=True)
        (root / "nothing" / split).mkdir(parents=True)
        for name in "abc":
            write_cloud(root / "shapes3" / split / name / "x.npz")
        for name in "ab":
            write_cloud(root / "shapes2" / split / name / "x.npz")
        write_cloud(root / "shapes1" / split / "a" / "x.npz")
    (root / "empty.yaml").write_text("{}\n")
    (root / "file").write_text("no folder\n")
    (root / "folder.json").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("POINTVAR_CACHE", str(root / "cache"))
        assert main([*SEGMENT, "--data.path=scenes", "--output=segments"]) == 0
        assert main([*CLASSIFY, "--data.path=shapes2", "--output=classifies"]) == 0
    for run in ("segments", "classifies"):
        shutil.copytree(root / run, root / f"{run}-less")
        name_one_class_less(root / f"{run}-less/model.safetensors")
    return root


@pytest.fixture(autouse=True)
def _there(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("POINTVAR_CACHE", str(place / "cache"))


SITUATIONS = {
    # Data
    "train, missing data": ([*SEGMENT, "--data.path=absent"], "absent"),
    "train, a folder without files": ([*SEGMENT, "--data.path=nothing"], "nothing/train"),
    "train, a file as folder of data": ([*SEGMENT, "--data.path=file"], "file/train"),
    "train, one class, scenes": ([*SEGMENT, "--data.path=one"], "one: the training data have one class only"),
    "train, one class, shapes": (
        [*CLASSIFY, "--data.path=shapes1"],
        "shapes1: .*one class only (a); give data",
    ),
    "train, no labels": ([*SEGMENT, "--data.path=unlabelled"], "unlabelled/train/a.npz: no label"),
    "train, NaN": ([*SEGMENT, "--data.path=broken"], "broken/train/a.npz: .*1 of 200 points are not finite"),
    "train, missing settings": (["train", "absent.yaml"], "absent.yaml: neither"),
    "train, a folder as settings": (["train", "scenes"], "scenes: neither"),
    "evaluate, no run": (["evaluate", "absent"], "absent is not a run"),
    "evaluate, a file": (["evaluate", "file"], "file is not a run"),
    "evaluate, an empty folder": (["evaluate", "nothing"], "nothing is not a run"),
    "evaluate, missing data": (["evaluate", "segments", "--data.path=absent"], "absent"),
    "evaluate, unknown classes": (
        ["evaluate", "classifies", "--data.path=shapes3"],
        "shapes3/test has the classes c",
    ),
    "evaluate, no labels": (
        ["evaluate", "segments", "--data.path=unlabelled"],
        "unlabelled/test/a.npz: no label",
    ),
    "evaluate, NaN": (["evaluate", "segments", "--data.path=broken"], "broken/test/a.npz: "),
    "predict, no network": (["predict", "absent", "scenes/test/a.npz"], "there is no file absent"),
    "predict, an empty folder": (["predict", "nothing", "scenes/test/a.npz"], "nothing is not a run"),
    "predict, no saved network": (["predict", "file", "scenes/test/a.npz"], "file is not a network"),
    "report, missing": (["report", "absent"], "absent: there is no such file or folder"),
    "report, an empty folder": (["report", "nothing"], "nothing to report in nothing"),
    "report, NaN": (["report", "broken/test/a.npz"], "broken/test/a.npz: "),
    # Output
    "train, output is a file": (
        [*SEGMENT, "--data.path=scenes", "--output=file"],
        "the output file is a file: choose a folder",
    ),
    "train, output in a file": (
        [*SEGMENT, "--data.path=scenes", "--output=file/run"],
        "cannot write file/run: Not a directory; choose another folder",
    ),
    "report, output is a folder": (
        ["report", "segments", "--output", "scenes"],
        "scenes is a folder where a file",
    ),
    "report, output in a file": (
        ["report", "segments", "--output", "file/x.html"],
        "file is a file where a folder",
    ),
    "tables, output is a folder": (["tables", "folder.json", *TABLE], "folder.json is a folder"),
    "tables, output in a file": (["tables", "file/t.json", *TABLE], "cannot write file: File exists"),
    "demo, output is a file": (["demo", "--output", "file"], "file is a file where a folder is needed"),
    "demo, output in a file": (
        ["demo", "--output", "file/demo"],
        "file/demo: file is a file where a folder",
    ),
    "predict, output is a file": (
        ["predict", "segments", "scenes/test/a.npz", "--output", "file"],
        "cannot write file: File exists; choose another folder",
    ),
    # Both kinds of networks
    **{
        f"predict, {run}, {what}": (["predict", run, file], message)
        for run in ("segments", "classifies")
        for what, file, message in (
            ("missing cloud", "absent.npz", "absent.npz: there is no such file"),
            ("a folder without clouds", "folder.json", "folder.json: there is no file in this folder that"),
            ("NaN", "broken/test/a.npz", "broken/test/a.npz: .*1 of 200 points are not finite"),
            ("no cloud", "file", "file: unknown format"),
        )
    },
    "predict, a shape, fewer classes": (
        ["predict", "classifies-less", "scenes/test/a.npz"],
        "classifies-less predicts 2 classes and names 1 (a)",
    ),
    "predict, a scene, fewer classes": (
        ["predict", "segments-less", "scenes/test/a.npz"],
        "the network predicts 2 classes and names 1",
    ),
}


def refused(arguments, message, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "Errno" not in shown
    assert ".writing" not in shown
    lines = [line for line in shown.splitlines() if line.startswith(f"pointvar {arguments[0]}: ")]
    assert len(lines) == 1
    position = 0
    for part in message.split(".*"):
        position = lines[0].find(part, position)
        assert position >= 0, f"{part!r} is not in {lines[0]!r}"


@pytest.mark.parametrize(("arguments", "message"), SITUATIONS.values(), ids=SITUATIONS)
def test_what_is_wrong_with_a_file_is_told_in_a_line(arguments, message, place, capsys, tmp_path):
    before = (place / "file").read_text()
    output = (
        [] if arguments[0] != "train" or "--output=" in arguments[-1] else [f"--output={tmp_path / 'run'}"]
    )
    refused([*arguments, *output], message, capsys)
    assert (place / "file").read_text() == before


def test_fewer_classes_in_the_test_data_are_evaluated(place):
    shutil.copytree(place / "classifies", place / "evaluated", dirs_exist_ok=True)
    assert main(["evaluate", "evaluated", "--data.path=shapes1"]) == 0


READ_ONLY = {
    "train": [*SEGMENT, "--data.path=scenes", "--output=locked/run"],
    "predict": ["predict", "segments", "scenes/test/a.npz", "--output", "locked"],
    "predict, new folder": ["predict", "segments", "scenes/test/a.npz", "--output", "locked/new"],
    "report": ["report", "segments", "--output", "locked/x.html"],
    "tables": ["tables", "locked/t.json", *TABLE],
    "demo": ["demo", "--output", "locked/demo"],
    "evaluate": ["evaluate", "locked"],
}
UNREADABLE = {
    "train": (["train", "secret/config.yaml"], "config.yaml"),
    "evaluate": (["evaluate", "secret"], "config.yaml"),
    "predict, cloud": (["predict", "segments", "secret/a.npz"], "a.npz"),
    "predict, network": (["predict", "secret", "scenes/test/a.npz"], "model.safetensors"),
    "report": (["report", "secret/a.npz"], "a.npz"),
}
not_root = pytest.mark.skipif(os.getuid() == 0, reason="root may read and write everywhere")


@not_root
@pytest.mark.parametrize("arguments", READ_ONLY.values(), ids=READ_ONLY)
def test_a_folder_that_may_not_be_written_is_named(arguments, place, capsys):
    shutil.copytree(place / "segments", place / "locked")
    (place / "locked").chmod(0o555)
    try:
        refused(arguments, "locked.*: you may not write there; change its permissions", capsys)
    finally:
        (place / "locked").chmod(0o755)
        shutil.rmtree(place / "locked")


@not_root
@pytest.mark.parametrize(("arguments", "name"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_may_not_be_read_is_named(arguments, name, place, capsys):
    secret = shutil.copytree(place / "segments", place / "secret", dirs_exist_ok=True)
    shutil.copy(place / "scenes/test/a.npz", secret)
    (secret / name).chmod(0)
    try:
        refused(arguments, f"secret/{name}: you may not read it; change its permissions", capsys)
    finally:
        shutil.rmtree(secret)


def test_a_full_disk_is_told(place, monkeypatch, capsys):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    refused(
        ["evaluate", "segments"],
        "cannot write segments/evaluation.*: No space left on device; free some space",
        capsys,
    )
    assert not list((place / "segments").glob(".*.writing"))
