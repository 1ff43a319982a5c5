"""What a file may ask for: memory in proportion to its size, and text that is not nested without end.

A file that comes from elsewhere says how much it holds, and a reader that believes it allocates that much.
Every reader of this library therefore asks `check_size` before it reads, and parses JSON and YAML by the
functions here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

EXPANSION = 256
"""Bytes in memory for each byte of a file, at most; ten times what compressed clouds reach."""
SLACK = 16 * 2**20
"""Bytes that any file may take besides, so that small files may be compressed as well as they can."""
DEPTH = 32
"""Levels of nesting in JSON and YAML."""


class BadFileError(ValueError):
    """A file that cannot be used; the message begins with its name."""


def check_size(path: Path | str, declared: int, what: str, factor: int = EXPANSION) -> None:
    """Refuses a file that declares more than its size can hold.

    Args:
        path: of the file.
        declared: the bytes that are to be read from it.
        what: is declared, for the message, such as "points".
        factor: bytes for each byte of the file; 1 where nothing is compressed, which leaves no slack either.
    """
    size = os.path.getsize(path)
    if not 0 <= declared <= factor * size + (SLACK if factor > 1 else 0):
        allowed = "so many" if factor == 1 else f"{factor} times as many and {SLACK >> 20} MiB"
        raise ValueError(
            f"it declares {declared:,} bytes of {what}, but has {size:,} bytes itself ({allowed} are allowed)"
        )


def parse_json(text: str | bytes) -> Any:
    """The content of JSON text.

    Raises:
        ValueError: it is none, or is nested deeper than `DEPTH`.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEPTH} levels") from None
    _check_depth(content)
    return content


def check_yaml(text: str) -> None:
    """Refuses YAML that has aliases, or is nested deeper than `DEPTH`, before it is loaded.

    A few lines of aliases to aliases stand for billions of values. Errors of syntax are left to who loads it.
    """
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            line = f"line {event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{line}: aliases (*{event.anchor}) are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEPTH:
                raise ValueError(f"{line}: it is nested deeper than {DEPTH} levels")
    except yaml.YAMLError:
        return


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(DEPTH + 1):
        level = [
            part
            for item in level
            if isinstance(item, (dict, list))
            for part in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEPTH} levels")
