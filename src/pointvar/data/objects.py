"""Parametric objects, z up: each class is a function that draws proportions and gives a closed mesh."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pointvar.data.mesh import ROUND, SQUARE, Floats, Mesh, box, loft, merge, pillar, polygon, solid, tube

Random = np.random.Generator


def _ball(stretch: float = 0.0) -> Mesh:
    """A sphere, its halves moved apart by a cylinder of twice this height."""
    angle = np.linspace(0, np.pi, 20)
    height = -np.cos(angle) + np.where(angle < np.pi / 2, -stretch, stretch)
    return solid(ROUND, np.stack([np.sin(angle), height], axis=1))


def _gear(random: Random) -> Mesh:
    teeth = int(random.integers(7, 12))
    radius = np.where(np.arange(4 * teeth) % 4 < 2, 1.0, random.uniform(0.75, 0.85))
    return pillar(polygon(4 * teeth) * radius[:, None], 1, 1, 0, random.uniform(0.8, 2.5))


def _circle(radius: float, turns: float = 1.0, rise: float = 0.0, steps: int = 40) -> Floats:
    angle = np.linspace(0, 2 * np.pi * turns, steps, endpoint=turns != 1)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), rise * angle / (2 * np.pi)], axis=1)


def _spring(random: Random) -> Mesh:
    turns, radius = random.uniform(2.5, 5), random.uniform(0.12, 0.2)
    path = _circle(1, turns, rise=random.uniform(2.6, 4) * radius, steps=100)
    return tube(path, radius, up=(0, 0, 1), outline=ROUND[::5])


def _pipe(random: Random) -> Mesh:
    height, inner = random.uniform(0.6, 2), random.uniform(0.6, 0.8)
    rings = [(1, 0), (1, height), (inner, height), (inner, 0)]
    return loft(np.stack([np.c_[ROUND * s, np.full(len(ROUND), z)] for s, z in rings]), closed=True)


def _upright(outline: Floats, width: float) -> Mesh:
    """An outline in the xz plane, star-shaped about the origin, drawn out along y."""
    mesh = pillar(outline, 1, 1, -width / 2, width / 2)
    return Mesh(mesh.vertices[:, [0, 2, 1]] * [1, -1, 1], mesh.faces)


def _stairs(random: Random) -> Mesh:
    steps = int(random.integers(4, 7))
    level = np.arange(steps, 0, -1) / steps
    edge = np.repeat(level - 1 - 1 / steps, 2), np.stack([level, level - 1 / steps], 1).reshape(-1)
    return _upright(np.concatenate([[(0, 0), (0, 1)], np.stack(edge, 1)]), random.uniform(0.6, 2))


def _legs(random: Random, x: float, y: float, height: float) -> Mesh:
    thick = random.uniform(0.05, 0.1)
    leg = pillar(SQUARE, thick, thick, 0, height)
    return merge(*(leg.moved((a * (x - thick), b * (y - thick), 0)) for a in (-1, 1) for b in (-1, 1)))


def _table(random: Random) -> Mesh:
    x, y, height = random.uniform(0.6, 1.2), random.uniform(0.5, 0.8), random.uniform(0.6, 1.2)
    top = box((2 * x, 2 * y, 0.1), (0, 0, height))
    return merge(top, _legs(random, x, y, height))


def _stool(random: Random) -> Mesh:
    radius, height = random.uniform(0.6, 1.0), random.uniform(0.6, 1.2)
    top = pillar(ROUND, radius, radius, height - 0.05, height + 0.05)
    return merge(top, _legs(random, 0.75 * radius, 0.75 * radius, height))


def _chair(random: Random) -> Mesh:
    x, y, height = random.uniform(0.45, 0.7), random.uniform(0.45, 0.6), random.uniform(0.7, 1.0)
    seat = box((2 * x, 2 * y, 0.1), (0, 0, height))
    tall = random.uniform(0.6, 1.0)
    back = box((0.1, 2 * y, tall), (x - 0.05, 0, height + tall / 2))
    return merge(seat, back, _legs(random, x, y, height))


def _armchair(random: Random) -> Mesh:
    x, y, height = random.uniform(0.5, 0.7), random.uniform(0.5, 0.8), random.uniform(0.4, 0.6)
    seat, tall, arm = box((2 * x, 2 * y, height), (0, 0, height / 2)), random.uniform(0.5, 0.8), 0.3
    back = box((0.25, 2 * y, height + tall), (x, 0, (height + tall) / 2))
    arms = [box((2 * x, 0.2, height + arm), (0, s * y, (height + arm) / 2)) for s in (-1, 1)]
    return merge(seat, back, *arms)


def _shelf(random: Random) -> Mesh:
    x, y, height, thick = random.uniform(0.2, 0.4), random.uniform(0.5, 0.9), random.uniform(1.2, 2), 0.06
    sides = [box((2 * x, thick, height), (0, s * y, height / 2)) for s in (-1, 1)]
    boards = np.linspace(thick / 2, height - thick / 2, int(random.integers(3, 6)))
    return merge(*sides, *(box((2 * x, 2 * y - thick, thick), (0, 0, z)) for z in boards))


def _lamp(random: Random) -> Mesh:
    height, wide, narrow = random.uniform(1.2, 2.2), random.uniform(0.4, 0.7), random.uniform(0.15, 0.4)
    shade = pillar(ROUND, wide, narrow, height - 0.5, height)
    foot, rod = pillar(ROUND, 0.35, 0.35, 0, 0.08), pillar(ROUND[::4], 0.05, 0.05, 0.08, height - 0.5)
    return merge(shade, foot, rod)


def _vase(random: Random) -> Mesh:
    belly, neck = random.uniform(0.6, 1.0), random.uniform(0.2, 0.45)
    height = np.linspace(0, 1, 12)
    bulge = neck + (belly - neck) * np.sin(np.pi * height**0.7) ** 2 + 0.15 * height**6
    return solid(ROUND, [(0, 0), *zip(bulge, 2 * height, strict=True), (0, 2)])


def _bottle(random: Random) -> Mesh:
    body, neck = random.uniform(0.5, 0.9), random.uniform(0.15, 0.3)
    shoulder = random.uniform(0.9, 1.3)
    return solid(ROUND, [(0, 0), (body, 0), (body, shoulder), (neck, shoulder + 0.3), (neck, 2), (0, 2)])


def _bowl(random: Random) -> Mesh:
    angle = np.linspace(0.15, random.uniform(1.2, 1.6), 10)
    outer = np.stack([np.sin(angle), 1 - np.cos(angle)], axis=1)
    inner = outer[::-1] * 0.9 + (0, 0.1)
    return solid(ROUND, [(0, outer[0, 1]), *outer, *inner, (0, inner[-1, 1])])


def _mug(random: Random) -> Mesh:
    height = random.uniform(1.4, 2.4)
    cup = solid(ROUND, [(0, 0), (1, 0), (1, height), (0.88, height), (0.88, 0.12), (0, 0.12)])
    angle = np.linspace(-1.4, 1.4, 16)
    reach = random.uniform(0.4, 0.7)
    bow = np.stack([0.95 + reach * np.cos(angle), 0 * angle, height / 2 * (1 + 0.6 * np.sin(angle))], axis=1)
    return merge(cup, tube(bow, 0.12, up=(0, 1, 0)))


OBJECTS: dict[str, Callable[[Random], Mesh]] = {
    "ellipsoid": lambda random: _ball(),
    "capsule": lambda random: _ball(random.uniform(0.3, 1.2)),
    "octahedron": lambda random: solid(SQUARE, [(0, -1), (1, random.uniform(-0.3, 0.3)), (0, 1)]),
    "box": lambda random: box(random.uniform(0.6, 1.6, 3)),
    "cylinder": lambda random: pillar(ROUND, 1, 1, 0, random.uniform(0.8, 2.5)),
    "hexagonal prism": lambda random: pillar(polygon(6), 1, 1, 0, random.uniform(0.8, 2.5)),
    "gear": _gear,
    "cone": lambda random: pillar(ROUND, 1, random.uniform(0, 0.3), 0, random.uniform(1.0, 2.5)),
    "pyramid": lambda random: pillar(SQUARE, 1, random.uniform(0, 0.3), 0, random.uniform(1.0, 2.5)),
    "torus": lambda random: tube(_circle(1), random.uniform(0.2, 0.4), (0, 0, 1), closed=True),
    "ring": lambda random: tube(_circle(1), random.uniform(0.15, 0.35), (0, 0, 1), True, SQUARE),
    "spring": _spring,
    "pipe": _pipe,
    "wedge": lambda random: _upright(np.array([(-1.0, 0), (0, 0), (0, 1)]), random.uniform(0.6, 2)),
    "stairs": _stairs,
    "table": _table,
    "stool": _stool,
    "chair": _chair,
    "armchair": _armchair,
    "shelf": _shelf,
    "lamp": _lamp,
    "vase": _vase,
    "bottle": _bottle,
    "bowl": _bowl,
    "mug": _mug,
}
