"""How many of its K functions a basis really has: overlapping ones see nearly the same of a neighbourhood.

The effective rank is (tr C)^2 / tr(C^2) of the K x K matrix C = E[b b^T] over the offsets of neighbourhoods:
K for functions that are orthogonal and of equal size, 1 where all are multiples of one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.figures import PALETTE, canvas, save, surface_clouds
from experiments.options import Options
from pointvar.methods import METHODS

CLOUDS, SEEDS = 8, 3


def run(options: Options) -> None:
    """Writes the effective rank of the basis of each method, as it is before training."""
    clouds = surface_clouds(options, CLOUDS)
    _, hood = clouds.packed(0, CLOUDS)
    radius = hood.radius[hood.rows, None]
    ranks: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for method, make in METHODS.items():
        layers = [make(1, 1, generator=torch.Generator().manual_seed(seed)) for seed in range(SEEDS)]
        with torch.no_grad():
            ranks[method] = [
                effective_rank(layer.basis(hood.relative_positions(), radius)) for layer in layers
            ]
        sizes[method] = layers[0].basis.size
    mean = {method: sum(values) / len(values) for method, values in ranks.items()}
    order = sorted(mean, key=mean.__getitem__)
    figure, axes = canvas(6, 3)
    axes.barh(order, [mean[m] for m in order], color=PALETTE["direct"])
    for place, method in enumerate(order):
        text = f"{mean[method]:.1f} of {sizes[method]}"
        axes.text(mean[method] + 0.1, place, text, va="center", fontsize=8)
    axes.set_xlabel("effective rank of the basis")
    axes.set_xlim(0, 16)
    numbers = {"clouds": clouds.name, "mean": mean, "ranks": ranks, "sizes": sizes}
    save(options, "fig-rank", figure, numbers)


def effective_rank(values: Tensor) -> float:
    """Of functions that have these values, ``[E, K]``."""
    values = values.double()
    eigenvalues = torch.linalg.eigvalsh(values.T @ values)
    return float(eigenvalues.sum().square() / eigenvalues.square().sum())
