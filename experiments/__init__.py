"""One file per figure or table of the paper, and beyond it; ``python -m experiments NAME`` makes one."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from experiments.options import Options

__all__ = ["EXPERIMENTS", "FIGURES", "TABLES", "Options", "load", "run"]

FIGURES = {
    "fig-motivation": "variance by depth: images, points as usual, points with variance-aware weights",
    "fig-correlation": "why images' rule fails: features of near points are alike, the more the deeper",
    "fig-basis": "the bases, and the estimators where points are uneven",
    "fig-rank": "how many functions a basis really has: its effective rank, all ten methods",
    "fig-variance": "25 layers of all ten methods: standard, direct and transferred weights",
    "fig-depth": "100 layers: activations and gradients",
    "fig-closed-form": "unit response without data: closed form against direct, and the coherence",
    "fig-unseen": "clouds that were not calibrated on: as published, and with unit response",
    "fig-collapse": "what is left of the differences between points and between clouds, by depth",
    "fig-architecture": "the classifier and the U-Net, drawn from the networks themselves",
}
TABLES = {
    "table-scanobjnn": "five methods, batches of 2 to 16: direct, He, Xavier, group norm, batch norm",
    "table-segment": "segmentation, one large cloud per batch or four small ones",
    "table-class": "ModelNet40: batch norm, standard, direct, transfer",
    "table-small-batch": "ModelNet40, batches of 2 and 4: direct and batch norm",
    "table-kpconv": "KPConv with a sum and with Monte Carlo",
    "table-orig-arch": "the paper's architecture and a method's own",
    "gradient-accumulation": "batch norm on one cloud at a time, gradients of four",
    "pointconv-architecture": "PointConv's own network with batch norm and with direct weights",
    "init-time": "seconds that an initialisation takes",
    "table-norm-free": "all ten methods by the recipe norm-free, against batch norm, group norm and direct",
    "table-parts": "the recipe norm-free without each of its parts; SGD and AdamW, with norms and without",
    "table-precondition": "learned bases with and without preconditioned steps",
    "table-centring": "the recipe norm-free with and without centred draws, all ten methods",
    "table-depth": "plain networks of 10 to 100 layers: what trains at all",
    "table-third-party": "networks of PyTorch Geometric as they come, and after variance_init",
    "table-any-network": "six public networks with BN, GN, DyT, no norm, variance_init and norm_free",
    "table-any-parts": "public networks: norm_free without centring, and with other residual branches",
    "table-long": "classification trained to the end: batch norm, group norm, direct, norm-free",
    "table-size": "the paper's own network, trained to the end: group norm, direct, norm-free",
    "table-segment-long": "segmentation trained to the end, one cloud per batch",
    "table-transfer": "weights from tables of every other data set, against direct",
}
EXPERIMENTS = FIGURES | TABLES
"""Name -> what it shows."""


def load(name: str) -> ModuleType:
    """The module of an experiment: a figure has ``run(options)``, a table ``grids(options)``."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return import_module(f"experiments.{name.replace('-', '_')}")


def run(name: str, options: Options) -> None:
    """Makes a figure, or goes on with a table."""
    module = load(name)
    if name in TABLES:
        from experiments.grid import run_all

        run_all(module.grids(options), options)
    elif not options.report:
        module.run(options)
