"""Bases that the native kernels evaluate give what their ``forward`` gives, and the same gradients."""

import pytest
import torch

import pointvar as pv
from pointvar.ops import backends, native

pytestmark = pytest.mark.skipif(not native.available, reason="the native module is not in use")

BASES = {
    "gaussian": lambda dim: pv.basis.Gaussian(7, dim),
    "linear": lambda dim: pv.basis.LinearCorrelation(7, dim, width=0.9),
    "nearest": lambda dim: pv.basis.NearestPoint(7, dim),
    "spherical": lambda dim: pv.basis.SphericalBins(2, 3, 2, dim),
    "mlp": lambda dim: pv.basis.MLP(7, dim),
    "mlp, unscaled": lambda dim: pv.basis.MLP(7, dim, slope=0.0, scaled=False, radius=0.4),
    "dot": lambda dim: pv.basis.Dot(dim),
}


def run(conv, features, support, queries, radius):
    """The output, its gradients, and Z."""
    hood = pv.ball_query(pv.PointCloud(support), pv.PointCloud(queries), radius)
    inputs = [t for t in (features, support, queries, *conv.parameters()) if t.requires_grad]
    out = conv(features, hood)
    weights = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    grads = torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)
    zeros = (torch.zeros_like(t) if g is None else g for t, g in zip(inputs, grads, strict=True))
    return [out.detach(), *zeros, conv.second_moment(features, hood)]


@pytest.mark.parametrize("positions", [False, True], ids=["fixed", "moving"])
@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("estimator", ["Sum", "LearnedDensity"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("basis", BASES)
def test_equals_plain_torch(basis, dim, estimator, unit, positions, monkeypatch):
    torch.manual_seed(dim)
    channels = 11  # whole vectors and a rest
    conv = pv.PointConvolution(
        channels, 6, BASES[basis](dim), getattr(pv.estimator, estimator)(), unit_response=unit
    ).double()
    support, queries = torch.rand(40, dim).double(), torch.rand(15, dim).double()
    support.requires_grad_(positions)
    queries.requires_grad_(positions)
    features = torch.randn(40, channels).double().requires_grad_()
    assert conv.basis.native(support, support[:, :1]) is not None
    fused = run(conv, features, support, queries, 0.4)
    monkeypatch.setattr(backends, "BACKENDS", {})
    plain = run(conv, features, support, queries, 0.4)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()) + 1e-12)
