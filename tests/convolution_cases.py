"""Every basis, every estimator, and small clouds to try them on."""

import torch

import pointvar as pv
from pointvar import PointConvolution, basis, estimator

BASES = {
    "Gaussian": lambda dim: basis.Gaussian(6, dim, generator=seeded()),
    "LinearCorrelation": lambda dim: basis.LinearCorrelation(6, dim, generator=seeded()),
    "NearestPoint": lambda dim: basis.NearestPoint(6, dim, generator=seeded()),
    "SphericalBins": lambda dim: basis.SphericalBins(2, 5, 3, dim),
    "authors' bins": lambda dim: basis.SphericalBins(1, 5, 3, dim, authors_azimuth=True),
    "MLP": lambda dim: basis.MLP(6, dim, generator=seeded()),
    "unscaled MLP": lambda dim: basis.MLP(6, dim, 0.0, scaled=False, radius=0.5, generator=seeded()),
    "MLP with norm": lambda dim: basis.MLP(6, dim, batch_norm=True, generator=seeded()),
    "MLPCorrelation": lambda dim: basis.MLPCorrelation(5, dim, generator=seeded()),
    "Dot": lambda dim: basis.Dot(dim),
    "orthonormal Gaussian": lambda dim: pv.Orthonormal(basis.Gaussian(6, dim, generator=seeded())),
    "orthonormal MLP": lambda dim: pv.Orthonormal(basis.MLP(6, dim, generator=seeded())),
}
ESTIMATORS = {
    "Sum": lambda: estimator.Sum(),
    "Average": lambda: estimator.Average(),
    "MonteCarlo": lambda: estimator.MonteCarlo(0.4),
    "LearnedDensity": lambda: estimator.LearnedDensity(0.4, generator=seeded()),
    "LearnedDensity with norm": lambda: estimator.LearnedDensity(0.4, batch_norm=True, generator=seeded()),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def layer(b, q, dim=3, dtype=torch.float64, **options):
    conv = PointConvolution(3, 2, BASES[b](dim), ESTIMATORS[q](), generator=seeded(1), **options).to(dtype)
    for module in conv.modules():  # statistics that differ from those of a new layer
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.uniform_(-0.5, 0.5, generator=seeded(2))
            module.running_var.uniform_(0.5, 2.0, generator=seeded(3))
    if conv.bias is not None:
        torch.nn.init.normal_(conv.bias, generator=seeded(4))
    return conv.eval()


def two_clouds(dim=3, dtype=torch.float64, cap=None):
    """A pair of small clouds; each query cloud is its own, and one query is far away from all."""
    points = torch.rand(19, dim, generator=seeded(5), dtype=torch.float64).to(dtype)
    queries = torch.rand(7, dim, generator=seeded(6), dtype=torch.float64).to(dtype)
    queries[2] += 10
    support, queries = pv.PointCloud(points, [11, 8]), pv.PointCloud(queries, [3, 4])
    return pv.ball_query(support, queries, 0.55, max_neighbors=cap, generator=seeded(7))


def features_of(hood, channels=3):
    f = torch.randn(hood.support.num_points, channels, generator=seeded(8), dtype=torch.float64)
    return f.to(hood.support.dtype)
