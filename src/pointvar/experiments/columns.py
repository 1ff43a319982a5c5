"""The columns of the tables: how a network is normalised, initialised and clipped. Nothing else differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
"""Sections of a training configuration, as in a YAML file."""

PAPER_METHODS = ("PCCNN", "KPConvN", "MCConv", "PointConv", "SPHConv")
"""The methods of the paper's tables; its "KPConv" is KPConvN, except in table kpconv_abla."""

STANDARD: Settings = {"init": {"method": "standard"}}
DIRECT: Settings = {"init": {"method": "direct"}}
CLOSED: Settings = {"init": {"method": "closed"}}
UNIT: Settings = {"unit_response": True}
AGC: Settings = {"optimizer": {"agc": 0.05}}
ORTHONORMAL: Settings = {"orthonormal": True}
COLUMNS: dict[str, Settings] = {
    "direct": DIRECT,
    "standard": STANDARD,
    "Xavier": {"init": {"method": "xavier"}},
    "LSUV": {"init": {"method": "lsuv"}},
    "transfer": {"init": {"method": "transfer"}},  # from which table, the scenario says
    "GN": {**STANDARD, "model": {"norm": "group"}},
    "BN": {**STANDARD, "model": {"norm": "batch"}},
    "BN, not in the head": {**STANDARD, "model": {"norm": "batch", "head_norm": "none"}},
    "direct + BN, not in the head": {**DIRECT, "model": {"norm": "batch", "head_norm": "none"}},
    "direct + AGC": {**DIRECT, **AGC},
    "unit + direct": {**DIRECT, "model": UNIT},
    "unit + direct + AGC": {**DIRECT, "model": UNIT, **AGC},
    "unit + closed form": {**CLOSED, "model": UNIT},
    "unit + closed form + AGC": {**CLOSED, "model": UNIT, **AGC},
    "orthonormal + unit + direct + AGC": {**DIRECT, "model": {**UNIT, **ORTHONORMAL}, **AGC},
    "orthonormal + unit + closed form + AGC": {**CLOSED, "model": {**UNIT, **ORTHONORMAL}, **AGC},
    "orthonormal + GN": {**STANDARD, "model": {"norm": "group", **ORTHONORMAL}},
    # The recipe of this name has a higher learning rate; in a table all columns have the same.
    "norm-free": {**DIRECT, "model": UNIT, **AGC},
    "orthonormal + norm-free": {**DIRECT, "model": {**UNIT, **ORTHONORMAL}, **AGC},
    "as it comes": {"init": {"method": "none"}},
    "variance_init": {"init": {"method": "direct", "layers": "all"}},
    "as it comes + AGC": {"init": {"method": "none"}, **AGC},
    "variance_init + AGC": {"init": {"method": "direct", "layers": "all"}, **AGC},
}
"""Name -> settings. "standard" is He's rule, Var[w] = 2 / (K C)."""

REPEATED = ("MCConv", "KPConvN", "SPHConv")
"""The methods that a laptop trains with every seed, at batches of 2; all else once."""

ADDED = ("BN, not in the head", "LSUV", "norm-free")
"""Columns that go beyond the paper's in every table of a classifier; a U-Net has no head."""
ORTHONORMAL_NORM_FREE = "orthonormal + norm-free"
"""One more, where the question is whether orthonormal bases make up for batch norm."""
ADDED_UNET = ("LSUV", "norm-free")
