"""Triangle meshes in numpy: solids made of stacked outlines, and points spread evenly over a surface."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]


class Mesh(NamedTuple):
    """Corners ``[V, 3]`` and triangles ``[F, 3]`` that index them, counter-clockwise from outside."""

    vertices: Floats
    faces: NDArray[np.integer]

    def moved(self, offset: ArrayLike) -> Mesh:
        return Mesh(self.vertices + np.asarray(offset), self.faces)

    def scaled(self, factor: ArrayLike) -> Mesh:
        return Mesh(self.vertices * np.asarray(factor), self.faces)


def merge(*meshes: Mesh) -> Mesh:
    """One mesh of several."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    return Mesh(
        np.concatenate([mesh.vertices for mesh in meshes]),
        np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]),
    )


def loft(rings: Floats, closed: bool = False) -> Mesh:
    """The skin over rings of as many points each, ``[R, S, 3]``; closed: the last ring meets the first."""
    count, sides, _ = rings.shape
    lower = np.arange(count if closed else count - 1)[:, None] * sides
    upper = (lower + sides) % (count * sides)
    here = np.arange(sides)
    there = (here + 1) % sides
    first = np.stack([lower + here, lower + there, upper + there], axis=-1)
    second = np.stack([lower + here, upper + there, upper + here], axis=-1)
    return Mesh(rings.reshape(-1, 3), np.concatenate([first, second]).reshape(-1, 3))


def polygon(sides: int) -> Floats:
    """The corners of a regular polygon at distance 1, ``[S, 2]``; a square stands parallel to the axes."""
    angle = 2 * np.pi * (np.arange(sides) + 0.5) / sides
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


ROUND = polygon(40)
SQUARE = polygon(4) / np.sqrt(0.5)  # half-widths of 1


def solid(outline: Floats, profile: ArrayLike) -> Mesh:
    """Copies of an outline ``[S, 2]`` stacked along z; the profile lists (scale, height), bottom first.

    A scale of 0 closes the solid: start and end with it.
    """
    scale, height = np.asarray(profile, dtype=np.float64).T
    flat = scale[:, None, None] * outline
    return loft(np.concatenate([flat, np.broadcast_to(height[:, None, None], (*flat.shape[:2], 1))], axis=2))


def pillar(outline: Floats, bottom: float, top: float, low: float, high: float) -> Mesh:
    """A closed solid between two heights with one scale at the bottom and one at the top."""
    return solid(outline, [(0, low), (bottom, low), (top, high), (0, high)])


def box(size: ArrayLike, centre: ArrayLike = (0, 0, 0)) -> Mesh:
    """An axis-parallel box."""
    return pillar(SQUARE, 1, 1, -1, 1).scaled(np.asarray(size) / 2).moved(centre)


def tube(
    path: Floats, radius: float, up: ArrayLike, closed: bool = False, outline: Floats = ROUND[::4]
) -> Mesh:
    """An outline swept along a path ``[R, 3]`` that is nowhere parallel to ``up``; open ends are capped."""
    step = np.roll(path, -1, 0) - np.roll(path, 1, 0) if closed else np.gradient(path, axis=0)
    side = np.cross(step, np.asarray(up))
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    rise = np.cross(step, side)
    rise /= np.linalg.norm(rise, axis=1, keepdims=True)
    ring = outline[:, :1, None] * side[:, None, None] + outline[:, 1:, None] * rise[:, None, None]
    rings = path[:, None] + radius * ring.reshape(len(path), len(outline), 3)
    if not closed:
        ends = np.broadcast_to(path[[0, -1], None], (2, len(outline), 3))
        rings = np.concatenate([ends[:1], rings, ends[1:]])
    return loft(rings, closed)


def sample_surface(mesh: Mesh, count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Points spread uniformly by area over a mesh and the unit normals of their triangles, ``[N, 3]``."""
    corner = mesh.vertices[mesh.faces]
    edge1, edge2 = corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]
    normal = np.cross(edge1, edge2)
    length = np.linalg.norm(normal, axis=1)
    share = np.cumsum(length)
    if not len(share) or not np.isfinite(share[-1]) or share[-1] <= 0:
        raise ValueError(
            f"a surface needs a finite, positive area; this mesh has {len(mesh.faces)} triangles"
        )
    face = np.searchsorted(share, random.random(count) * share[-1], side="right")
    u, v = random.random((2, count, 1))
    outside = u + v > 1  # the other half of the parallelogram is folded back
    u, v = np.where(outside, 1 - u, u), np.where(outside, 1 - v, v)
    return corner[face, 0] + u * edge1[face] + v * edge2[face], normal[face] / length[face, None]
