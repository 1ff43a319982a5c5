"""The commands of docs/own-data.md, one after the other, on small files of the same kinds."""

import json
import os
import re
import shlex
from glob import glob
from pathlib import Path

import laspy
import numpy as np
import pytest
from aerial import cut_tiles

from pointvar.cli import main
from pointvar.data import Rooms, Shapes, write_ply

PAGE = Path(__file__).parent.parent / "docs" / "own-data.md"
SURVEY = Path(os.environ.get("POINTVAR_DATA", PAGE.parents[2] / "shared" / "data")) / "ahn3_delft.npz"
CODES = np.array([2, 26, 6, 1, 9], np.uint8)
QUICK = ["--epochs=1", "--threads=1", "--accelerator=cpu", "--init.batches=1", "--logger=none"]
SMALL = ["--model.channels=[4, 4]", "--data.crops=2", "--data.radius=2", "--data.context=3"]


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A survey of nine tiles, made of rooms, and a folder of objects."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    for index in range(9):
        room = Rooms(index + 1, "train", 400, floor=(3.0, 4.0))[index]
        header = laspy.LasHeader(point_format=6, version="1.4")
        row, column = divmod(index, 3)
        header.scales, header.offsets = [0.001] * 3, [85_000.0 + 4 * row, 447_000.0 + 4 * column, 0]
        tile = laspy.LasData(header)
        tile.x, tile.y, tile.z = (room.points.double().numpy() + header.offsets).T
        tile.classification = CODES[room.label.numpy() % 5]
        tile.intensity = np.random.default_rng(index).integers(1, 60_000, len(room))
        tile.write(str(tmp_path / "scans" / f"tile_{row}{column}.laz"))
    shapes = Shapes(30, "train", 64)
    for index in range(30):
        sample = shapes[index]
        assert isinstance(sample.label, int)
        folder = tmp_path / "objects" / "abc"[sample.label % 3]
        folder.mkdir(parents=True, exist_ok=True)
        write_ply(folder / f"{index}.ply", sample.points.numpy())
    return tmp_path


def test_the_page_shows_what_was_printed() -> None:
    """Lines of the stored output of benchmarks/own_data.py, in their order."""
    stored = json.loads((PAGE.parent.parent / "benchmarks/results/own_data.json").read_text("utf8"))
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text("utf8"), re.MULTILINE | re.DOTALL)
    for block, name in zip(blocks, ("init", "train segment", "evaluate", "predict"), strict=True):
        lines = iter(stored[name])
        assert all(line in lines for line in block.splitlines() if line != "..."), name


def test_a_real_survey_is_told_as_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not SURVEY.is_file():
        pytest.skip(f"needs {SURVEY.name}; set POINTVAR_DATA")
    monkeypatch.chdir(tmp_path)
    cut_tiles(SURVEY, tmp_path / "scans")
    assert main(["init", "scans", "--output=mine.yaml"]) == 0
    shown = capsys.readouterr().out
    text = PAGE.read_text("utf8")
    (block,) = re.findall(r"^```text\n(task .*?)^```", text, re.MULTILINE | re.DOTALL)
    assert shown.startswith(block)
    (settings,) = re.findall(r"^```yaml\n(  classes:.*?)^```", text, re.MULTILINE | re.DOTALL)
    written = iter(
        line.partition("  # one is")[0] for line in Path("mine.yaml").read_text("utf8").splitlines()
    )
    assert all(line in written for line in settings.splitlines())


def test_commands(place: Path) -> None:
    given = commands()
    assert len(given) >= 3
    for program, *arguments in given:
        assert program == "pointvar"
        if arguments[0] == "train":
            levels = (
                ["--model.radii=[0.3, 0.6]"]
                if "objects" in " ".join(arguments)
                else ["--model.radii=[0.4, 0.8]"]
            )
            arguments += [*QUICK, *SMALL, *levels]
        arguments = [
            path for word in arguments for path in (sorted(glob(word)) if "*.laz" in word else [word])
        ]
        assert main(arguments) == 0, arguments
    assert (place / "runs" / "survey" / "last.safetensors").is_file()
    labelled = [np.array(laspy.read(path).classification) for path in sorted(place.glob("labelled/*.laz"))]
    assert [len(codes) for codes in labelled] == [400] * 9
    assert {code for codes in labelled for code in codes.tolist()} <= set(CODES.tolist())
