"""Probabilities summed over looks, against sums written out; scenes of any size, every point seen."""

import pytest
import torch
from training_cases import room_data, tiny

import pointvar as pv
from pointvar.data import Sample
from pointvar.train import class_probabilities, evaluate, load_data, predict_scene
from pointvar.train.loader import TEST, BatchIndex, Preparation
from pointvar.train.sources import transform_of
from pointvar.train.voting import tiles


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def unet(classes: int = 3) -> pv.models.SegmentationUNet:
    return pv.models.SegmentationUNet(1, classes, channels=[4, 4], radii=[0.2, 0.4], generator=seeded())


def test_votes_are_averages_of_passes() -> None:
    config = tiny()
    data = load_data(config.data)
    model = pv.models.Classifier(1, 25, channels=[4, 4], head=4, radii=[0.3, 0.6], generator=seeded())
    model.train()
    result = class_probabilities(model, data.test, config.data, votes=3, seed=7)
    assert model.training
    prepare = Preparation(data.test, model, transform_of(config.data, "classification", True), 7, TEST)
    model.eval()
    looks = [prepare[BatchIndex(vote, 0, tuple(range(6)))] for vote in range(3)]
    each = [model(look.features, look.levels).softmax(1) for look in looks]
    assert not torch.allclose(each[0], each[1])
    torch.testing.assert_close(result, torch.stack(each).mean(0).detach())


@pytest.mark.parametrize("limit", [7, 100, 1000])
def test_tiles_part_the_points(limit: int, generator: torch.Generator) -> None:
    points = torch.rand(300, 3, generator=generator)
    parts = list(tiles(points, limit, 0.2))
    assert torch.cat([own for own, _ in parts]).sort().values.tolist() == list(range(300))
    for own, margin in parts:
        assert len(own) <= limit
        near = torch.cdist(points, points[own]).amin(1) < 0.2
        near[own] = False
        assert set(near.nonzero().squeeze(1).tolist()) <= set(margin.tolist())
        assert not set(own.tolist()) & set(margin.tolist())


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
