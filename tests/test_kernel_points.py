"""Kernel points: where they stand, that they are spread out, and that a generator fixes them."""

import pytest
import torch

from pointvar import kernel_points


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16, 21])
def test_ball(k, dim):
    points = kernel_points.ball(k, dim, seeded())
    assert points.shape == (k, dim)
    assert points.dtype == torch.float64
    assert not points[0].any()
    if k > 1:
        distance = points.norm(dim=1)[1:]
        # The farthest point at 1 / (1 + m), the nearest at m / (1 + m).
        assert float(distance.max() + distance.min()) == pytest.approx(1)
        assert kernel_points.spacing(points) == pytest.approx(float(distance.min()))
        assert torch.pdist(points).min() > 0.2 / k


def test_the_generator_turns_the_points():
    one, same, other = (kernel_points.ball(16, 3, seeded(s)) for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    torch.testing.assert_close(torch.pdist(one), torch.pdist(other))
    torch.manual_seed(5)
    default = kernel_points.ball(16)
    torch.manual_seed(5)
    assert torch.equal(default, kernel_points.ball(16))


def test_repulsion_is_computed_once_and_cannot_be_spoilt():
    kernel_points._repelled.cache_clear()
    first = kernel_points.repulsion(7, 2)
    again = first.clone()
    first.zero_()
    assert torch.equal(kernel_points.repulsion(7, 2), again)
    assert kernel_points._repelled.cache_info().misses == 1


@pytest.mark.parametrize(("k", "dim"), [(6, 2), (16, 2), (7, 3), (16, 3)])
def test_repulsion_is_at_rest(k, dim):
    """Scaled to any size, no point wants to move sideways: forces are along the points."""
    others = kernel_points.repulsion(k, dim)[1:]
    unit = others / others.norm(dim=1, keepdim=True)
    force = kernel_points._force(others[None])[0]
    sideways = force - (force * unit).sum(1, keepdim=True) * unit
    # The descent ends at forces of 1e-9, or after 1000 steps in a flat valley.
    assert sideways.norm(dim=1).max() < 1e-2 * force.norm(dim=1).max()


def test_repulsion_finds_the_known_arrangements():
    """Hexagon, octahedron and icosahedron are the best of their kind."""
    for k, dim, near in [(6, 2, 1.0), (6, 3, 2**0.5), (12, 3, 1.0514622)]:
        others = kernel_points.repulsion(k + 1, dim)[1:]
        torch.testing.assert_close(others.norm(dim=1), torch.ones(k).double(), rtol=1e-6, atol=0)
        assert float(torch.pdist(others).min()) == pytest.approx(near, rel=1e-5)


@pytest.mark.parametrize(("vertices", "neighbors"), [(4, 3), (6, 4), (8, 3), (12, 5), (20, 3)])
def test_platonic_solids(vertices, neighbors):
    """All corners at one distance from the centre, each with the same number of nearest others."""
    points = kernel_points.ball(vertices + 1, 3, seeded())
    corners = points[1:]
    torch.testing.assert_close(corners.norm(dim=1), torch.full((vertices,), 0.5).double())
    distance = torch.cdist(corners, corners).fill_diagonal_(9)
    nearest = (distance < distance.min() * (1 + 1e-6)).sum(1)
    assert nearest.tolist() == [neighbors] * vertices


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_grid(dim):
    """3 points per axis: boxes of equal size, or hats that end at the border."""
    steps = torch.tensor([-2 / 3, 0, 2 / 3], dtype=torch.float64)
    full = torch.cartesian_prod(*[steps] * dim).view(-1, dim)
    boxes = kernel_points.grid(3**dim, dim)
    assert sorted(boxes.tolist()) == sorted(full.tolist())
    assert not boxes[0].any()
    hats = kernel_points.grid(3**dim, dim, margin=1.0)
    torch.testing.assert_close(hats, boxes * 0.75)
    assert float(hats.max()) + kernel_points.spacing(hats) == pytest.approx(1)


def test_grid_of_any_number():
    sixteen = kernel_points.grid(16, 3) * 1.5
    assert sorted(sixteen.abs().sum(1).tolist()) == [0.0] + [1.0] * 6 + [2.0] * 9
    assert len({tuple(p) for p in sixteen.tolist()}) == 16
    assert kernel_points.grid(4, 2).abs().unique().tolist() == [0.5]
    assert kernel_points.spacing(kernel_points.grid(4, 2)) == pytest.approx(1.0)
    assert kernel_points.grid(1, 3).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_uniform(dim):
    points = kernel_points.uniform(4000, dim, seeded())
    share = (points.norm(dim=1) < 0.5 ** (1 / dim)).double().mean()  # half of the volume
    assert float(share) == pytest.approx(0.5, abs=0.04)  # five standard errors
    assert points.norm(dim=1).max() <= 1
    assert points.mean(0).abs().max() < 0.06


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_rotation(dim):
    for seed in range(8):  # half of them would be reflections
        turn = kernel_points.rotation(dim, seeded(seed))
        torch.testing.assert_close(turn @ turn.T, torch.eye(dim).double())
        assert float(turn.det()) == pytest.approx(1)


def test_errors():
    for make in (kernel_points.ball, kernel_points.repulsion, kernel_points.grid, kernel_points.uniform):
        with pytest.raises(ValueError, match="at least one kernel point, got 0"):
            make(0, 3)
        with pytest.raises(ValueError, match="1, 2 or 3 dimensions, got 4"):
            make(5, 4)
