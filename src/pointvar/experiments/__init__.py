"""One file per figure or table of the paper, and beyond it; ``pointvar reproduce NAME`` runs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from pointvar.experiments.options import Options

__all__ = ["EXPERIMENTS", "Options", "load"]

EXPERIMENTS = {
    "fig-motivation": "variance by depth: images, points as usual, points with variance-aware weights",
    "fig-correlation": "why images' rule fails: features of near points are alike, the more the deeper",
    "fig-basis": "the bases, and the estimators where points are uneven",
    "fig-variance": "25 layers of all ten methods: standard, direct and transferred weights",
    "fig-depth": "100 layers: activations and gradients",
    "fig-unseen": "clouds that were not calibrated on: as published, and with unit response",
}
"""Name -> what it shows."""


def load(name: str) -> ModuleType:
    """The module of an experiment, which has ``run(options)``."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return import_module(f"pointvar.experiments.{name.replace('-', '_')}")
