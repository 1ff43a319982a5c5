"""Probabilities summed over looks, against sums written out; scenes of any size, every point seen."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from training_cases import one_cloud, room_data, small_classifier, tiny

import pointvar as pv
from pointvar.data import Sample
from pointvar.train import Data, class_probabilities, evaluate, predict_scene
from pointvar.train.build import transform_of
from pointvar.train.loader import TEST, BatchIndex, Preparation
from pointvar.train.voting import tiles


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def unet(classes: int = 3) -> pv.models.SegmentationUNet:
    return pv.models.SegmentationUNet(1, classes, channels=[4, 4], radii=[0.2, 0.4], generator=seeded())


@pytest.mark.parametrize("votes", [1, 3])
def test_votes_are_averages_of_passes(votes: int) -> None:
    config, model = tiny({"data": {"batch_size": 2}}).data, small_classifier()
    samples = [one_cloud(index % 3, index) for index in range(10)]
    data = Data(samples, samples, ["a", "b", "c"], 1)
    result = class_probabilities(model, data.test, config, votes, seed=7)
    assert model.training
    assert not result.requires_grad
    prepare = Preparation(data.test, model, transform_of(config, "classification", votes > 1), 7, TEST)
    chunks = [tuple(range(8)), (8, 9)]
    model.eval()
    looks = [[prepare[BatchIndex(v, n, chunk)] for n, chunk in enumerate(chunks)] for v in range(votes)]
    each = [torch.cat([model(look.features, look.levels).softmax(1) for look in pass_]) for pass_ in looks]
    assert votes == 1 or not torch.allclose(each[0], each[1])
    torch.testing.assert_close(result, torch.stack(each).mean(0).detach())
    labels = torch.tensor([sample.label for sample in samples])
    metrics = evaluate(model, data, config, votes, seed=7)
    assert metrics.accuracy == pytest.approx(float((result.argmax(1) == labels).float().mean()))
    assert metrics.count == 10
    assert not model.training  # as it was


@pytest.mark.parametrize("limit", [7, 100, 1000])
def test_tiles_part_the_points(limit: int, generator: torch.Generator) -> None:
    points = torch.rand(300, 3, generator=generator)
    parts = list(tiles(points, limit, 0.2))
    assert torch.cat([own for own, _ in parts]).sort().values.tolist() == list(range(300))
    assert len(parts) == 2 ** math.ceil(math.log2(300 / min(limit, 300)))
    for own, margin in parts:
        assert len(own) <= limit
        low, high = points[own].amin(0) - 0.2, points[own].amax(0) + 0.2
        near = {i for i in range(300) if bool(((points[i] >= low) & (points[i] <= high)).all())}
        assert set(margin.tolist()) == near - set(own.tolist())


def test_tiles_are_halves_along_the_longest_side() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 6.0], [2.0, 1.0], [3.0, 7.0], [0.5, 3.0]])
    parts = [sorted(own.tolist()) for own, _ in tiles(points, 2, 0.0)]
    assert parts == [[0, 2], [4], [1, 3]]  # by the second coordinate: 0 1 | 3 6 7, then 3 | 6 7


class Known(nn.Module):
    """Scores that are a point's features, whatever is around it; keeps the points that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing, self.seen = nn.Parameter(torch.zeros(())), list[torch.Tensor]()

    def hierarchy(self, cloud: pv.PointCloud, generator: torch.Generator) -> pv.Hierarchy:
        self.seen.append(cloud.points)
        return pv.Hierarchy(cloud, [0.5], generator=generator)

    def forward(self, features: torch.Tensor, levels: pv.Hierarchy) -> torch.Tensor:
        assert not self.training
        return features + self.nothing


class Asked(Known):
    """The same, at the points where it is asked."""

    def hierarchy(
        self, cloud: pv.PointCloud, generator: torch.Generator, queries: Any = None
    ) -> pv.Hierarchy:
        self.at = torch.cdist(queries.points, cloud.points).argmin(1)
        return super().hierarchy(cloud, generator)

    def forward(self, features: torch.Tensor, levels: pv.Hierarchy) -> torch.Tensor:
        return super().forward(features, levels)[self.at]


def featured(count: int = 200) -> Sample:
    random = torch.Generator().manual_seed(1)
    points, scores = (torch.rand(count, 3, generator=random) * 2 for _ in range(2))
    return Sample(points, scores * 3, torch.randint(0, 3, (count,), generator=random))


@pytest.mark.parametrize("kind", [Known, Asked])
@pytest.mark.parametrize(("votes", "tile"), [(1, 1000), (1, 30), (2, 50)])
def test_each_point_gets_its_own_class(kind: type[Known], votes: int, tile: int) -> None:
    scene, model, done = featured(), kind(), []
    config = tiny({"data": {"radius": 0.5, "context": 0.8}}).data
    labels, shares = predict_scene(
        model, scene, config, votes, tile=tile, progress=lambda *numbers: done.append(numbers)
    )
    torch.testing.assert_close(shares, scene.features.softmax(1).amax(1))
    assert torch.equal(labels, scene.features.argmax(1))
    assert done[-1] == (200, 200)
    assert [now for now, _ in done] == sorted({now for now, _ in done})
    assert model.training
    data = Data([scene], [scene], ["a", "b", "c"], 3, "segmentation")
    hits = float((labels == scene.label).double().mean())
    assert evaluate(model, data, config, votes).accuracy == pytest.approx(hits)


def test_what_a_network_sees_of_a_scene() -> None:
    """Points within the context of a centre; fewer where they are too many; turned if there are votes."""
    scene = featured()
    config = tiny({"data": {"radius": 0.5, "context": 0.8, "scale": 0.0}}).data

    def seen(**options: Any) -> list[torch.Tensor]:
        model = Known()
        predict_scene(model, scene, config, **options)
        return model.seen

    away = torch.cat([cloud.norm(dim=1) for cloud in seen()])
    assert 0.79 < float(away.max()) <= 0.8
    sizes = [len(cloud) for cloud in seen()]
    assert max(len(cloud) for cloud in seen(sphere=10)) <= 10 < max(sizes)
    assert all(torch.equal(one, other) for one, other in zip(seen(seed=3), seen(seed=3), strict=True))
    assert sizes != [len(cloud) for cloud in seen(seed=4)]
    offsets = {tuple(row) for row in (scene.points[:, None] - scene.points).flatten(0, 1).tolist()}
    for votes, same in ((1, True), (2, False)):
        clouds = seen(votes=votes)
        assert all(tuple(row) in offsets for row in clouds[0].tolist()) == same
        assert (len(clouds) > 1.5 * len(sizes)) == (votes == 2)
    first, second = seen(votes=2)[0], seen(votes=2, seed=1)[0]
    assert first.shape != second.shape or not torch.equal(first, second)


def test_a_segmentation_keeps_all_points() -> None:
    with pytest.raises(ValueError, match=r"data\.poisson must be null"):
        predict_scene(Known(), featured(), tiny({"data": {"poisson": 0.1}}).data)


class Failing(Known):
    def forward(self, features: torch.Tensor, levels: pv.Hierarchy) -> torch.Tensor:
        raise RuntimeError("no")


def test_a_network_that_fails_is_left_as_it_was() -> None:
    model = Failing()
    with pytest.raises(RuntimeError, match="no"):
        predict_scene(model, featured(), tiny().data)
    assert model.training


def test_tiles_give_what_the_whole_gives() -> None:
    """With a context that holds the whole scene and no random choice, it does not matter how it is cut."""
    scene = room_data().train[0]
    model = unet()
    model.max_neighbors = None
    model.radii = (1e-4, 2e-4)  # no point is left out
    model.reach = model.first_reach = 3000.0
    config = tiny({"data": {"radius": 5.0, "context": 9.0}}).data
    whole, sure = predict_scene(model, scene, config)
    parts, shares = predict_scene(model, scene, config, tile=100)
    assert (whole == parts).float().mean() > 0.99  # two classes may be as likely to the last bit
    torch.testing.assert_close(sure, shares, rtol=1e-3, atol=1e-4)


def test_points_without_labels_do_not_count() -> None:
    data = room_data()
    config = tiny({"data": {"radius": 0.6, "context": 0.9}}).data
    metrics = evaluate(unet(), data, config, votes=2)
    assert metrics.count == sum(int((s.label >= 0).sum()) for s in (data.test[0], data.test[1]))


def test_one_point() -> None:
    scene = Sample(torch.zeros(1, 3), torch.ones(1, 1), torch.tensor([0]))
    labels, confidence = predict_scene(unet(), scene, tiny().data)
    assert labels.shape == confidence.shape == (1,)
    assert 1 / 3 <= float(confidence) <= 1
