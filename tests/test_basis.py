"""Bases: their values where they are known, their parameters, their sizes in each dimension."""

import math

import pytest
import torch

from pointvar import basis, kernel_points


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def in_the_ball(count=500, dim=3):
    return kernel_points.uniform(count, dim, seeded()).float()


def evaluate(b, offsets, radius=1.0):
    return b(offsets, torch.full_like(offsets[:, :1], radius))


KERNEL_POINT_BASES = [basis.Gaussian, basis.LinearCorrelation, basis.NearestPoint]


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", KERNEL_POINT_BASES)
def test_each_function_peaks_at_its_kernel_point(kind, dim):
    b = kind(7, dim, generator=seeded())
    assert (b.size, b.dim) == (7, dim)
    at_points = evaluate(b, b.points)
    torch.testing.assert_close(at_points.diagonal(), torch.ones(7))
    assert evaluate(b, in_the_ball(dim=dim)).max() <= 1
    assert not list(b.parameters())
    assert "points" in b.state_dict()


def test_widths():
    """With m the distance of the nearest point from the centre, all scaled by 1 / (1 + m)."""
    spacing = kernel_points.spacing(kernel_points.ball(16, 3, seeded()))
    assert basis.Gaussian(16, generator=seeded()).sigma == pytest.approx(0.4 * spacing)
    assert basis.LinearCorrelation(16, generator=seeded()).width == pytest.approx(spacing)
    hat = basis.LinearCorrelation(points=torch.zeros(1, 3), width=0.5)
    offsets = torch.tensor([[0.0, 0.0, 0.0], [0.25, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.9, 0.0]])
    assert evaluate(hat, offsets).flatten().tolist() == [1.0, 0.5, 0.0, 0.0]
    bell = basis.Gaussian(points=torch.zeros(1, 3), sigma=0.5)
    torch.testing.assert_close(evaluate(bell, offsets)[2], torch.tensor([math.exp(-0.5)]))


def test_hats_on_a_line_interpolate():
    """Between two kernel points the two hats add up to 1."""
    b = basis.LinearCorrelation(points=kernel_points.grid(5, 1, margin=1.0))
    between = torch.linspace(float(b.points.min()), float(b.points.max()), 33)[:, None]
    torch.testing.assert_close(evaluate(b, between).sum(1), torch.ones(33))


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    "make", [lambda d: basis.NearestPoint(7, d), lambda d: basis.SphericalBins(2, 5, 3, d)]
)
def test_boxes_are_one_hot(make, dim):
    b = make(dim)
    offsets = in_the_ball(dim=dim)
    values = evaluate(b, offsets)
    assert values.shape == (500, b.size)
    assert values.dtype == offsets.dtype
    assert torch.equal(values.argmax(1), b.index(offsets))
    assert torch.equal(values.sum(1), torch.ones(500))
    assert (values.sum(0) > 0)[1:].all()  # every box is reached


def test_nearest_point_on_a_grid_is_a_box():
    b = basis.NearestPoint(points=kernel_points.grid(27, 3))
    offsets = in_the_ball()
    cell = ((offsets + 1) * 1.5).floor().clamp(0, 2)  # three cells per axis
    torch.testing.assert_close(b.points[b.index(offsets)], (cell - 1) * 2 / 3)


@pytest.mark.parametrize(("dim", "size"), [(1, 5), (2, 11), (3, 31)])
def test_spherical_bins_have_equal_size_in_each_coordinate(dim, size):
    b = basis.SphericalBins(2, 5, 3, dim)
    assert b.size == size
    assert b.index(torch.zeros(1, dim)).tolist() == [0]
    assert b.index(torch.full((1, dim), 5e-5)).tolist() == [0]
    assert b.index(torch.full((1, dim), 2e-4)).tolist() != [0]


def test_spherical_bins_know_up_from_down():
    b = basis.SphericalBins()
    assert b.size == 16
    up, level, down = torch.tensor([[0.1, 0.02, 0.9], [0.9, 0.1, 0.0], [0.1, 0.02, -0.9]])[:, None]
    assert [int(b.index(o)) for o in (up, level, down)] == [1, 2, 3]
    around = torch.tensor([[math.cos(a), math.sin(a), 0.0] for a in torch.arange(0.1, 6.2, 1.25).tolist()])
    assert b.index(around * 0.5).tolist() == [2, 5, 8, 11, 14]


def test_the_authors_azimuth_reaches_two_of_five_bins():
    offsets = in_the_ball()
    ours, theirs = (basis.SphericalBins(authors_azimuth=a).index(offsets) for a in (False, True))
    assert ((ours - 1) // 3).unique().tolist() == [0, 1, 2, 3, 4]
    assert ((theirs - 1) // 3).unique().tolist() == [0, 1]


def test_mlp_sees_scaled_offsets_or_plain_ones():
    offsets = in_the_ball(10)
    scaled, plain = (basis.MLP(5, scaled=s, slope=0.1, generator=seeded()) for s in (True, False))
    expected = torch.nn.functional.leaky_relu(offsets @ scaled.linear.weight.T, 0.1)
    torch.testing.assert_close(evaluate(scaled, offsets, 0.3), expected)
    torch.testing.assert_close(evaluate(plain, offsets, 0.3), 0.3 * expected)


@pytest.mark.parametrize(
    ("options", "variance"),
    [
        ({}, 1 / 3),
        ({"scaled": False}, 1 / 3),
        ({"scaled": False, "radius": 0.1}, 1 / (3 * 0.1**2)),
        ({"scaled": False, "radius": 0.1, "batch_norm": True}, 1 / 3),
    ],
)
def test_the_map_is_drawn_as_the_paper_says(options, variance):
    b = basis.MLP(4000, generator=seeded(), **options)
    # 12,000 draws: the variance is known to 1.3 per cent.
    assert float(b.linear.weight.detach().var()) == pytest.approx(variance, rel=0.06)
    assert not b.linear.bias.any()
    before = b.linear.weight.clone()
    b.reset_parameters(seeded())
    assert torch.equal(b.linear.weight, before)


def test_batch_norm_sits_before_the_relu():
    b = basis.MLP(6, slope=0.0, batch_norm=True, generator=seeded())
    pre = b.norm(b.linear(in_the_ball()))
    torch.testing.assert_close(pre.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(evaluate(b, in_the_ball()), pre.relu())


def test_mlp_correlation_learns_its_points():
    b = basis.MLPCorrelation(5, 2, generator=seeded())
    assert [tuple(p.shape) for p in b.mlp.parameters()] == [(10, 10), (10,), (5, 10), (5,), (5, 5), (5,)]
    evaluate(b, in_the_ball(dim=2)).sum().backward()
    assert b.points.grad.abs().sum() > 0
    twin = basis.MLPCorrelation(5, 2, generator=seeded())
    assert all(torch.equal(p, q) for p, q in zip(b.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_dot(dim):
    b = basis.Dot(dim)
    offsets = in_the_ball(10, dim)
    assert b.size == dim + 1
    assert torch.equal(evaluate(b, offsets), torch.cat([offsets, torch.ones(10, 1)], dim=1))


@pytest.mark.parametrize("kind", KERNEL_POINT_BASES[:2])
def test_the_tip_of_a_function_has_a_finite_gradient(kind):
    b = kind(7, generator=seeded())
    offsets = b.points.clone().requires_grad_()
    evaluate(b, offsets).sum().backward()
    assert torch.isfinite(offsets.grad).all()


@pytest.mark.parametrize("kind", KERNEL_POINT_BASES)
def test_given_points(kind):
    points = kernel_points.grid(27, 3)
    b = kind(points=points)
    assert b.size == 27
    points.zero_()
    assert b.points.any()  # a copy
    with pytest.raises(ValueError, match=r"shape \[K, D\] with D = 1, 2 or 3, got \[27\]"):
        kind(points=points[:, 0])


def test_errors_and_names():
    with pytest.raises(ValueError, match="each coordinate needs a bin, got 1 x 0 x 3"):
        basis.SphericalBins(azimuth=0)
    with pytest.raises(ValueError, match="1, 2 or 3 dimensions, got 4"):
        basis.SphericalBins(dim=4)
    with pytest.raises(ValueError, match="nominal radius must be positive and finite, got 0"):
        basis.MLP(radius=0)
    with pytest.raises(TypeError, match="abstract"):
        basis.Basis()
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"sigma must be positive and finite, got {value}"):
            basis.Gaussian(sigma=value)
        with pytest.raises(ValueError, match=f"width must be positive and finite, got {value}"):
            basis.LinearCorrelation(width=value)
    for kind in (basis.MLP, basis.Dot):
        for dim in (0, 4):
            with pytest.raises(ValueError, match=f"1, 2 or 3 dimensions, got {dim}"):
                kind(dim=dim)
    with pytest.raises(ValueError, match="kernel points must be finite"):
        basis.Gaussian(points=torch.tensor([[0.0, float("nan")]]))
    with pytest.raises(TypeError, match="kernel points must be a tensor"):
        basis.Gaussian(points=[[0.0, 0.0]])
    assert repr(basis.SphericalBins()) == "SphericalBins(1 x 5 x 3 + 1, dim=3)"
    assert repr(basis.LinearCorrelation(5, 2, width=0.5)) == "LinearCorrelation(5, dim=2, width=0.5)"
    assert "slope=0.2, scaled=True" in repr(basis.MLP())
