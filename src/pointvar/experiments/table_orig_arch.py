"""Table orig_arch: the paper's U-Net with batch norm, and the architectures of the methods' own papers.

Of the latter, PointConv's is implemented here; of the others the paper quotes published numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from pointvar.experiments.claims import Claim, numbers
from pointvar.experiments.columns import PAPER_METHODS
from pointvar.experiments.grid import Table, repeated
from pointvar.experiments.networks import pointconv_net
from pointvar.experiments.options import Options
from pointvar.experiments.scenarios import segmentation

SEEDS = 3
PAPER = numbers(
    [{"method": m} for m in PAPER_METHODS],
    {"U-Net": (65.7, 66.0, 66.1, 64.2, 59.5), "original": (None, 69.2, 63.3, 61.0, 61.0)},
    axis="network",
)
CLAIMS = [
    Claim(
        "the U-Net is at least as good as PointConv's own network",
        {"network": "U-Net", "method": "PointConv"},
        {"network": "original", "method": "PointConv"},
    ),
]


def tables(options: Options) -> Iterator[Table]:
    yield Table(
        "table-orig-arch",
        "The same architecture for all methods, and a method's own; batch norm and standard weights",
        [segmentation(options)],
        {
            "batch": (4,),
            "network": ("U-Net", "original"),
            "method": PAPER_METHODS,
            "column": ("BN",),
        },
        SEEDS,
        repeat=repeated(options),
        keep=lambda cell: cell["network"] == "U-Net" or cell["method"] == "PointConv",
        settings=lambda scenario, cell: (
            {} if cell["network"] == "U-Net" else {"model": {"network": "pointconv"}}
        ),
        model=lambda config, data, cell, generator: (
            None if cell["network"] == "U-Net" else pointconv_net(config, data, generator, options.preset)
        ),
        rows="network",
        columns="method",
        paper=PAPER,
        paper_data="ScanNet",
        claims=CLAIMS,
        notes=["Original: PointConv's network; those of the other methods are not implemented here."],
    )
