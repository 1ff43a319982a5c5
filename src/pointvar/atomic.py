"""Files that are whole or not there, whatever ends the process that writes them."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file in one step of the file system; a reader sees the old one or the new one, never a part.

    Several processes may write the same file: each has a temporary file of its own beside it.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.writing")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
