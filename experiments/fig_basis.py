"""Pictures of the bases in the plane, and of what the estimators make of an uneven sampling.

Above: the first functions of each basis. Below: a smooth function is convolved with a wide Gaussian at each
of a row of queries, from points that get ever denser to the right; Monte Carlo follows the true integral,
Average and Sum follow the density.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from experiments.figures import PALETTE, canvas, save
from experiments.options import Options
from pointvar import PointCloud, ball_query, basis, estimator
from pointvar.geometry import Neighborhood

SIDE, POINTS, RADIUS, SIGMA = 81, 40_000, 0.15, 0.5


def run(options: Options) -> None:
    """Writes the pictures of the bases and of the estimators."""
    _bases(options)
    _estimators(options)


def _bases(options: Options) -> None:
    generator = torch.Generator().manual_seed(0)
    shown: dict[str, basis.Basis] = {
        "Gaussian (PCCNN)": basis.Gaussian(8, 2, generator=generator),
        "linear correlation (KPConv)": basis.LinearCorrelation(8, 2, generator=generator),
        "nearest point (PointwiseCNN)": basis.NearestPoint(8, 2, generator=generator),
        "spherical bins (SPHConv)": basis.SphericalBins(1, 7, 1, 2),
        "MLP (MCConv)": basis.MLP(8, 2, generator=generator),
        "MLP correlation (ConvPoint)": basis.MLPCorrelation(8, 2, generator=generator),
        "dot (FlexConv)": basis.Dot(2),
    }
    axis = torch.linspace(-1, 1, SIDE)
    x, y = torch.meshgrid(axis, axis, indexing="xy")
    offsets = torch.stack([x.flatten(), y.flatten()], 1)
    outside = offsets.norm(dim=1) > 1
    figure, axes = canvas(9, 9, len(shown), 8)
    numbers: dict[str, Any] = {}
    for row, (name, functions) in zip(axes, shown.items(), strict=True):
        with torch.no_grad():
            values = functions(offsets, torch.ones(len(offsets), 1))
        values[outside] = math.nan
        numbers[name] = {"size": functions.size, "largest": float(values.nan_to_num(0).abs().max())}
        for i, panel in enumerate(row):
            panel.set_xticks([])
            panel.set_yticks([])
            panel.axis("off")
            if i < functions.size:
                limit = max(float(values[:, i].nan_to_num(0).abs().max()), 1e-6)
                picture = values[:, i].view(SIDE, SIDE).numpy()
                panel.imshow(picture, origin="lower", cmap="RdBu_r", vmin=-limit, vmax=limit)
        row[0].set_title(name, fontsize=9, loc="left")
    save(options, "fig-basis", figure, numbers)


def _estimators(options: Options) -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(POINTS, 2, generator=generator)
    # x has density 2 x + 0.1, up to a factor: twenty times as many points at the right as at the left.
    points = torch.stack([((0.01 + 4.4 * uniform[:, 0]).sqrt() - 0.1) / 2, uniform[:, 1]], 1)
    queries = torch.stack([torch.linspace(0.2, 0.8, 61), torch.full((61,), 0.5)], 1)
    hood = ball_query(PointCloud(points), PointCloud(queries), RADIUS)
    signal = torch.sin(9 * points[:, 0])
    curves: dict[str, Tensor] = {
        "Monte Carlo": _convolve(estimator.MonteCarlo(0.1), hood, signal),
        "Average": _convolve(estimator.Average(), hood, signal),
        "Sum": _convolve(estimator.Sum(), hood, signal),
        "true integral": _integral(queries),
    }
    figure, (above, below) = canvas(6, 5, 2, 1, sharex=True)
    above.scatter(*points[::8].T, s=0.2, color="0.4")
    above.plot(*queries.T, color=PALETTE["queries"])
    above.set_ylabel("points and queries")
    for name, curve in curves.items():
        # Each to the scale of the integral's, at the middle: only the shape is compared.
        scaled = curve * (curves["true integral"].norm() / curve.norm())
        style = "--" if name.startswith("true") else "-"
        below.plot(queries[:, 0], scaled, style, color=PALETTE[name], label=name)
    below.set_xlabel("x")
    below.set_ylabel("convolved signal, scaled alike")
    below.legend(fontsize=8)
    truth = curves["true integral"]
    errors = {
        n: float((c * (truth.norm() / c.norm()) - truth).norm() / truth.norm()) for n, c in curves.items()
    }
    save(options, "fig-estimators", figure, {"relative_error_of_shape": errors}, of="fig-basis")


def _kernel(offsets: Tensor) -> Tensor:
    return torch.exp(-offsets.square().sum(-1) / (2 * SIGMA**2))


def _convolve(weights: estimator.Estimator, hood: Neighborhood, signal: Tensor) -> Tensor:
    values = weights(hood) * _kernel(hood.relative_positions()) * signal[hood.indices]
    return torch.zeros(hood.queries.num_points).index_add(0, hood.rows, values)


def _integral(queries: Tensor) -> Tensor:
    """The same convolution over the disk itself, by a fine grid."""
    axis = torch.linspace(-1, 1, 401)
    x, y = torch.meshgrid(axis, axis, indexing="xy")
    offsets = torch.stack([x.flatten(), y.flatten()], 1)
    offsets = offsets[offsets.norm(dim=1) < 1]
    values = torch.sin(9 * (queries[:, None, 0] + RADIUS * offsets[None, :, 0])) * _kernel(offsets)
    return values.sum(1) * (2 / 400) ** 2
