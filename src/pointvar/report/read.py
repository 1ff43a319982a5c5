"""Files of results as plain objects; what cannot be read is named."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return _parsed(path, read_text(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; a last one without its end is still being written, and left out."""
    rows = []
    for number, line in enumerate(read_text(path).splitlines(keepends=True), 1):
        if line.strip():
            try:
                row = _parsed(f"{path}, line {number}", line)
            except ValueError:
                if line.endswith("\n"):
                    raise
                break
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
            rows.append(row)
    return rows


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file with a header; what looks like a number is one."""
    rows = csv.DictReader(read_text(path).splitlines())
    return [{str(name): _value(text) for name, text in row.items()} for row in rows]


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a YAML file of names and values."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError("reports on runs need PyYAML: pip install 'pointvar[report]'") from error
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected names and values, got {type(content).__name__}")
    return content


def read_classes(path: Path) -> list[str]:
    """Names of classes, one per line, with their numbers (from 0) or without."""
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    pairs = [line.split(maxsplit=1) for line in lines]
    if all(len(pair) == 2 and pair[0] == str(number) for number, pair in enumerate(pairs)):
        return [name for _, name in pairs]
    return lines


def read_text(path: Path) -> str:
    """The content of a text file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text: {error}") from error


def _parsed(where: Path | str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error


def _value(text: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            pass
    return text or None
