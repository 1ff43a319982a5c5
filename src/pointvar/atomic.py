"""Files that are whole or not there, whatever interrupts the writing."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

ADVICE = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
    errno.EACCES: "make the folder writable, or choose another one",
    errno.EPERM: "make the folder writable, or choose another one",
    errno.EROFS: "choose a folder on another disk",
    errno.EEXIST: "choose another folder",
    errno.ENOTDIR: "choose another folder",
}
"""What to do about an error of the system."""


def write_atomically(
    path: str | Path, content: str | bytes | memoryview, keep: str | Path | None = None
) -> None:
    """Writes a file in one step of the file system, and waits until it is on the disk.

    Args:
        path: of the file.
        content: of the file.
        keep: where the file that is there now goes. At any moment there is one of the two.
    """
    with writing(path, keep) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing(path: str | Path, keep: str | Path | None = None) -> Iterator[BinaryIO]:
    """A file to write to, that takes its name at the end as in `write_atomically` if all went well."""
    path = Path(path)
    with names_file(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".writing", dir=path.parent)
        try:
            with os.fdopen(handle, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # as an ordinary file would be; mkstemp makes it private
            if keep is not None and path.exists():
                os.replace(path, keep)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        if os.name == "posix":  # the new name has to be on the disk, too
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@contextmanager
def names_file(path: str | Path) -> Iterator[None]:
    """Errors of the system within say which file could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        advice = ADVICE.get(error.errno)
        text = f"cannot write {path}: {error.strerror}{f'; {advice}' if advice else ''}"
        raise OSError(error.errno, text) from error


def writable(folder: Path) -> Path:
    """Makes a folder if need be; raises now, and not after long work, if nothing can be written there."""
    with names_file(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return folder


def _umask() -> int:
    """The mask of new files; there is no way to read it but to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
