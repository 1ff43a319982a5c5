"""Sphere crops: context, even coverage, exact resuming; and weights of the classes."""

import math

import pytest
import torch
from torch.utils.data import DataLoader

from pointvar.data import (
    CropSampler,
    PointData,
    Rotate,
    Sample,
    Shapes,
    SphereCrops,
    class_weights,
    collate,
    count_labels,
    cover,
    crop_sphere,
    label_counts,
)
from pointvar.data.crops import Potentials


class Floors(PointData):
    """Flat scenes of different sizes."""

    task = "segmentation"
    num_features = 1

    def __init__(self, *sides: float, density: float = 30.0) -> None:
        self.classes, self.sides, self.density = ["a", "b", "c"], sides, density

    def __len__(self) -> int:
        return len(self.sides)

    def load(self, index: int) -> Sample:
        generator = torch.Generator().manual_seed(index)
        side = self.sides[index]
        count = int(self.density * side**2)
        points = torch.rand(count, 3, generator=generator) * torch.tensor([side, side, 0.1])
        label = torch.randint(-1, 3, (count,), generator=generator)
        return Sample(points, torch.arange(count).float()[:, None], label, f"floor{index}")


def test_a_crop_by_a_loop() -> None:
    scene, centre = Floors(4.0)[0], torch.tensor([1.5, 2.0, 0.0])
    crop = crop_sphere(scene, centre, 0.5, 1.0, ignore_index=-100)
    wanted = []
    for i, (point, label) in enumerate(zip(scene.points.tolist(), scene.label.tolist(), strict=True)):
        distance = math.dist(point, centre.tolist())
        if distance < 1.0:
            wanted.append((i, distance < 0.5, label if distance < 0.5 else -100))
    assert crop.index.tolist() == [i for i, _, _ in wanted]
    assert crop.inner.tolist() == [inside for _, inside, _ in wanted]
    assert crop.sample.label.tolist() == [label for _, _, label in wanted]
    assert torch.equal(crop.sample.points, scene.points[crop.index] - centre)
    assert torch.equal(crop.sample.features, scene.features[crop.index])


def test_the_wanted_points_are_covered_by_crops_of_limited_size(generator: torch.Generator) -> None:
    scene = Floors(4.0)[0]
    for limit in (10_000, 40):
        seen = torch.zeros(len(scene), dtype=torch.int64)
        for crop in cover(scene, 0.8, 1.5, generator, wanted=200, limit=limit):
            assert len(crop.index) <= limit
            assert torch.equal(crop.sample.points, scene.points[crop.index] - crop.centre)
            assert crop.centre.tolist() in scene.points[:200].tolist()
            seen[crop.index[crop.inner]] += 1
        assert (seen[:200] > 0).all()
        assert (seen > 1).any()


@pytest.mark.parametrize("inner", [0.3, 1.0, 20.0])
def test_every_point_is_covered(inner: float, generator: torch.Generator) -> None:
    scene = Floors(6.0)[0]
    seen = torch.zeros(len(scene), dtype=torch.int64)
    count = 0
    for crop in cover(scene, inner, 2 * inner, generator):
        seen[crop.index[crop.inner]] += 1
        count += 1
    assert seen.min() >= 1
    # Centres are at least one radius apart, so half-radius discs about them do not meet; with a margin.
    assert count <= math.ceil((6 + inner) ** 2 / (math.pi * (inner / 2) ** 2))
    again = list(cover(scene, inner, 2 * inner, torch.Generator().manual_seed(0)))
    assert len(again) == count


def test_potentials_are_smooth_bumps(generator: torch.Generator) -> None:
    points = torch.tensor([[0.0], [0.5], [0.99], [1.0], [3.0]])
    potentials = Potentials(points, 1.0, generator)
    before = potentials.values.clone()
    assert before.max() < 1e-3
    potentials.visit(torch.tensor([0.0]))
    wanted = [1.0, (1 - 0.25) ** 2, (1 - 0.9801) ** 2, 0.0, 0.0]
    assert (potentials.values - before).tolist() == pytest.approx(wanted, abs=1e-6)


def test_scenes_are_visited_by_their_size_and_evenly(generator: torch.Generator) -> None:
    data = Floors(3.0, 6.0)
    sampler = CropSampler(data, radius=1.0, length=200, generator=generator)
    places = list(sampler)
    assert len(places) == len(sampler) == 200
    share = sum(place.scene for place in places) / 200
    assert 0.6 < share < 0.85  # of an area of 36 among 45; more at the edges of the small one
    hits = torch.zeros(len(data[1]))
    for place in places:
        if place.scene == 1:
            hits[crop_sphere(data[1], place.centre, 1.0, 1.0).index] += 1
    assert hits.min() >= 3  # with random centres, some corner would be left out
    assert hits.max() <= 40


def test_resuming_is_exact_also_within_an_epoch() -> None:
    def make() -> CropSampler:
        return CropSampler(Floors(3.0, 4.0), 1.0, 20, torch.Generator().manual_seed(7))

    whole = make()
    epochs = [list(whole) for _ in range(3)]
    assert epochs[0] != epochs[1]
    first = make()
    assert list(first) == epochs[0]
    second = iter(first)
    assert [next(second) for _ in range(12)] == epochs[1][:12]
    state = first.state_dict(done=5)  # 7 were fetched ahead
    resumed = make()
    resumed.load_state_dict(state)
    assert list(resumed) == epochs[1][5:]
    assert list(resumed) == epochs[2]
    between = make()
    between.load_state_dict(whole.state_dict())
    assert list(between) == list(whole)
    with pytest.raises(ValueError, match="other scenes"):
        CropSampler(Floors(3.0), 1.0, 20, torch.Generator().manual_seed(7)).load_state_dict(state)


def test_crops_in_worker_processes() -> None:
    data = Floors(3.0, 4.0)
    crops = SphereCrops(data, 0.5, 1.0, transform=Rotate())

    def epoch(workers: int) -> torch.Tensor:
        sampler = CropSampler(data, 0.5, 8, torch.Generator().manual_seed(0))
        loader = DataLoader(crops, batch_size=2, sampler=sampler, collate_fn=collate, num_workers=workers)
        return torch.cat([batch.cloud.points for batch in loader])

    assert torch.equal(epoch(0), epoch(2))


def test_wrong_arguments(generator: torch.Generator) -> None:
    scene = Floors(2.0)[0]
    with pytest.raises(ValueError, match="0 < inner <= outer, got 2 and 1"):
        crop_sphere(scene, [0.0, 0, 0], 2, 1)
    with pytest.raises(ValueError, match="for classification"):
        SphereCrops(Shapes(3), 1, 2)
    with pytest.raises(ValueError, match="positive length"):
        CropSampler(Floors(), 1.0, 5, generator)


def test_counts_and_weights() -> None:
    assert label_counts(Shapes(30, num_points=8)).tolist() == [2] * 5 + [1] * 20
    counts = count_labels([torch.tensor([0, 0, 0, 2, -1]), torch.tensor([-1, 0])], 3)
    assert counts.tolist() == [4, 0, 1]
    weights = class_weights(counts)
    assert weights.tolist() == pytest.approx([0.625, 0, 2.5])  # 5 labels, 2 classes that occur: 5/2 each
    mild = class_weights(counts, power=0.5)
    assert mild[2] / mild[0] == pytest.approx(2)
    assert (mild * counts).sum() == pytest.approx(5)
    assert class_weights(torch.tensor([3, 4]), power=0).tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"0 to 2 or -1, got \[0, 3\]"):
        count_labels([torch.tensor([0, 3])], 3)
    with pytest.raises(ValueError, match="not all 0"):
        class_weights(torch.zeros(3))
