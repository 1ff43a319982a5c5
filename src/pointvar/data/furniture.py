"""Rooms as boxes: walls, doors and windows, and furniture where there is space for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pointvar.data.mesh import Floats

CLASSES = [
    "floor", "ceiling", "wall", "door", "window", "table", "chair", "sofa", "bed", "shelf", "lamp", "clutter",
]  # fmt: skip
Random = np.random.Generator
Triple = Sequence[float] | Floats
Part = tuple[Triple, Triple]  # centre and size of a box in the frame of a piece: front along x, floor at 0


class Pose(NamedTuple):
    x: float
    y: float
    turn: float


@dataclass
class Room:
    """A room from 0 to ``sides`` and ``height``, with boxes in it.

    ``labels`` and ``colors`` begin with floor, ceiling and walls; those of the boxes follow.
    """

    random: Random
    sides: Floats
    height: float
    boxes: list[tuple[Floats, Floats, float]] = field(default_factory=list)
    """Centre, half size and turn about z of each box."""
    labels: list[int] = field(default_factory=lambda: [0, 1, 2])
    colors: list[Floats] = field(default_factory=list)
    taken: list[tuple[Floats, Floats]] = field(default_factory=list)
    """Centre and half size of the floor under each piece of furniture."""

    def furnish(self) -> None:
        self.colors = [self.random.uniform(0.2, 0.6, 3), np.full(3, 0.92), self.random.uniform(0.6, 0.95, 3)]
        self._door_and_windows()
        area = float(self.sides.prod())
        for furnish, chance in (
            (self._bed, 0.5), (self._sofa, 0.6), (self._shelf, 0.8), (self._shelf, 0.5), (self._table, 0.95),
            (self._table, 0.05 * (area - 15)), (self._lamp, 0.9), (self._lamp, 0.4), (self._chair, 0.6),
        ):  # fmt: skip
            if self.random.random() < chance:
                furnish()
        for _ in range(int(self.random.integers(2, 6))):
            self._clutter()

    def free_spot(self) -> Floats:
        """A place on the floor that is not in a piece of furniture, if one is found."""
        for _ in range(50):
            spot = self.random.uniform(0.5, self.sides - 0.5)
            if all((np.abs(spot - other) > size + 0.2).any() for other, size in self.taken):
                break
        return spot

    def _put(self, name: str, color: Floats, where: Pose, *parts: Part, turn: float = 0.0) -> None:
        """Adds the boxes of a piece of furniture that have one class and one colour."""
        cosine, sine = np.cos(where.turn), np.sin(where.turn)
        for (x, y, z), size in parts:
            centre = np.array([where.x + cosine * x - sine * y, where.y + sine * x + cosine * y, z])
            self.boxes.append((centre, np.array(size) / 2, where.turn + turn))
            self.labels.append(CLASSES.index(name))
            self.colors.append(color)

    def _door_and_windows(self) -> None:
        """A door in the first wall and perhaps windows in the others, a little in front of the wall."""
        for side in range(4):
            name, wide, low, tall, color = "door", 0.9, 0.0, 2.0, self.random.uniform(0.3, 0.9, 3)
            if side:
                if self.random.random() < 0.5:
                    continue
                name, wide, low, tall = "window", self.random.uniform(0.8, 1.6), 0.95, 1.1
                color = np.array([0.5, 0.65, 0.8]) + self.random.uniform(-0.1, 0.1, 3)
            along, across = side % 2, 1 - side % 2
            centre, size = np.full(3, low + tall / 2), np.full(3, tall)
            centre[along], size[along] = self.random.uniform(0.25, 0.75) * self.sides[along], wide
            centre[across], size[across] = self.sides[across] * (side > 1), 0.06
            self._put(name, color, Pose(0, 0, 0), (centre, size))

    def _place(self, length: float, width: float, at_wall: bool) -> Pose | None:
        """A free spot for a piece of this depth and width, if there is one; its back to a wall if asked."""
        for _ in range(20):
            side = int(self.random.integers(4))
            axis = side % 2
            half = np.array([width, length] if axis else [length, width]) / 2
            if (2 * half > self.sides - 0.3).any():
                continue
            low, high = half + 0.05, self.sides - half - 0.05
            centre = self.random.uniform(low, high)
            if at_wall:
                centre[axis] = (low if side < 2 else high)[axis]
            if all((np.abs(centre - other) > half + size + 0.05).any() for other, size in self.taken):
                self.taken.append((centre, half))
                turn = side * np.pi / 2 + self.random.normal() * (0.01 if at_wall else 0.15)
                return Pose(centre[0], centre[1], turn)
        return None

    def _bed(self) -> None:
        wide, color = self.random.uniform(0.9, 1.8), self.random.uniform(0.2, 0.9, 3)
        if where := self._place(2.1, wide, at_wall=True):
            self._put("bed", color, where, ((0, 0, 0.35), (2.0, wide, 0.4)))
            self._put("bed", color * 0.6, where, ((-1.0, 0, 0.5), (0.08, wide, 1.0)))
            for y in [0.0] if wide < 1.3 else [-0.25, 0.25]:  # pillows
                self._put("bed", np.full(3, 0.9), where, ((-0.75, y * wide, 0.6), (0.4, 0.4 * wide, 0.12)))

    def _sofa(self) -> None:
        wide, color = self.random.uniform(1.4, 2.4), self.random.uniform(0.1, 0.8, 3)
        if where := self._place(0.9, wide, at_wall=True):
            seat, back = ((0.05, 0, 0.22), (0.8, wide, 0.4)), ((-0.35, 0, 0.45), (0.2, wide, 0.85))
            arms = [((0, s * (wide / 2 - 0.1), 0.35), (0.85, 0.2, 0.6)) for s in (-1, 1)]
            self._put("sofa", color, where, seat, back, *arms)

    def _shelf(self) -> None:
        wide, tall, color = self.random.uniform(0.6, 1.4), self.random.uniform(1.0, 2.1), self._wood()
        if not (where := self._place(0.4, wide, at_wall=True)):
            return
        boards = np.linspace(0.02, tall - 0.02, int(self.random.integers(3, 6)))
        self._put("shelf", color, where, *(((0, 0, z), (0.35, wide, 0.03)) for z in boards))
        self._put(
            "shelf", color, where, *(((0, s * wide / 2, tall / 2), (0.35, 0.03, tall)) for s in (-1, 1))
        )
        self._put("shelf", color * 0.8, where, ((-0.16, 0, tall / 2), (0.02, wide, tall)))
        for z in boards[:-1]:  # books
            if self.random.random() < 0.6:
                book = self.random.uniform(0.15, 0.25)
                spot = (0.0, self.random.uniform(-0.25, 0.25) * wide, z + 0.015 + book / 2)
                self._put("clutter", self.random.uniform(0, 1, 3), where, (spot, (0.2, 0.35 * wide, book)))

    def _table(self) -> None:
        length, wide, tall = self.random.uniform((0.7, 0.8, 0.5), (1.0, 1.8, 0.78))
        color = self._wood()
        if not (where := self._place(length + 1.0, wide, at_wall=False)):
            return
        self._put("table", color, where, ((0, 0, tall), (length, wide, 0.04)), *_legs(length, wide, tall))
        if self.random.random() < 0.7:
            size = self.random.uniform(0.1, 0.3, 3)
            spot = (self.random.uniform(-0.2, 0.2), self.random.uniform(-0.2, 0.2), tall + 0.02 + size[2] / 2)
            self._put("clutter", self.random.uniform(0, 1, 3), where, (spot, size))
        seat = self._wood()
        for side in (-1, 1):
            if self.random.random() < 0.8:
                facing = where.turn + (np.pi if side > 0 else 0) + self.random.normal() * 0.2
                away = side * (length / 2 + self.random.uniform(0, 0.25))
                x, y = where.x + np.cos(where.turn) * away, where.y + np.sin(where.turn) * away
                self._put("chair", seat, Pose(x, y, facing), *CHAIR)

    def _chair(self) -> None:
        if where := self._place(0.5, 0.5, at_wall=False):
            self._put("chair", self._wood(), where, *CHAIR)

    def _lamp(self) -> None:
        color, wide = self.random.uniform(0.6, 1, 3), self.random.uniform(0.25, 0.4)
        if self.random.random() < 0.5:  # from the ceiling
            x, y = self.random.uniform(0.3, 0.7, 2) * self.sides
            where, shade = Pose(x, y, 0.0), self.height - self.random.uniform(0.3, 0.7)
            rod = (0, 0, (shade + self.height) / 2), (0.03, 0.03, self.height - shade)
            self._put("lamp", color, where, rod)
        elif free := self._place(0.4, 0.4, at_wall=False):
            where, shade = free, self.random.uniform(1.3, 1.8)
            foot, rod = ((0, 0, 0.02), (0.3, 0.3, 0.04)), ((0, 0, shade / 2), (0.03, 0.03, shade))
            self._put("lamp", color * 0.4, where, foot, rod)
        else:
            return
        for turn in (0, np.pi / 4):  # two boxes make it nearly round
            self._put("lamp", color, where, ((0, 0, shade), (wide, wide, 0.25)), turn=turn)

    def _clutter(self) -> None:
        size = self.random.uniform(0.1, 0.5, 3)
        if where := self._place(size[0], size[1], at_wall=self.random.random() < 0.5):
            self._put("clutter", self.random.uniform(0, 1, 3), where, ((0, 0, size[2] / 2), size))

    def _wood(self) -> Floats:
        brown = np.array([0.55, 0.4, 0.25]) * self.random.uniform(0.5, 1.6)
        return brown + self.random.uniform(-0.05, 0.05, 3)


def _legs(length: float, wide: float, tall: float) -> list[Part]:
    x, y = length / 2 - 0.04, wide / 2 - 0.04
    return [((a * x, b * y, tall / 2), (0.05, 0.05, tall)) for a in (-1, 1) for b in (-1, 1)]


CHAIR: list[Part] = [
    ((0, 0, 0.45), (0.42, 0.42, 0.04)),
    ((-0.2, 0, 0.7), (0.03, 0.42, 0.5)),
    *_legs(0.42, 0.42, 0.45),
]
