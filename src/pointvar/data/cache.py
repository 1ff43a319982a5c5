"""What was converted once is kept: safe against a kill at any moment, made anew when the source changes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pointvar.atomic import write_atomically
from pointvar.data.formats import Arrays, read_arrays

VERSION = 2  # to be raised when the meaning of what is kept changes
HOUR = 3600.0


class Cache:
    """Converted files in a folder of their own.

    An entry belongs to a source file and the parameters of its conversion. It is used only as long as the
    size and the modification time of the source are those it was made from. An entry is whole or absent. The
    folder may be deleted at any time.

    Args:
        folder: where to keep it; default the environment variable ``POINTVAR_CACHE``, else ``pointvar`` in
            the user's cache directory (``XDG_CACHE_HOME``, else ``~/.cache``).
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()

    def get(self, source: Path, parameters: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """The arrays that ``make()`` gives for this source and these parameters, from the folder if there."""
        entry = self.entry(source, parameters)
        with suppress(Exception):  # absent, or damaged: what is kept here can always be made again
            return read_arrays(entry)
        arrays = make()
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]  # names are free
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(entry, content.getvalue())
            _tidy(entry)
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


def default_folder() -> Path:
    """The folder that is used when none is given."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("POINTVAR_CACHE") or Path(home, "pointvar"))


def resolve_cache(cache: Cache | Path | str | bool) -> Cache | None:
    """A cache from what a user gives: a `Cache`, a folder, True for the default folder, False for none."""
    if isinstance(cache, bool):
        return Cache() if cache else None
    return cache if isinstance(cache, Cache) else Cache(cache)


def converted(
    cache: Cache | None, source: Path, parameters: Mapping[str, Any], make: Callable[[], Arrays]
) -> Arrays:
    """The arrays that ``make()`` gives, from the cache if there is one."""
    return make() if cache is None else cache.get(source, parameters, make)


def _tidy(entry: Path) -> None:
    """Removes the entries of the source as it was before, and what killed processes have left behind."""
    for other in entry.parent.glob(f"{entry.name.split('-')[0]}-*.npz"):
        if other != entry:
            other.unlink(missing_ok=True)
    for leftover in entry.parent.glob(".*.writing"):
        with suppress(FileNotFoundError):  # another process may tidy up as well
            if time.time() - leftover.stat().st_mtime > HOUR:
                leftover.unlink()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:40]
