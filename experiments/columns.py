"""The columns of the tables: how a network is normalised, initialised and clipped. Nothing else differs."""

from __future__ import annotations

from experiments.settings import Settings, flat
from pointvar.train import RECIPES

PAPER_METHODS = ("PCCNN", "KPConvN", "MCConv", "PointConv", "SPHConv")
"""The methods of the paper's tables; its "KPConv" is KPConvN, except in table kpconv_abla."""

STANDARD: Settings = {"init.method": "standard"}
DIRECT: Settings = {"init.method": "direct"}
BATCH_NORM: Settings = {"model.norm": "batch"}
NO_NORM_IN_HEAD: Settings = {"model.norm": "batch", "model.head_norm": "none"}
GROUP_NORM: Settings = {"model.norm": "group"}
SGD: Settings = {"optimizer.name": "sgd"}
ADAMW: Settings = {"optimizer.name": "adamw"}

# In a table all columns have one schedule, and rates chosen in one way. No norm is what all begin with.
_RECIPE = flat(RECIPES["norm-free"])
SCHEDULE: Settings = {name: _RECIPE[name] for name in ("optimizer.schedule", "optimizer.warmup")}
"""The schedule of the recipe norm-free, for all columns of the tables beyond the paper."""
NORM_FREE: Settings = {
    name: value for name, value in _RECIPE.items() if name not in (*SCHEDULE, "optimizer.rate", "model.norm")
}
PARTS: dict[str, Settings] = {
    "unit response": {"model.unit_response": False},
    "preconditioning": {"model.precondition": False},
    "clipping": {"optimizer.agc": None},
}
"""The parts of the recipe -> what takes one out."""
CENTRED: Settings = {**NORM_FREE, "init.center": "auto"}

COLUMNS: dict[str, Settings] = {
    "direct": DIRECT,
    "standard": STANDARD,
    "Xavier": {"init.method": "xavier"},
    "LSUV": {"init.method": "lsuv"},
    "transfer": {"init.method": "transfer"},  # from which table, the scenario says
    "GN": {**STANDARD, **GROUP_NORM},
    "BN": {**STANDARD, **BATCH_NORM},
    "BN, not in the head": {**STANDARD, **NO_NORM_IN_HEAD},
    "direct + BN, not in the head": {**DIRECT, **NO_NORM_IN_HEAD},
    "norm-free": NORM_FREE,
    **{f"norm-free without {part}": {**NORM_FREE, **without} for part, without in PARTS.items()},
    "norm-free, centred": CENTRED,
    "norm-free, centred, without unit response": {**CENTRED, **PARTS["unit response"]},
    "norm-free, SGD": {**NORM_FREE, **SGD},
    "BN, AdamW": {**STANDARD, **BATCH_NORM, **ADAMW},
    "GN, AdamW": {**STANDARD, **GROUP_NORM, **ADAMW},
    "as it comes": {"init.method": "none"},
    "variance_init": {"init.method": "direct", "init.layers": "all"},
}
"""Name -> settings. "standard" is He's rule, Var[w] = 2 / (K C)."""

REPEATED = ("MCConv", "KPConvN", "SPHConv")
"""The methods that a laptop trains with every seed, at batches of 2; all else once."""

ADDED = ("BN, not in the head", "LSUV")
"""Columns that go beyond the paper's in every table of a classifier; a U-Net has no head."""
