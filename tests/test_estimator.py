"""Estimators: which integral they estimate, how random caps change that, and their densities."""

import pytest
import torch

import pointvar as pv
from pointvar import PointConvolution, basis, estimator


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def uneven(count, dim=2, seed=0):
    """Points of the unit cube, about three times as dense on the right as on the left."""
    points = torch.rand(count, dim, generator=seeded(seed), dtype=torch.float64)
    points[:, 0] = (1 + 8 * points[:, 0]).sqrt().sub(1) / 2  # p(x) = (1 + 2 x) / 2
    return pv.PointCloud(points)


def wave(points):
    return torch.stack([torch.ones_like(points[:, 0]), torch.sin(3 * points[:, 0]) + points[:, 1]], dim=1)


def errors_of(make, count, bandwidth):
    """Relative error of the projection at interior queries, the best constant factor allowed."""
    cloud, radius = uneven(count), 0.25
    steps = torch.linspace(0.3, 0.7, 5, dtype=torch.float64)
    queries = pv.PointCloud(torch.cartesian_prod(steps, steps))
    conv = PointConvolution(2, 1, basis.Gaussian(6, 2, generator=seeded()), make(bandwidth)).double()
    estimate = conv.project(wave(cloud.points), pv.ball_query(cloud, queries, radius))
    true = integral(conv.basis, queries.points, radius)
    factor = 1.0 if make is estimator.MonteCarlo else (estimate * true).sum() / estimate.square().sum()
    return float((factor * estimate - true).norm() / true.norm())


def integral(b, queries, radius):
    """The integral over the receptive field, in its units, by the midpoint rule."""
    n = 120
    axis = (2 * torch.arange(n, dtype=torch.float64) + 1) / n - 1
    tau = torch.cartesian_prod(axis, axis)
    tau = tau[tau.norm(dim=1) < 1]
    values = b(tau, torch.full_like(tau[:, :1], radius)) * (2 / n) ** 2
    return torch.stack([(values.T @ wave(x + radius * tau)).flatten() for x in queries])


def test_monte_carlo_converges_to_the_integral_and_the_others_do_not():
    """More points and a smaller bandwidth: only one of the three has no bias left."""
    steps = [(500, 0.5), (2000, 0.3), (8000, 0.15)]
    monte_carlo = [errors_of(estimator.MonteCarlo, *step) for step in steps]
    # The bias falls like h^2, the variance like 1 / (n h^D).
    assert monte_carlo[0] > monte_carlo[1] > monte_carlo[2]
    assert monte_carlo[2] < 0.03
    for other in (estimator.Sum, estimator.Average):
        # Even with the best factor they weigh the dense side too much.
        assert errors_of(lambda bandwidth, other=other: other(), *steps[2]) > 0.08


def test_random_caps_leave_monte_carlo_unbiased():
    """The mean over many random caps is the uncapped estimate, within five standard errors."""
    cloud = uneven(60, 3)
    features = torch.randn(60, 1, generator=seeded(), dtype=torch.float64)
    b = basis.Gaussian(4, generator=seeded())
    full = pv.ball_query(cloud, cloud, 0.6)
    assert int(full.counts.min()) > 6
    caps = [pv.ball_query(cloud, cloud, 0.6, max_neighbors=5, generator=seeded(s)) for s in range(400)]
    share = (5 / full.counts)[:, None]
    for q, expected in [(estimator.MonteCarlo(), 1), (estimator.Average(), 1), (estimator.Sum(), share)]:
        conv = PointConvolution(1, 1, b, q).double()
        runs = torch.stack([conv.project(features, hood) for hood in caps])
        error = (runs.mean(0) - expected * conv.project(features, full)) / (runs.std(0) / 20)
        # 240 numbers: five standard errors are exceeded by chance once in 7,000 times.
        assert error.abs().max() < 5
        assert error.square().mean() == pytest.approx(1, abs=0.5)


def test_what_needs_no_gradient_is_made_once():
    cloud = uneven(20, 3)
    hood = pv.ball_query(cloud, cloud, 0.5)
    moving = pv.ball_query(pv.PointCloud(cloud.points.clone().requires_grad_()), cloud, 0.5)
    for q in (estimator.Sum(), estimator.Average(), estimator.MonteCarlo()):
        assert q(hood) is q(hood)
    assert estimator.MonteCarlo()(hood) is not estimator.MonteCarlo(0.3)(hood)
    weights = estimator.MonteCarlo()(moving)
    assert weights is not estimator.MonteCarlo()(moving)
    assert weights.requires_grad
    torch.testing.assert_close(weights.detach(), estimator.MonteCarlo()(hood))


def test_simple_weights():
    cloud = uneven(40, 3)
    hood = pv.ball_query(cloud, cloud, 0.5, max_neighbors=6, generator=seeded())
    assert torch.equal(estimator.Sum()(hood), torch.ones(hood.num_edges).double())
    total = torch.zeros(40).double().index_add(0, hood.rows, estimator.Average()(hood))
    torch.testing.assert_close(total, torch.ones(40).double())


def test_densities_that_the_neighborhood_carries():
    cloud = uneven(30, 3)
    hood = pv.ball_query(cloud, cloud, 0.5)
    own = estimator.MonteCarlo(0.3)(hood)
    torch.testing.assert_close(estimator.density(hood, 0.3), pv.kernel_density(cloud, 0.15))
    hood.density = 2 * estimator.density(hood, 0.3)
    torch.testing.assert_close(estimator.MonteCarlo(0.3)(hood), own / 2)
    assert torch.equal(hood.to("cpu").density, hood.density)
    assert hood.rebased(cloud, cloud, torch.clone).density is not hood.density


def test_the_bandwidth_follows_each_cloud():
    points = torch.rand(40, 3, generator=seeded())
    both = pv.PointCloud(points, [25, 15])
    hood = pv.ball_query(both, both, [0.2, 0.4])
    expected = pv.kernel_density(both, [0.04, 0.08])
    torch.testing.assert_close(estimator.density(hood, 0.2), expected)
    some = pv.PointCloud(points[:1], [0, 1])  # no queries in the first cloud: its bandwidth is 0.2 of 1
    expected = pv.kernel_density(both, [0.2, 0.06])
    torch.testing.assert_close(estimator.density(pv.ball_query(both, some, [0.3, 0.3])), expected)
    expected = pv.kernel_density(both, 0.06)  # one number is the radius of all, also where nobody asks
    torch.testing.assert_close(estimator.density(pv.ball_query(both, some, 0.3)), expected)
    few, many = (pv.ball_query(both, pv.PointCloud(points[:1].expand(n, 3), [n, 0]), 0.3) for n in (1, 1000))
    assert estimator.density(few) is estimator.density(many)  # the mean of equal numbers is that number
    near = pv.knn(both, both, 5)
    h = [0.2 * float(part.mean()) for part in near.radius.split([25, 15])]
    torch.testing.assert_close(estimator.density(near, 0.2), pv.kernel_density(both, h))


def test_coinciding_neighbors_are_averaged():
    """Their radius is 0, and so is the volume of the receptive field."""
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    same = pv.PointCloud(points, [2, 2])
    hood = pv.knn(same, same, 2)
    assert not hood.radius.any()
    assert estimator.MonteCarlo()(hood).tolist() == [0.5] * 8
    torch.testing.assert_close(estimator.density(hood), pv.kernel_density(same, 0.2))  # as of radius 1
    assert torch.isfinite(estimator.LearnedDensity()(hood)).all()
    mixed = pv.PointCloud(points.double().requires_grad_())
    hood = pv.knn(mixed, mixed, 3)  # two coincide with the query, one does not
    q = estimator.MonteCarlo()(hood)
    q.sum().backward()
    assert torch.isfinite(q).all()
    assert torch.isfinite(mixed.points.grad).all()


def test_learned_density_sees_the_relative_density_alone():
    cloud = uneven(50, 3)
    hood = pv.ball_query(cloud, cloud, 0.5)
    q = estimator.LearnedDensity(generator=seeded()).double()
    assert ((q(hood) > 0) & (q(hood) < 1)).all()
    hood.density = estimator.density(hood, 0.2)
    before = q(hood)
    hood.density = 10 * hood.density
    torch.testing.assert_close(q(hood), before)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_learned_density_starts_as_torchs_linear_layers_do(batch_norm):
    """Uniform between -1 / sqrt(in) and 1 / sqrt(in), from the generator, norms at their start."""
    q = estimator.LearnedDensity(batch_norm=batch_norm, generator=seeded(3))
    numbers = seeded(3)
    maps = [m for m in q.mlp if isinstance(m, torch.nn.Linear)]
    for layer, bound in zip(maps, (1.0, 0.25), strict=True):
        for parameter in (layer.weight, layer.bias):
            expected = bound * (2 * torch.rand(parameter.shape, generator=numbers) - 1)
            torch.testing.assert_close(parameter.detach(), expected)
    norms = [m for m in q.mlp if isinstance(m, torch.nn.BatchNorm1d)]
    assert [m.num_features for m in norms] == ([16, 1] if batch_norm else [])
    start = {name: value.clone() for name, value in q.state_dict().items()}
    cloud = pv.PointCloud(uneven(50, 3).points.float())
    assert q(pv.ball_query(cloud, cloud, 0.5)).shape == (pv.ball_query(cloud, cloud, 0.5).num_edges,)
    torch.nn.init.ones_(maps[0].bias)
    q.reset_parameters(seeded(3))
    torch.testing.assert_close(dict(q.state_dict()), start)


def test_no_queries_and_no_edges():
    cloud = uneven(5)
    nobody = pv.PointCloud(torch.zeros(0, 2, dtype=torch.float64))
    hood = pv.ball_query(cloud, nobody, 0.5)
    for q in (
        estimator.Sum(),
        estimator.Average(),
        estimator.MonteCarlo(),
        estimator.LearnedDensity().double(),
    ):
        assert q(hood).shape == (0,)


def test_errors_and_names():
    for kind in (estimator.MonteCarlo, estimator.LearnedDensity):
        with pytest.raises(ValueError, match="bandwidth must be positive and finite, got 0"):
            kind(0)
    with pytest.raises(TypeError, match="abstract"):
        estimator.Estimator()
    assert repr(estimator.MonteCarlo()) == "MonteCarlo(bandwidth=0.2)"
    default = estimator.LearnedDensity()
    assert default.extra_repr() == "bandwidth=0.2"
    assert not any(isinstance(m, torch.nn.BatchNorm1d) for m in default.modules())


def test_a_hierarchy_can_set_the_bandwidth():
    """Half the Poisson radius of the support's level, whatever the estimator's own fraction."""
    torch.manual_seed(0)
    levels = pv.Hierarchy(pv.PointCloud(torch.rand(300, 3)), [0.1, 0.2], bandwidth=0.5)
    hoods = ((levels.within(1), 0.2), (levels.up(1), 0.2), (levels.down(0), 0.1), (levels.down(-1), 0.1))
    for hood, radius in hoods:
        expected = pv.kernel_density(hood.support, 0.5 * radius)
        assert torch.equal(pv.estimator.density(hood, 0.2), expected)
        moved = hood.rebased(hood.support, hood.queries, torch.clone)
        assert torch.equal(pv.estimator.density(moved, 0.7), expected)
    with pytest.raises(ValueError, match="bandwidth"):
        pv.Hierarchy(levels.input, [0.1], bandwidth=0.0)


@pytest.mark.parametrize("search", ["ball_query", "knn"])
@pytest.mark.parametrize("extent", [2.0**-40, 2.0**40, 1e-15, 1e15])
@pytest.mark.parametrize("kind", [estimator.MonteCarlo, estimator.LearnedDensity])
def test_weights_of_tiny_and_huge_clouds_are_those_of_a_cloud_of_unit_size(kind, extent, search):
    """In float32 neither their densities nor the slopes of these need be numbers."""
    weigh = kind()
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for scale in (1.0, extent):
        leaf = (points * scale).requires_grad_()
        cloud = pv.PointCloud(leaf)
        hood = pv.knn(cloud, cloud, 6) if search == "knn" else pv.ball_query(cloud, cloud, 0.3 * scale)
        weights = weigh(hood)
        (weights * torch.arange(len(weights))).sum().backward()
        found.append((weights, leaf.grad * scale))
    torch.testing.assert_close(*(w for w, _ in found), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(*(g for _, g in found), rtol=1e-2, atol=1e-3 * float(found[0][1].abs().max()))


@pytest.mark.parametrize("extent", [1e-13, 1e13])
def test_a_density_out_of_range_is_refused(extent):
    points = torch.rand(50, 3) * extent
    with pytest.raises(ValueError, match="rescale the cloud, or use float64"):
        pv.kernel_density(pv.PointCloud(points.requires_grad_()), 0.2 * extent)
    assert bool(
        torch.isfinite(pv.kernel_density(pv.PointCloud(points.detach().double()), 0.2 * extent)).all()
    )
