"""Where the kernel points of a basis stand inside the unit ball, for any number and 1 to 3 dimensions.

Every arrangement is float64, in units of the receptive field: the ball of radius 1 around the query.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor

_STARTS = 4  # arrangements tried; the one of least energy is taken
_GOLDEN = (1 + math.sqrt(5)) / 2


def ball(num_points: int, dim: int = 3, generator: torch.Generator | None = None) -> Tensor:
    r"""One point at the centre, the others spread around it, in a random orientation; ``[K, D]``.

    The others are the vertices of a platonic solid where there is one with K - 1 vertices, and else
    placed by repulsion. With the largest distance from the centre scaled to 1 and m the smallest,
    all are divided by 1 + m: a basis function as wide as the distance to the centre ends on the ball.

    Args:
        num_points: K
        dim: D = 1, 2 or 3.
        generator: fixes the orientation; default: torch's global generator.
    """
    _check(num_points, dim)
    solid = _platonic(num_points - 1) if dim == 3 else None
    points = repulsion(num_points, dim) if solid is None else solid
    points = points / (1 + spacing(points))
    return points @ rotation(dim, generator).T


def repulsion(num_points: int, dim: int = 3) -> Tensor:
    r"""A point at the centre and others that repel it and each other; the farthest at distance 1.

    .. math:: \min_p \; \sum_{i < j} \frac{1}{\|p_i - p_j\|} + \sum_i \|p_i\|^2, \qquad p_0 = 0

    (Thomas et al. 2019, https://arxiv.org/abs/1904.08889, appendix). On a line, where points cannot
    pass each other, they are simply put at equal distances. Computed once per K and D.
    """
    _check(num_points, dim)
    return _repelled(num_points, dim).clone()


def grid(num_points: int, dim: int = 3, margin: float = 0.5) -> Tensor:
    r"""Points of a regular grid along the axes; ``[K, D]``.

    The grid is the smallest with n points per axis that has at least K; where n^D is more than K, the
    K points nearest to the centre are taken, opposite ones together. So 27 points in 3D and 9 in 2D are
    the full grid with 3 points per axis, and 16 in 3D are its centre, its 6 face centres and 9 of
    its 12 edge centres.

    Args:
        num_points: K
        dim: D = 1, 2 or 3.
        margin: from the outermost point to the border of the cube [-1, 1]^D, in units of the grid's
            spacing: 0.5 makes equal boxes that fill the cube; with 1, hats as wide as the spacing
            end at its border.
    """
    _check(num_points, dim)
    n = next(n for n in itertools.count(1) if n**dim >= num_points)
    steps = [2 * i - (n - 1) for i in range(n)]  # integers, so that equal distances are equal

    def near_first(p: tuple[int, ...]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return sum(x * x for x in p), max(p, tuple(-x for x in p)), p

    points = sorted(itertools.product(steps, repeat=dim), key=near_first)[:num_points]
    return torch.tensor(points, dtype=torch.float64) / (n - 1 + 2 * margin)


def uniform(num_points: int, dim: int = 3, generator: torch.Generator | None = None) -> Tensor:
    """Independent points, uniform in the unit ball; ``[K, D]``."""
    _check(num_points, dim)
    direction = torch.randn(num_points, dim, dtype=torch.float64, generator=generator)
    distance = torch.rand(num_points, 1, dtype=torch.float64, generator=generator) ** (1 / dim)
    return direction / direction.norm(dim=1, keepdim=True) * distance


def spacing(points: Tensor) -> float:
    """The length that basis widths are measured in.

    The smallest distance of another point from the one at the centre; without a point at the
    centre, the smallest distance between two points; 1 for a single point.
    """
    points = points.detach().double()
    distance = points.norm(dim=1)
    central = distance < 1e-6
    if len(points) == 1:
        return 1.0
    if bool(central.any()):
        return float(distance[~central].min()) if not bool(central.all()) else 1.0
    return float(torch.pdist(points).min())


def rotation(dim: int, generator: torch.Generator | None = None) -> Tensor:
    """A random rotation of the space, uniform over all; ``[D, D]``."""
    q, r = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))
    q = q * r.diagonal().sign()  # makes the decomposition unique, and so q uniform
    q[:, 0] *= q.det().sign()  # a rotation, not a reflection
    return q


@functools.cache
def _repelled(num_points: int, dim: int) -> Tensor:
    if num_points == 1:
        return torch.zeros(1, dim, dtype=torch.float64)
    if dim == 1:
        right, left = num_points // 2, (num_points - 1) // 2
        steps = sorted(range(-left, right + 1), key=abs)
        return torch.tensor(steps, dtype=torch.float64)[:, None] / right
    generator = torch.Generator().manual_seed(0)
    starts = torch.stack([uniform(num_points - 1, dim, generator) for _ in range(_STARTS)])
    others = _relax(starts)
    best = min(others, key=lambda points: float(_energy(points)))
    return torch.cat([best.new_zeros(1, dim), best / best.norm(dim=1).max()])


def _energy(others: Tensor) -> Tensor:
    distance = others.norm(dim=1)
    return (1 / torch.pdist(others)).sum() + (1 / distance + distance.square()).sum()


def _force(others: Tensor) -> Tensor:
    """Minus the gradient of the energy, for several arrangements at once, ``[S, K - 1, D]``."""
    offset = others[:, :, None] - others[:, None]
    squared = offset.square().sum(3)
    squared.diagonal(dim1=1, dim2=2).fill_(math.inf)  # a point does not repel itself
    from_centre = others / others.norm(dim=2, keepdim=True) ** 3
    return (offset / squared[..., None] ** 1.5).sum(2) + from_centre - 2 * others


def _relax(others: Tensor) -> Tensor:
    """Descends to rest, with Barzilai and Borwein's step lengths, no point moving more than 0.1 at once."""
    force, step = _force(others), torch.full_like(others[:, :1, :1], 1e-2)
    for _ in range(1000):
        move = step * force
        move = move / (10 * move.norm(dim=2, keepdim=True).amax(1, keepdim=True)).clamp(min=1)
        others, before = others + move, force
        force = _force(others)
        if float(force.abs().max()) < 1e-9:
            break
        change = before - force
        curvature = change.square().sum((1, 2), keepdim=True).clamp(min=1e-300)
        step = ((move * change).sum((1, 2), keepdim=True) / curvature).abs().clamp(1e-4, 0.5)
    return others


def _platonic(vertices: int) -> Tensor | None:
    """The centre and the corners of a regular solid, at distance 1; ``None`` if there is no such solid."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)), dtype=torch.float64)
    axes = torch.eye(3, dtype=torch.float64)
    solids = {
        4: signs[signs.prod(1) > 0],
        6: torch.cat([axes, -axes]),
        8: signs,
        12: _rectangles(1, _GOLDEN),
        20: torch.cat([signs, _rectangles(2 / _GOLDEN, 2 * _GOLDEN)]),
    }
    if vertices not in solids:
        return None
    corners = solids[vertices]
    return torch.cat([axes.new_zeros(1, 3), corners / corners.norm(dim=1, keepdim=True)])


def _rectangles(width: float, height: float) -> Tensor:
    """The corners of three equal rectangles at right angles to each other."""
    corners = [[0.0, s * width / 2, t * height / 2] for s, t in itertools.product((-1, 1), repeat=2)]
    flat = torch.tensor(corners, dtype=torch.float64)
    return torch.cat([flat.roll(turn, dims=1) for turn in range(3)])


def _check(num_points: int, dim: int) -> None:
    if num_points < 1:
        raise ValueError(f"a basis needs at least one kernel point, got {num_points}")
    if dim not in (1, 2, 3):
        raise ValueError(f"kernel points exist in 1, 2 or 3 dimensions, got {dim}")
