"""What centred draws are worth in ``norm_free`` on public networks, and what becomes of residual branches."""

from __future__ import annotations

from dataclasses import replace

from experiments.claims import Claim
from experiments.grid import Grids
from experiments.options import Options
from experiments.table_any_network import BRANCHES, NORM_FREE, OWN, table

RATE = 0.0003
"""That of ``norm_free``'s report, as a user gets it."""
RESIDUAL = ("PointNeXt", "RandLA-Net", "Point Transformer")
"""Networks with branches that are added to a stream."""
CLAIMS = {
    f"norm_free is at least as good as {column}, less 2 points, for most networks": Claim(
        "norm_free", column, margin=-0.02, most=True
    )
    for column in NORM_FREE
    if column != "norm_free"
}


def grids(options: Options) -> Grids:
    whole = table(options)
    yield replace(
        whole,
        name="table-any-parts",
        title="norm_free on public networks, without centring and with other residual branches",
        axes={**whole.axes, "batch": (2,), "column": tuple(NORM_FREE)},
        seeds=1,
        keep=lambda cell: cell["column"] not in BRANCHES or cell["network"] in RESIDUAL,
        more=lambda scenario, cell: {**whole.more(scenario, cell), "optimizer.rate": RATE},
        by_column=dict.fromkeys(NORM_FREE, OWN),
        claims=CLAIMS,
        notes=[
            "Networks and data are those of table-any-network.",
            "All columns have the rate that norm_free reports.",
            "Branches: each gets the target by itself (norm_free), all share it, or all begin at 0.",
        ],
    )
