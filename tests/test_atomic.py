"""Files that are whole or not there."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pointvar.atomic import write_atomically


def test_text_and_bytes_are_written(tmp_path):
    write_atomically(tmp_path / "text", "ä\n")
    write_atomically(str(tmp_path / "bytes"), b"\0")
    assert (tmp_path / "text").read_bytes() == "ä\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\0"


def test_what_was_there_stays_if_the_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "before")

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_several_may_write_the_same(tmp_path):
    path = tmp_path / "file"
    contents = [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda content: write_atomically(path, content), contents))
    assert path.read_text() in contents
    assert list(tmp_path.iterdir()) == [path]
