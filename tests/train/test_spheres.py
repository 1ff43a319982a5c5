"""Spheres in fixed places: each point in one of them, whatever is cut out of the world."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from survey_cases import landscape
from torch import nn
from training_cases import tiny

import pointvar as pv
from pointvar.data.survey import distinct
from pointvar.train.spheres import nearest_nodes, predict_points, spheres

CONFIG = tiny({"data": {"radius": 3.0, "context": 5.0}}).data
NOWHERE = np.zeros(3)


def unet() -> pv.models.SegmentationUNet:
    random = torch.Generator().manual_seed(3)
    options = {"channels": [8, 8], "radii": [0.6, 1.2], "max_neighbors": 6}  # neighbours are drawn at random
    return pv.models.SegmentationUNet(1, 3, **options, generator=random)


def scene(count: int = 1500, side: float = 20.0) -> np.ndarray:
    points = landscape(count, side, side)["points"]
    return points[distinct(points)[0]]


def test_no_place_is_farther_from_its_node_than_the_radius() -> None:
    """Against all nodes around, and the bound is reached."""
    random = np.random.default_rng(0)
    points, pitch, shift = random.random((2000, 3)) * 40 - 20, 4 / math.sqrt(5) * 3.0, random.random(3)
    places = (nearest_nodes(points, pitch, shift) / 2 + shift) * pitch
    grid = np.stack(np.meshgrid(*[np.arange(-6, 7)] * 3), -1).reshape(-1, 3).astype(float)
    every = (np.concatenate([grid, grid + 0.5]) + shift) * pitch
    for point, place in zip(points, places, strict=True):
        away = np.linalg.norm(every - point, axis=1)
        assert np.linalg.norm(place - point) == pytest.approx(away.min())
    far = np.linalg.norm(points - places, axis=1).max()
    assert 2.7 < far <= 3.0


@pytest.mark.parametrize("limit", [10_000, 60])
def test_each_point_is_inside_one_sphere(limit: int) -> None:
    points = scene()
    wanted = np.arange(len(points)) % 3 > 0
    visits, levels = np.zeros(len(points), int), set()
    for sphere in spheres(points, wanted, 3.0, 5.0, NOWHERE, limit):
        size = 0.5**sphere.level
        away = np.linalg.norm(points - sphere.centre, axis=1)
        assert sphere.rows.tolist() == np.flatnonzero(away < 5.0 * size).tolist()
        own = sphere.rows[sphere.inner]
        assert (away[own] <= 3.0 * size).all()
        assert len(sphere.rows) <= limit or sphere.level == 6
        levels.add(sphere.level)
        assert own.tolist() == [
            row
            for row in sphere.rows
            if np.linalg.norm(points[row] - sphere.centre) <= 3.0 * size
            and (nearest_nodes(points[[row]], 4 / math.sqrt(5) * 3.0 * size, NOWHERE)[0] == sphere.node).all()
        ]
        assert set(sphere.rows[sphere.wanted]) <= set(own)
        visits[sphere.rows[sphere.wanted]] += 1
    assert visits.tolist() == wanted.astype(int).tolist()
    assert (max(levels) > 0) == (limit == 60)


class Counting(nn.Module):
    """Scores that say how many points a network sees; and which is the highest."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))

    def hierarchy(self, cloud: pv.PointCloud, generator: torch.Generator) -> pv.Hierarchy:
        return pv.Hierarchy(cloud, [0.5], generator=generator)

    def forward(self, features: torch.Tensor, levels: pv.Hierarchy) -> torch.Tensor:
        points = levels.input.points
        scores = torch.stack([points[:, 2], points.new_full((len(points),), len(points) / 100)], 1)
        return scores + self.nothing


@pytest.mark.parametrize("votes", [1, 2])
def test_predictions_are_those_of_each_sphere(votes: int) -> None:
    points, model = scene(), Counting()
    rows = np.array([5, 3, 3, 1000])
    config = tiny({"data": {"radius": 3.0, "context": 5.0, "rotate": False, "scale": 0.0}}).data
    features = np.ones((len(points), 1), np.float32)
    labels, shares = predict_points(model, points, features, rows, config, 2, votes, seed=4)
    from pointvar.data.transforms import seeded
    from pointvar.train.loader import ORDER, TEST

    total = torch.zeros(len(rows), 2)
    for vote in range(votes):
        shift = torch.rand(3, dtype=torch.float64, generator=seeded(4, TEST, vote, ORDER)).numpy()
        pitch = 4 / math.sqrt(5) * 3.0
        for place, row in enumerate(rows):
            centre = (nearest_nodes(points[[row]], pitch, shift)[0] / 2 + shift) * pitch
            count = int((np.linalg.norm(points - centre, axis=1) < 5.0).sum())
            total[place] += torch.tensor([points[row, 2] - centre[2], count / 100]).softmax(0)
    torch.testing.assert_close(shares, (total / votes).amax(1))
    assert labels.tolist() == total.argmax(1).tolist()


@pytest.mark.parametrize("limit", [150_000, 80])
@pytest.mark.parametrize("votes", [1, 2])
def test_a_part_is_predicted_as_the_whole_is(votes: int, limit: int) -> None:
    """To the last bit, if all points within radius and context are there."""
    points, model = scene(), unet()
    features = np.ones((len(points), 1), np.float32)
    options: dict[str, Any] = {"config": CONFIG, "num_classes": 3, "votes": votes, "sphere": limit}
    every = np.arange(len(points))
    labels, shares = predict_points(model, points, features, every, **options)
    assert len(labels.unique()) > 1
    low, high = points.min(0)[:2] + 7, points.min(0)[:2] + 11
    inside = ((points[:, :2] >= low) & (points[:, :2] <= high)).all(1)
    around = ((points[:, :2] > low - 8) & (points[:, :2] < high + 8)).all(1)
    assert 50 < inside.sum() < around.sum() < len(points)
    cut = np.flatnonzero(around)
    rows = np.flatnonzero(inside[cut])
    part, sure = predict_points(model, points[cut], features[cut], rows, **options)
    assert torch.equal(part, labels[torch.from_numpy(inside)])
    assert torch.equal(sure, shares[torch.from_numpy(inside)])
    near = np.flatnonzero(((points[:, :2] > low - 1) & (points[:, :2] < high + 1)).all(1))
    less, _ = predict_points(model, points[near], features[near], np.flatnonzero(inside[near]), **options)
    assert not torch.equal(less, part)  # what is around does count


def test_the_number_of_classes_is_checked() -> None:
    points = scene(20)
    with pytest.raises(ValueError, match="predicts 3 classes and names 4"):
        predict_points(unet(), points, np.ones((20, 1), np.float32), np.arange(20), CONFIG, 4)
    config = tiny({"data": {"poisson": 0.1}}).data
    with pytest.raises(ValueError, match=r"data\.poisson must be null"):
        predict_points(unet(), points, np.ones((20, 1), np.float32), np.arange(20), config, 3)
