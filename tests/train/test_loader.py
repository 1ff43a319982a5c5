"""Batches: which samples are in them, on which rank, and what is drawn for them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from training_cases import one_cloud, room_data, small_classifier, tiny

import pointvar as pv
from pointvar.data import Sample
from pointvar.data.transforms import Transform
from pointvar.train import Data, Prepared
from pointvar.train import loader as loading
from pointvar.train.loader import Batches, BatchIndex, Loader, Preparation, loaders


class Shift(Transform):
    """Moves a cloud by a random number."""

    def __call__(self, sample: Sample, generator: torch.Generator) -> Sample:
        return replace(sample, points=sample.points + torch.rand((), generator=generator))


class Flat:
    """A network's geometry: nothing but the cloud, and a number that was drawn."""

    def hierarchy(self, cloud: pv.PointCloud, generator: torch.Generator) -> Any:
        levels = pv.Hierarchy(cloud, [0.5], generator=generator)
        levels.drawn = float(torch.rand((), generator=generator))  # type: ignore[attr-defined]
        return levels


class Asked(Flat):
    """One that can be asked for predictions at some points."""

    def hierarchy(self, cloud: pv.PointCloud, queries: Any = None, *, generator: torch.Generator) -> Any:
        levels = super().hierarchy(cloud, generator)
        levels.asked = queries
        return levels


def samples(count: int = 7) -> list[Sample]:
    return [one_cloud(index, index) for index in range(count)]


def preparation(seed: int = 0, stream: int = 0, keep: bool = False, network: Any = None) -> Preparation:
    return Preparation(samples(), network or Flat(), Shift(), seed, stream, keep)


def items(batches: Batches) -> list[tuple[Any, ...]]:
    return [index.items for index in batches]


# Preparation


def shifts(batch: Prepared) -> dict[int, float]:
    """By label, how far each cloud was moved."""
    clouds = batch.levels.input.points.split(batch.levels.input.lengths.tolist())
    pairs = zip(batch.labels.tolist(), clouds, strict=True)
    return {label: float((points - samples()[label].points).mean()) for label, points in pairs}


def test_a_sample_changes_with_seed_stream_and_epoch_alone() -> None:
    make, index = preparation(), BatchIndex(0, 0, (0, 1, 2))
    first = shifts(make[index])
    assert len(set(first.values())) == 3
    assert shifts(make[BatchIndex(0, 5, (2, 1))]) == {2: first[2], 1: first[1]}
    assert shifts(preparation()[index]) == first
    for other in (preparation(seed=1)[index], preparation(stream=1)[index], make[replace(index, epoch=1)]):
        assert not set(shifts(other).values()) & set(first.values())


def test_geometry_and_dropout_change_with_the_number_of_the_batch() -> None:
    make = preparation()
    batches = [make[BatchIndex(epoch, number, (0,))] for epoch in (0, 1) for number in (0, 1)]
    drawn = {batch.levels.drawn for batch in batches}  # type: ignore[attr-defined]
    assert len(drawn) == len({batch.seed for batch in batches}) == 4
    again = make[BatchIndex(0, 0, (3, 4))]
    assert again.seed == batches[0].seed
    assert again.num_clouds == 2
    assert not drawn & {
        float(torch.rand((), generator=torch.Generator().manual_seed(b.seed))) for b in batches
    }


def test_batches_are_kept_if_asked_for() -> None:
    index = BatchIndex(0, 0, (0, 1))
    for keep in (True, False):
        make = preparation(keep=keep)
        assert (make[index] is make[index]) == keep
        assert make[index] is not make[replace(index, number=1)]


def test_labels_of_a_batch_that_does_not_count() -> None:
    batch = preparation()[BatchIndex(0, 0, (3, 4), counts=False)]
    assert batch.labels.tolist() == [-1, -1]
    assert torch.equal(batch.features, torch.ones(128, 1))


@pytest.mark.parametrize("network", [Flat(), Asked()])
def test_predictions_are_asked_for_where_there_are_labels(network: Any) -> None:
    labels = torch.tensor([-1, 2, 0] * 21 + [-1])
    scene = replace(one_cloud(0, 0), label=labels)
    batch = Preparation([scene], network, Shift(), 0, 0)[BatchIndex(0, 0, (0,))]
    assert batch.features.shape == (64, 1)
    if isinstance(network, Asked):
        known = labels >= 0
        assert torch.equal(batch.labels, labels[known])
        assert torch.equal(batch.levels.asked.points, batch.levels.input.points[known])  # type: ignore[attr-defined]
    else:
        assert torch.equal(batch.labels, labels)


def test_of_a_label_per_cloud_nothing_is_asked() -> None:
    batch = preparation(network=Asked())[BatchIndex(0, 0, (0, 1))]
    assert batch.levels.asked is None  # type: ignore[attr-defined]


def test_to_another_device() -> None:
    batch = preparation()[BatchIndex(0, 0, (0, 1))]
    moved = batch.to("meta")
    parts: list[Tensor] = [moved.features, moved.labels, moved.levels.input.points]
    assert {part.device.type for part in parts} == {"meta"}
    assert moved.seed == batch.seed
    assert batch.features.device.type == "cpu"


# Batches


@pytest.mark.parametrize(
    ("count", "size", "drop", "expected"),
    [
        (6, 2, False, [2, 2, 2]),
        (7, 3, False, [3, 3, 1]),
        (7, 3, True, [3, 3]),
        (2, 3, False, [2]),
        (6, 2, True, [2] * 3),
    ],
)
def test_all_items_in_turn(count: int, size: int, drop: bool, expected: list[int]) -> None:
    batches = Batches(lambda epoch: range(count), count, size, drop_last=drop)
    found = list(batches)
    assert [len(index.items) for index in found] == expected
    assert len(batches) == len(expected)
    assert [item for index in found for item in index.items] == list(range(sum(expected)))
    assert [index.number for index in found] == list(range(len(expected)))
    assert all(index.counts for index in found)


@pytest.mark.parametrize("training", [True, False])
def test_ranks_take_turns_and_get_as_many(training: bool) -> None:
    ranks = [Batches(lambda _: range(7), 7, 1, training=training, rank=r, ranks=3) for r in range(3)]
    assert [items(b) for b in ranks] == [[(0,), (3,), (6,)], [(1,), (4,), (0,)], [(2,), (5,), (1,)]]
    assert [len(b) for b in ranks] == [3, 3, 3]
    assert [[index.counts for index in b] for b in ranks] == [[True] * 3, *[[True, True, training]] * 2]


def test_more_ranks_than_batches() -> None:
    ranks = [Batches(lambda _: range(2), 2, 1, training=False, rank=r, ranks=5) for r in range(5)]
    assert [items(b) for b in ranks] == [[(0,)], [(1,)], [(0,)], [(1,)], [(0,)]]
    assert [next(iter(b)).counts for b in ranks] == [True, True, False, False, False]


def test_epochs_are_planned_once() -> None:
    asked: list[int] = []

    def order(epoch: int) -> list[int]:
        asked.append(epoch)
        return [epoch, epoch + 1]

    train = Batches(order, 2, 1)
    test = Batches(lambda epoch: [epoch], 1, 1, training=False)
    for epoch in (0, 3):
        train.set_epoch(epoch)
        test.set_epoch(epoch)
        assert items(train) == items(train) == [(epoch,), (epoch + 1,)]
        assert next(iter(train)).epoch == epoch
        assert next(iter(test)) == BatchIndex(0, 0, (0,))
    assert asked == [0, 3]


# Loader


def labels(batches: Any) -> list[int]:
    return [label for batch in batches for label in batch.labels.tolist()]


def resumable() -> Loader:
    return Loader(preparation(), Batches(lambda epoch: range(7), 7, 2))


def test_goes_on_after_the_batches_that_were_given() -> None:
    loader, other = resumable(), resumable()
    iterator = iter(loader)
    assert labels([next(iterator), next(iterator)]) == [0, 1, 2, 3]
    assert loader.state_dict() == {"position": 2}
    other.load_state_dict(loader.state_dict())
    rest = iter(other)
    assert labels([next(rest)]) == [4, 5]
    assert other.state_dict() == {"position": 3}
    assert labels(rest) == [6]
    assert other.state_dict() == {"position": 0}
    assert labels(other) == list(range(7))


def test_the_epoch_may_be_set_after_the_iterator_was_asked_for() -> None:
    loader = Loader(preparation(), Batches(lambda epoch: [epoch], 1, 1))
    iterator = iter(loader)
    loader.batches.set_epoch(4)
    assert labels(iterator) == [4]


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    before = torch.random.get_rng_state()
    assert len(list(resumable())) == 4
    assert torch.equal(before, torch.random.get_rng_state())


# Both loaders of a run


def clouds(config: dict[str, Any] | None = None, count: int = 20, **options: Any) -> tuple[Loader, Loader]:
    data = Data(samples(count), samples(10), list("abcdefghijklmnopqrst"), 1)
    return loaders(tiny({"data": config or {}}), data, small_classifier(), **options)


def test_each_epoch_has_all_clouds_in_an_order_of_its_own() -> None:
    train, test = clouds()
    orders = []
    for epoch in (0, 1, 0):
        train.batches.set_epoch(epoch)
        assert [len(chosen) for chosen in items(train.batches)] == [2] * 10
        orders.append([item for chosen in items(train.batches) for item in chosen])
    assert sorted(orders[0]) == list(range(20)) == sorted(orders[1])
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != list(range(20))
    test.batches.set_epoch(1)
    assert {index.epoch for index in test.batches} == {0}  # evaluations are all the same
    assert items(test.batches) == [tuple(range(8)), (8, 9)]  # without gradients there is room for eight
    assert items(clouds({"batch_size": 9})[1].batches) == [tuple(range(9)), (9,)]


def test_only_training_is_augmented() -> None:
    train, test = clouds({"box": False})
    for loader, same in ((train, False), (test, True)):
        batch = loader.preparation[BatchIndex(0, 0, (0,))]
        assert torch.allclose(batch.levels.input.points, samples()[0].points) == same
    index = BatchIndex(0, 0, (0, 1))
    assert train.preparation[index].seed != test.preparation[index].seed


def test_small_test_sets_are_kept_and_need_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    index = BatchIndex(0, 0, (0,))
    for cache, points, kept in ((True, 640, True), (False, 640, False), (True, 639, False)):
        monkeypatch.setattr(loading, "KEPT_POINTS", points)
        train, test = clouds({"cache": cache, "workers": 2})
        assert (test.preparation[index] is test.preparation[index]) == kept
        assert (train.num_workers, test.num_workers) == (2, 0 if kept else 2)
        assert train.preparation[index] is not train.preparation[index]
        assert (train.persistent_workers, test.persistent_workers) == (True, not kept)


def test_ranks_and_a_smaller_last_batch() -> None:
    both = [clouds({"batch_size": 3, "drop_last": True}, rank=rank, ranks=2) for rank in (0, 1)]
    drawn = [items(train.batches) for train, _ in both]
    assert [len(each) for each in drawn] == [3, 3]
    assert len({item for each in drawn for chosen in each for item in chosen}) == 18
    assert [items(test.batches) for _, test in both] == [[tuple(range(8))], [(8, 9)]]


def scenes(**change: Any) -> tuple[Loader, Loader]:
    model = pv.models.SegmentationUNet(1, 3, channels=[4, 4], radii=[0.3, 0.6])
    config = tiny({"data": {"radius": 0.6, "context": 0.9, **change}})
    return loaders(config, room_data(), model)


def test_scenes_are_evaluated_one_by_one() -> None:
    _, test = scenes(batch_size=3)
    assert items(test.batches) == [(0,), (1,)]
    batch = next(iter(test))
    assert torch.equal(batch.sample.points, room_data().test[0].points)
    assert torch.equal(batch.features, room_data().test[0].features)


def test_spheres_of_an_epoch() -> None:
    for crops, count in ((None, 2), (5, 5)):
        train, _ = scenes(crops=crops, batch_size=1)
        first = [place for chosen in items(train.batches) for place in chosen]
        train.batches.set_epoch(1)
        second = [place for chosen in items(train.batches) for place in chosen]
        assert len(first) == len(second) == count
        assert not set(first) & set(second)


def test_a_sphere_has_labels_inside_and_context_around() -> None:
    train, _ = scenes(rotate=False, scale=0.0)
    index = next(iter(train.batches))
    batch = train.preparation[index]
    inner = outer = 0
    for place in index.items:
        assert not isinstance(place, int)
        scene = room_data().train[place.scene]
        away = (scene.points - torch.tensor(place.centre)).norm(dim=1)
        inner += int(((away <= 0.6) & (scene.label >= 0)).sum())  # type: ignore[operator]
        outer += int((away <= 0.9).sum())
    assert (len(batch.labels), len(batch.features)) == (inner, outer)


def test_the_state_has_that_of_the_sampler() -> None:
    train, other = scenes(crops=4)[0], scenes(crops=4)[0]
    iterator = iter(train)
    next(iterator)
    other.load_state_dict(train.state_dict())
    assert items(other.batches) == items(train.batches)[1:]
    list(iterator)
    ended = train.state_dict()
    assert ended["position"] == 0
    other.load_state_dict(ended)
    train.batches.set_epoch(1)
    other.batches.set_epoch(1)
    assert items(other.batches) == items(train.batches)
