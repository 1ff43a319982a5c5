"""The columns of the tables: how a network is normalised, initialised and clipped. Nothing else differs."""

from __future__ import annotations

from experiments.settings import Settings, flat
from pointvar.train import RECIPES

PAPER_METHODS = ("PCCNN", "KPConvN", "MCConv", "PointConv", "SPHConv")
"""The methods of the paper's tables; its "KPConv" is KPConvN, except in table kpconv_abla."""

STANDARD: Settings = {"init.method": "standard"}
DIRECT: Settings = {"init.method": "direct"}
CLOSED: Settings = {"init.method": "closed"}
AS_IT_COMES: Settings = {"init.method": "none"}
EVERY_LAYER: Settings = {"init.method": "direct", "init.layers": "all"}
BATCH_NORM: Settings = {"model.norm": "batch"}
NO_NORM_IN_HEAD: Settings = {"model.norm": "batch", "model.head_norm": "none"}
GROUP_NORM: Settings = {"model.norm": "group"}
UNIT: Settings = {"model.unit_response": True}
ORTHONORMAL: Settings = {"model.orthonormal": True}

# The recipe without its learning rate: in a table all columns have the same. No norm is what all begin with.
NORM_FREE: Settings = {
    name: value
    for name, value in flat(RECIPES["norm-free"]).items()
    if name not in ("optimizer.rate", "model.norm")
}
AGC: Settings = {"optimizer.agc": NORM_FREE["optimizer.agc"]}

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
    "direct + AGC": {**DIRECT, **AGC},
    "unit + direct": {**DIRECT, **UNIT},
    "unit + direct + AGC": {**DIRECT, **UNIT, **AGC},
    "unit + closed form": {**CLOSED, **UNIT},
    "unit + closed form + AGC": {**CLOSED, **UNIT, **AGC},
    "orthonormal + unit + direct + AGC": {**DIRECT, **UNIT, **ORTHONORMAL, **AGC},
    "orthonormal + unit + closed form + AGC": {**CLOSED, **UNIT, **ORTHONORMAL, **AGC},
    "orthonormal + GN": {**STANDARD, **GROUP_NORM, **ORTHONORMAL},
    "norm-free": {**DIRECT, **NORM_FREE},
    "orthonormal + norm-free": {**DIRECT, **UNIT, **ORTHONORMAL, **NORM_FREE},
    "as it comes": AS_IT_COMES,
    "variance_init": EVERY_LAYER,
    "as it comes + AGC": {**AS_IT_COMES, **AGC},
    "variance_init + AGC": {**EVERY_LAYER, **AGC},
}
"""Name -> settings. "standard" is He's rule, Var[w] = 2 / (K C)."""

REPEATED = ("MCConv", "KPConvN", "SPHConv")
"""The methods that a laptop trains with every seed, at batches of 2; all else once."""

ADDED = ("BN, not in the head", "LSUV", "norm-free")
"""Columns that go beyond the paper's in every table of a classifier; a U-Net has no head."""
ORTHONORMAL_NORM_FREE = "orthonormal + norm-free"
"""One more, where the question is whether orthonormal bases make up for batch norm."""
ADDED_UNET = ("LSUV", "norm-free")
