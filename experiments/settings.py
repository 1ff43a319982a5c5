"""Settings of a training by dotted names, as in ``{"model.norm": "batch"}``; ``{**a, **b}`` puts b over a."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from pointvar.train import Config, load_config

Settings = Mapping[str, Any]
ELSEWHERE = {
    *("output", "logger", "threads", "accelerator", "checkpoint_steps"),
    *("data.path", "data.scenes", "data.workers", "data.cache"),
}
"""Settings that say where and how fast a training runs, not what it is."""


def flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names from the sections of a recipe."""
    named = {
        f"{section}.{key}": value
        for section, content in sections.items()
        if isinstance(content, Mapping)
        for key, value in content.items()
    }
    return named | {key: value for key, value in sections.items() if not isinstance(value, Mapping)}


def configuration(settings: Settings) -> Config:
    """The training that settings describe."""
    sections: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        (sections.setdefault(section, {}) if section else sections)[key] = value
    return load_config("published", sections)


@cache
def _defaults() -> dict[str, Any]:
    return flat(asdict(load_config("published")))


def fingerprint(settings: Settings) -> str:
    """Tells recipes apart, whatever folder or machine they run in.

    Only what differs from the defaults counts, so that a setting that is new changes no fingerprint.
    """
    named = {**settings, "init.table": Path(settings.get("init.table", _defaults()["init.table"])).stem}
    recipe = {
        name: value
        for name, value in named.items()
        if name not in ELSEWHERE and value != _defaults().get(name)
    }
    same_numbers = json.loads(json.dumps(recipe), parse_int=float)  # 2 and 2.0 are the same radius
    return hashlib.sha256(json.dumps(same_numbers, sort_keys=True).encode()).hexdigest()[:12]
