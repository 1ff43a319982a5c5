"""What was converted once is kept: safe against a kill at any moment, made anew when the source changes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pointvar.data.files import Arrays

VERSION = 1  # to be raised when the meaning of what is kept changes
HOUR = 3600.0


class Cache:
    """Converted files in a folder of their own.

    An entry belongs to a source file and the parameters of its conversion. It is used only as long as the
    size and the modification time of the source are those it was made from. Entries are written under
    another name, flushed to disk and renamed, so that an entry is whole or absent. The folder may be deleted
    at any time.

    Args:
        folder: where to keep it; default the environment variable ``POINTVAR_CACHE``, else ``pointvar`` in
            the user's cache directory (``XDG_CACHE_HOME``, else ``~/.cache``).
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()

    def get(self, source: Path, parameters: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """The arrays that ``make()`` gives for this source and these parameters, from the folder if there."""
        entry = self.entry(source, parameters)
        if entry.exists():
            try:
                with entry.open("rb") as file, np.load(file, allow_pickle=False) as content:
                    return {name: content[name] for name in content.files}
            except Exception:  # damaged on disk: what is kept here can always be made again
                pass
        arrays = make()
        try:
            self._write(entry, arrays)
        except OSError as error:
            warnings.warn(
                f"cannot keep converted data in {self.folder}: {error}; choose another folder with cache= or "
                "POINTVAR_CACHE, or switch it off with cache=False",
                stacklevel=2,
            )
        return arrays

    def entry(self, source: Path, parameters: Mapping[str, Any]) -> Path:
        """Where the arrays of this source in its present state are kept."""
        status = source.stat()
        key = _digest([VERSION, str(source.resolve()), dict(parameters)])
        state = _digest([status.st_size, status.st_mtime_ns])
        return self.folder / key[:2] / f"{key}-{state[:16]}.npz"

    def _write(self, entry: Path, arrays: Arrays) -> None:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=entry.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # names are free
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, entry)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        for other in entry.parent.glob(f"{entry.name.split('-')[0]}-*.npz"):  # of the source as it was before
            if other != entry:
                other.unlink(missing_ok=True)
        for leftover in entry.parent.glob(".writing-*"):  # of processes that were killed
            with suppress(FileNotFoundError):  # another process may tidy up as well
                if time.time() - leftover.stat().st_mtime > HOUR:
                    leftover.unlink()


def default_folder() -> Path:
    """The folder that is used when none is given."""
    if chosen := os.environ.get("POINTVAR_CACHE"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pointvar"


def resolve_cache(cache: Cache | Path | str | bool) -> Cache | None:
    """A cache from what a user gives: a `Cache`, a folder, True for the default folder, False for none."""
    if isinstance(cache, bool):
        return Cache() if cache else None
    return cache if isinstance(cache, Cache) else Cache(cache)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:40]
