"""Files that are whole or not there, whenever the process ends."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file in one step of the file system: whoever reads it finds the old content or the new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
