"""Synthetic shapes: closed meshes, seen from one side, the same whoever asks for them."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pointvar.data import Shapes, collate
from pointvar.data.mesh import Mesh, box, sample_surface
from pointvar.data.objects import OBJECTS


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", OBJECTS)
def test_every_object_is_closed_and_turned_outward(name: str, seed: int) -> None:
    vertices, faces = OBJECTS[name](np.random.default_rng(seed))
    corner = vertices[faces]
    assert (np.cross(corner[:, 0], corner[:, 1]) * corner[:, 2]).sum() > 0  # six times the volume
    # Closed: each edge is walked as often forwards as backwards; corners at one place are one corner.
    _, place = np.unique(vertices.round(9), axis=0, return_inverse=True)
    walks: Counter[tuple[int, int]] = Counter()
    for a, b, c in place.reshape(-1)[faces].tolist():
        for start, end in ((a, b), (b, c), (c, a)):
            if start != end:
                walks[start, end] += 1
                walks[end, start] -= 1
    assert not any(walks.values())


def test_points_are_uniform_on_a_surface() -> None:
    size = np.array([1.0, 2.0, 3.0])
    points, normals = sample_surface(box(size), 20_000, np.random.default_rng(0))
    axis = np.abs(normals).argmax(1)
    assert np.allclose(np.abs(normals).max(1), 1)
    assert np.allclose(np.abs(points[np.arange(len(points)), axis]), size[axis] / 2)
    assert (np.take_along_axis(points * normals, axis[:, None], 1) > 0).all()  # outward
    area = np.array([6.0, 3.0, 2.0])
    share = np.bincount(axis, minlength=3) / len(points)
    assert np.abs(share - area / area.sum()).max() < 0.014  # four standard deviations of 0.0035
    top = points[axis == 2]  # uniform within a face: mean and variance of both coordinates
    assert np.abs(top[:, :2].mean(0) / size[:2]).max() < 4 * np.sqrt(1 / 12 / len(top))
    assert np.allclose(top[:, :2].var(0) / size[:2] ** 2, 1 / 12, atol=0.01)


def test_a_surface_without_area_is_refused() -> None:
    with pytest.raises(ValueError, match="positive area"):
        sample_surface(Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]])), 5, np.random.default_rng(0))


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("normals", [True, False])
def test_samples_are_normalised(partial: bool, normals: bool) -> None:
    data = Shapes(50, num_points=200, partial=partial, normals=normals)
    assert data.task == "classification"
    assert len(data.classes) >= 15
    for index in range(len(data)):
        sample = data[index]
        assert sample.points.shape == (200, 3)
        assert sample.points.mean(0).abs().max() < 1e-5
        assert sample.points.norm(dim=1).max() == pytest.approx(1, abs=1e-5)
        assert sample.features.shape == (200, data.num_features)
        assert torch.allclose(sample.features.norm(dim=1), torch.ones(200), atol=1e-5)
    assert Counter(data[i].label for i in range(50)) == dict.fromkeys(range(25), 2)


def test_a_partial_scan_misses_one_side() -> None:
    whole, part = (Shapes(25, noise=0.0, partial=p, normals=True) for p in (False, True))
    sphere = whole.classes.index("ellipsoid")
    assert whole[sphere].features.mean(0).norm() < 0.15  # normals all around
    assert part[sphere].features.mean(0).norm() > 0.3


def test_a_sample_depends_on_seed_split_and_index_alone() -> None:
    data = Shapes(30, num_points=100, seed=3)
    backwards = {index: data[index].points for index in reversed(range(30))}
    for index in range(30):
        assert torch.equal(data[index].points, backwards[index])
        assert torch.equal(Shapes(31, num_points=100, seed=3)[index].points, backwards[index])
    assert torch.equal(data[-1].points, data[29].points)
    others = [Shapes(30, num_points=100, seed=4), Shapes(30, "test", num_points=100, seed=3)]
    assert not any(torch.equal(other[0].points, data[0].points) for other in others)


def test_worker_processes_give_the_same_samples() -> None:
    data = Shapes(12, num_points=50)
    alone, workers = (list(DataLoader(data, batch_size=4, collate_fn=collate, num_workers=n)) for n in (0, 2))
    for first, second in zip(alone, workers, strict=True):
        assert torch.equal(first.cloud.points, second.cloud.points)
        assert torch.equal(first.labels, second.labels)
        assert first.names == second.names


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="train, validation, test"):
        Shapes(5, split="training")
    with pytest.raises(ValueError, match="num_points=0"):
        Shapes(5, num_points=0)
    with pytest.raises(IndexError, match="out of range for 5"):
        Shapes(5)[5]
