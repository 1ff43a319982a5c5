"""Synthetic rooms: rays that end at the first surface, and the same room whoever asks for it."""

import numpy as np
import pytest
import torch

from pointvar.data import Rooms
from pointvar.data.furniture import CLASSES, Room
from pointvar.data.rooms import _cast


def furnished(seed: int) -> Room:
    random = np.random.default_rng(seed)
    room = Room(random, np.array([5.0, 6.0]), 2.5)
    room.furnish()
    return room


@pytest.mark.parametrize("seed", range(3))
def test_rays_end_at_the_first_surface_by_small_steps(seed: int) -> None:
    room, random = furnished(seed), np.random.default_rng(seed)
    origin = np.array([*room.free_spot(), 1.5])
    direction = random.normal(size=(60, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    distance, surface = _cast(room, origin.astype(np.float32), direction.astype(np.float32))
    step = 0.002
    for ray in range(60):
        walk = origin + np.arange(step, distance[ray] - step, step)[:, None] * direction[ray]
        inside = np.zeros(len(walk), dtype=bool)
        for centre, half, turn in room.boxes:
            x, y, z = (walk - centre).T
            along, across = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
            inside |= (np.abs(along) < half[0]) & (np.abs(across) < half[1]) & (np.abs(z) < half[2])
        outside = ((walk < 0) | (walk > [5, 6, 2.5])).any(1)
        assert inside.sum() <= 2  # a corner may be grazed between two steps
        assert not outside.any()
        end = origin + distance[ray] * direction[ray]
        if surface[ray] < 3:
            plane = [end[2], 2.5 - end[2], min(*np.abs(end[:2]), *np.abs([5, 6] - end[:2]))][surface[ray]]
            assert plane == pytest.approx(0, abs=1e-4)
        else:
            centre, half, turn = room.boxes[surface[ray] - 3]
            x, y, z = end - centre
            local = [np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x, z]
            assert np.max(np.abs(local) - half) == pytest.approx(0, abs=1e-4)


def test_a_room_as_a_sample() -> None:
    data = Rooms(3, num_points=4001)
    assert (data.task, data.num_features, data.classes) == ("segmentation", 3, CLASSES)
    for index in range(3):
        sample = data[index]
        assert sample.points.shape == sample.features.shape == (4001, 3)
        assert sample.label.shape == (4001,)
        assert 0 <= sample.features.min() <= sample.features.max() <= 1
        assert sample.points.min() > -0.1
        assert sample.points.amax(0)[:2].max() < 8.1
        heights = sample.points[:, 2]
        assert heights[sample.label == 0].abs().max() < 0.05
        assert heights[sample.label == 1].min() > 2.3
    counts = torch.bincount(torch.cat([Rooms(20, num_points=2000)[i].label for i in range(20)]), minlength=12)
    assert (counts > 0).all()


def test_density_falls_with_the_square_of_the_distance() -> None:
    room = Room(np.random.default_rng(0), np.array([8.0, 8.0]), 3.0)
    random = np.random.default_rng(1)
    direction = random.normal(size=(200_000, 3)).astype(np.float32)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    origin = np.array([4, 4, 1.5], dtype=np.float32)
    distance, surface = _cast(room, origin, direction)
    floor = (distance[:, None] * direction)[surface == 0][:, :2]
    away = np.linalg.norm(floor, axis=1)
    for near, far in ((0.0, 0.5), (1.0, 1.5), (2.0, 2.5)):
        # The share of directions that meet a ring of the floor 1.5 m below is its solid angle over 4 pi.
        share = (1.5 / np.hypot(1.5, near) - 1.5 / np.hypot(1.5, far)) / 2
        found = ((away >= near) & (away < far)).mean() * len(away) / 200_000
        assert found == pytest.approx(share, abs=4 * np.sqrt(share / 200_000))  # four standard deviations


def test_a_room_depends_on_seed_split_and_index_alone() -> None:
    data = Rooms(3, num_points=500, seed=2)
    later = {index: data[index] for index in (2, 0, 1)}
    for index in range(3):
        assert torch.equal(data[index].points, later[index].points)
        assert torch.equal(data[index].label, later[index].label)
    others = [Rooms(3, num_points=500, seed=1), Rooms(3, "test", num_points=500, seed=2)]
    assert not any(torch.equal(other[0].points, data[0].points) for other in others)
    small = Rooms(1, floor=(2.0, 2.2), num_points=100)[0]
    assert small.points.amax(0)[:2].max() < 2.3


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="train, validation, test"):
        Rooms(5, split="val")
    with pytest.raises(ValueError, match="num_points=0"):
        Rooms(5, num_points=0)
    with pytest.raises(ValueError, match="2 <= smallest <= largest"):
        Rooms(5, floor=(1, 5))
