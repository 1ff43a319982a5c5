"""Furnished rooms seen by a laser scanner: scenes to segment, made on the spot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pointvar.data.base import tensor
from pointvar.data.furniture import CLASSES, Random, Room
from pointvar.data.mesh import Floats
from pointvar.data.sample import Sample
from pointvar.data.synthetic import Synthetic, made

Integers = NDArray[np.int64]


@dataclass(eq=False)
class Rooms(Synthetic):
    """Scans of furnished rooms to segment: 12 classes, colours as features, in metres, up is z.

    Rays leave two scanner positions evenly in all directions and end where they first hit: near surfaces are
    dense, far and slanted ones sparse (density falls with the squared distance), and what lies behind is
    missing. The noise is that of the measured distance along the ray.
    """

    task = "segmentation"
    num_points: int = 30_000
    noise: float = 0.005
    floor: tuple[float, float] = (3.5, 8.0)
    """Smallest and largest length of a side of a room, in metres."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.floor[0] <= self.floor[1]:
            raise ValueError(f"the sides of a room need 2 <= smallest <= largest, got {self.floor}")
        self.classes, self.num_features = list(CLASSES), 3

    def make(self, index: int, random: Random) -> Sample:
        room = Room(random, random.uniform(*self.floor, 2), random.uniform(2.4, 3.2))
        room.furnish()
        points, surface = _scan(room, self.num_points, self.noise, random)
        colors = np.array(room.colors)[surface] + random.normal(size=(self.num_points, 1)) * 0.04
        colors += random.normal(size=(self.num_points, 3)) * 0.02
        label = torch.from_numpy(np.array(room.labels)[surface])
        return Sample(tensor(points), tensor(colors.clip(0, 1)), label, f"room_{self.split}_{index}")


def from_settings(settings: Any, split: str) -> Rooms:
    size = made(settings, split, {"train": 50, "test": 10})
    return Rooms(size, split, settings.num_points or 30_000)


def _scan(room: Room, count: int, noise: float, random: Random) -> tuple[Floats, Integers]:
    """Points in random order, and the index of the surface of the room that each lies on."""
    points, surfaces = [], []
    for rays in (count - count // 2, count // 2):
        origin = np.array([*room.free_spot(), random.uniform(1.3, 1.8)], dtype=np.float32)
        direction = random.normal(size=(rays, 3)).astype(np.float32)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        direction[np.abs(direction) < 1e-9] = 1e-9
        distance, surface = _cast(room, origin, direction)
        distance = distance + random.normal(size=rays) * noise
        points.append(origin + distance[:, None] * direction)
        surfaces.append(surface)
    order = random.permutation(count)
    return np.concatenate(points)[order], np.concatenate(surfaces)[order]


def _cast(room: Room, origin: Floats, direction: Floats) -> tuple[Floats, Integers]:
    """Distance to the first surface along each ray, and its index."""
    size = np.array([*room.sides, room.height], dtype=np.float32)
    planes = (np.where(direction > 0, size, 0) - origin) / direction
    nearest = planes.min(1)
    surface = np.where(planes.argmin(1) < 2, 2, np.where(direction[:, 2] < 0, 0, 1))
    for index, (centre, half, turn) in enumerate(room.boxes, start=3):
        offset = (centre - origin).astype(np.float32)
        far, reach = np.linalg.norm(offset), np.linalg.norm(half)
        rays = np.arange(len(direction))
        if far > reach:  # only rays in the cone about the sphere around the box can hit it
            rays = np.flatnonzero(direction @ (offset / far) > np.sqrt(1 - (reach / far) ** 2))
        cosine, sine = np.cos(turn), np.sin(turn)
        frame = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]], dtype=np.float32)
        local = direction[rays] @ frame
        local[np.abs(local) < 1e-9] = 1e-9
        middle, width = (offset @ frame) / local, half.astype(np.float32) / np.abs(local)
        enter, leave = (middle - width).max(1), (middle + width).min(1)
        hit = (enter <= leave) & (enter > 0) & (enter < nearest[rays])
        nearest[rays[hit]], surface[rays[hit]] = enter[hit], index
    return nearest, surface
