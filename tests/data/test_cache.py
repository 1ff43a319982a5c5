"""Converted files are kept whole or not at all, and made anew when anything changes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pointvar.data import Cache
from pointvar.data.cache import default_folder, resolve_cache


class Maker:
    """Counts how often it is asked."""

    def __init__(self, source: Path) -> None:
        self.source, self.calls = source, 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"points": np.frombuffer(self.source.read_bytes(), dtype=np.uint8)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"abc")
    return path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_made_once(source: Path, tmp_path: Path) -> None:
    make = Maker(source)
    for cache in (Cache(tmp_path / "kept"), Cache(tmp_path / "kept")):  # another process, later
        for _ in range(2):
            assert bytes(cache.get(source, {"a": 1}, make)["points"]) == b"abc"
    assert make.calls == 1


@pytest.mark.parametrize("change", ["content", "time", "parameters"])
def test_made_anew_after_a_change(change: str, source: Path, tmp_path: Path) -> None:
    cache, make, parameters = Cache(tmp_path / "kept"), Maker(source), {"a": 1}
    cache.get(source, parameters, make)
    if change == "content":
        status = source.stat()
        source.write_bytes(b"abcd")
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))  # the size alone differs
    elif change == "time":
        source.write_bytes(b"xyz")
        os.utime(source, ns=(0, source.stat().st_mtime_ns + 1))  # the time alone differs
    else:
        parameters = {"a": 2}
    assert bytes(cache.get(source, parameters, make)["points"]) == source.read_bytes()
    assert make.calls == 2
    assert len(files(cache.folder)) == (2 if change == "parameters" else 1)  # the outdated entry is gone


def test_a_damaged_entry_is_made_again(source: Path, tmp_path: Path) -> None:
    cache, make = Cache(tmp_path / "kept"), Maker(source)
    cache.get(source, {}, make)
    entry = cache.entry(source, {})
    entry.write_bytes(entry.read_bytes()[:50])
    assert bytes(cache.get(source, {}, make)["points"]) == b"abc"
    assert bytes(cache.get(source, {}, make)["points"]) == b"abc"
    assert make.calls == 2


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from pointvar.data import Cache

os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)  # the content is written, its name is to come
Cache(sys.argv[2]).get(Path(sys.argv[1]), {}, lambda: {"points": np.zeros(1000), "label": np.zeros(10)})
"""


def test_a_kill_in_the_middle_leaves_no_entry(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    done = subprocess.run([sys.executable, "-c", KILLED, str(source), str(folder)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    leftovers = files(folder)
    assert len(leftovers) == 1  # it was indeed in the middle of writing
    cache, make = Cache(folder), Maker(source)
    assert not cache.entry(source, {}).exists()
    assert bytes(cache.get(source, {}, make)["points"]) == b"abc"
    assert make.calls == 1
    old = time.time() - 7200
    os.utime(leftovers[0], (old, old))
    source.write_bytes(b"new content")
    cache.get(source, {}, make)
    assert files(folder) == [cache.entry(source, {})]  # what was left over an hour ago is tidied up


def test_a_failure_leaves_nothing(source: Path, tmp_path: Path) -> None:
    class Unwritable:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            raise RuntimeError("no array")

    cache = Cache(tmp_path / "kept")
    with pytest.raises(RuntimeError, match="no array"):
        cache.get(source, {}, lambda: {"points": Unwritable()})
    assert files(cache.folder) == []


def test_a_folder_that_cannot_be_written_is_a_warning(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot keep converted data in .*cache=False"):
        found = Cache(tmp_path / "file" / "kept").get(source, {}, Maker(source))
    assert bytes(found["points"]) == b"abc"


def test_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_folder() == Path(os.environ["POINTVAR_CACHE"])
    monkeypatch.delenv("POINTVAR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "pointvar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "pointvar"
    assert resolve_cache(False) is None
    given = Cache(tmp_path / "own")
    assert resolve_cache(given) is given
    assert resolve_cache(tmp_path / "other").folder == tmp_path / "other"
