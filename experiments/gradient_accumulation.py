"""Gradients of four large clouds, seen one at a time: a virtual batch does not help batch norm."""

from __future__ import annotations

from experiments.claims import Claim
from experiments.grid import Grid, Grids
from experiments.options import Options
from experiments.scenarios import segmentation

CLAIMS = {
    "batch norm still fails at a virtual batch of 4: direct with no accumulation is 10 points ahead": Claim(
        {"accumulate": 1, "column": "direct"}, {"accumulate": 4, "column": "BN"}, margin=0.1
    ),
    "at a virtual batch of 4 direct with accumulation is 10 points ahead of batch norm": Claim(
        "direct", "BN", {"accumulate": 4}, margin=0.1
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "gradient-accumulation",
        "One large cloud at a time, gradients of one or of four",
        [segmentation(options)],
        {
            "accumulate": (4, 1),
            "batch": (1,),
            "method": ("KPConvN", "MCConv"),
            "column": ("BN", "direct", "LSUV"),
        },
        more=lambda scenario, cell: {"optimizer.accumulate": cell["accumulate"]},
        claims=CLAIMS,
    )
