"""Files that are whole or not there, whatever interrupts the writing."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file in one step of the file system, and waits until it is on the disk."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        _replace(path, data)
    except OSError as error:
        if error.errno is None:
            raise
        # The error names the file that was asked for, not the temporary one.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".writing", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # as an ordinary file would be; mkstemp makes it private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def writable(folder: Path) -> Path:
    """Makes a folder if need be; raises now, and not after long work, if nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


def _umask() -> int:
    """The mask of new files; there is no way to read it but to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
