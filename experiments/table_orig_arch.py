"""Table orig_arch: the paper's U-Net with batch norm, and the architectures of the methods' own papers.

Of the latter, PointConv's is implemented here; of the others the paper quotes published numbers.
"""

from __future__ import annotations

from experiments.claims import Claim
from experiments.columns import PAPER_METHODS
from experiments.grid import Grid, Grids
from experiments.networks import pointconv_net
from experiments.options import Options
from experiments.scenarios import segmentation

CLAIMS = {
    "the U-Net is at least as good as PointConv's own network": Claim(
        {"network": "U-Net", "method": "PointConv"}, {"network": "original", "method": "PointConv"}
    ),
}


def grids(options: Options) -> Grids:
    yield Grid(
        "table-orig-arch",
        "The same architecture for all methods, and a method's own; batch norm and standard weights",
        [segmentation(options)],
        {
            "batch": (4,),
            "network": ("U-Net", "original"),
            "method": PAPER_METHODS,
            "column": ("BN",),
        },
        keep=lambda cell: cell["network"] == "U-Net" or cell["method"] == "PointConv",
        more=lambda scenario, cell: {} if cell["network"] == "U-Net" else {"model.network": "pointconv"},
        model=lambda config, data, cell, generator: (
            None if cell["network"] == "U-Net" else pointconv_net(config, data, generator, options.preset)
        ),
        rows="network",
        columns="method",
        claims=CLAIMS,
        notes=["Original: PointConv's network; those of the other methods are not implemented here."],
    )
