"""Hierarchy: nested levels, and neighbourhoods that depend on the generator alone."""

import pickle

import pytest
import torch
from oracles import brute_ball_query, poisson_disk_faults, rows_of
from strategies import random_cloud
from torch.utils.data import DataLoader

from pointvar import Hierarchy, Neighborhood, PointCloud, ball_query, farthest_points, knn

RADII = [0.1, 0.2, 0.4]


def make(seed: int = 0, max_neighbors: int | None = None, **arguments: object) -> Hierarchy:
    cloud = random_cloud([300, 0, 200])
    generator = torch.Generator().manual_seed(seed)
    return Hierarchy(cloud, RADII, max_neighbors=max_neighbors, generator=generator, **arguments)


def same(a: Neighborhood, b: Neighborhood) -> bool:
    return torch.equal(a.row_offsets, b.row_offsets) and torch.equal(a.indices, b.indices)


class TestLevels:
    def test_are_nested(self):
        levels = make()
        finer = levels.input
        for cloud, kept in zip(levels.clouds, levels.kept, strict=True):
            assert torch.equal(cloud.points, finer.points[kept])
            assert torch.equal(cloud.batch, finer.batch[kept])
            assert cloud.num_points < finer.num_points
            finer = cloud
        assert len(levels) == 3

    def test_are_poisson_disks_of_their_radii(self):
        levels = make()
        finer = levels.input
        for cloud, kept, radius in zip(levels.clouds, levels.kept, RADII, strict=True):
            assert poisson_disk_faults(finer.points, finer.offsets, radius, kept.sort().values) == []
            finer = cloud

    def test_may_be_farthest_points(self):
        levels = make(farthest=[50, 0.5, 5])
        first = levels.input[farthest_points(levels.input, count=50)]
        assert torch.equal(levels.clouds[0].points, first.points)
        assert [cloud.lengths.tolist() for cloud in levels.clouds] == [[50, 0, 50], [25, 0, 25], [5, 0, 5]]
        assert levels.within(1).radius.unique().tolist() == pytest.approx([0.6])

    def test_generator_decides(self):
        kept = [make(seed).kept for seed in (0, 0, 1)]
        assert all(torch.equal(a, b) for a, b in zip(kept[0], kept[1], strict=True))
        assert not torch.equal(kept[0][0], kept[2][0])

    def test_repr_shows_the_sizes(self):
        sizes = ", ".join(str(cloud.num_points) for cloud in make().clouds)
        assert repr(make()) == f"Hierarchy(500 points -> {sizes}; radii {RADII}, reach 3.0)"


class TestNeighborhoods:
    @pytest.mark.parametrize(
        ("name", "level", "source", "target", "radius"),
        [
            ("within", 0, 0, 0, 0.3),
            ("within", 2, 2, 2, 1.2),
            ("within", -1, -1, -1, 0.3),
            ("down", -1, -1, 0, 0.3),
            ("down", 0, 0, 1, 0.3),
            ("down", 1, 1, 2, 0.6),
            ("up", 2, 2, 1, 0.6),
            ("up", 1, 1, 0, 0.3),
            ("up", 0, 0, -1, 0.3),
        ],
    )
    def test_join_the_right_levels_with_the_radius_of_the_finer(self, name, level, source, target, radius):
        levels = make()
        clouds = {-1: levels.input, **dict(enumerate(levels.clouds))}
        hood = getattr(levels, name)(level)
        assert hood.support is clouds[source]
        assert hood.queries is clouds[target]
        assert hood.radius.tolist() == pytest.approx([radius] * len(hood.queries))
        points, offsets = hood.support.points, hood.support.offsets
        expected = brute_ball_query(
            points,
            offsets,
            hood.queries.points,
            hood.queries.offsets,
            3.0 * RADII[max(min(source, target), 0)],
        )
        assert rows_of(hood.row_offsets, hood.indices) == expected

    def test_are_made_once(self):
        levels = make()
        assert levels.within(1) is levels.within(1)
        assert levels.within(1) is levels.within(1, reach=3.0)
        assert levels.down(0) is levels.down(0)
        assert levels.down(0) is not levels.up(1)

    def test_reach_may_be_given(self):
        levels = make()
        assert levels.within(1, reach=1.5).radius[0] == pytest.approx(0.3)
        assert levels.within(1, reach=1.5) is not levels.within(1)
        assert make(reach=2.0).within(1).radius[0] == pytest.approx(0.4)

    def test_cap(self):
        hood = make(max_neighbors=4).within(0)
        assert torch.equal(hood.counts, make().within(0).counts.clamp(max=4))
        assert torch.equal(hood.total_counts, make().within(0).counts)

    def test_order_of_use_does_not_matter(self):
        uses = [("within", 0), ("down", 0), ("up", 1), ("within", 1), ("down", -1), ("within", 2)]
        forward, backward = make(max_neighbors=3), make(max_neighbors=3)
        first = [getattr(forward, name)(level) for name, level in uses]
        last = [getattr(backward, name)(level) for name, level in reversed(uses)]
        assert all(same(a, b) for a, b in zip(first, reversed(last), strict=True))
        assert not same(first[0], make(seed=1, max_neighbors=3).within(0))

    @pytest.mark.parametrize(
        ("name", "level"), [("within", 3), ("within", -2), ("down", 2), ("up", -1), ("up", 3), ("down", -2)]
    )
    def test_levels_that_do_not_exist(self, name, level):
        with pytest.raises(ValueError, match="there is no level"):
            getattr(make(), name)(level)

    def test_nearest_points(self):
        levels = make()
        for hood, expected in [
            (levels.within(0, nearest=5), knn(levels.clouds[0], levels.clouds[0], 5)),
            (levels.down(-1, nearest=4), knn(levels.input, levels.clouds[0], 4)),
            (levels.up(1, nearest=3), knn(levels.clouds[1], levels.clouds[0], 3)),
            (levels.out(nearest=2), knn(levels.clouds[0], levels.input, 2)),
        ]:
            assert same(hood, expected)
        assert levels.within(0, nearest=5) is levels.within(0, nearest=5)
        assert levels.within(0, nearest=5) is not levels.within(0)


class TestQueries:
    def test_are_the_input_unless_given(self):
        levels = make()
        assert levels.queries is levels.input
        assert levels.out() is levels.up(0)

    def test_see_level_0(self):
        queries = random_cloud([7, 0, 5], seed=1)
        levels = make(queries=queries)
        hood = levels.out()
        assert hood.support is levels.clouds[0]
        assert hood.queries is queries
        assert same(hood, ball_query(levels.clouds[0], queries, 3 * RADII[0]))
        assert torch.equal(levels.kept[0], make().kept[0])

    def test_travel(self):
        levels = make(max_neighbors=3, queries=random_cloud([7, 0, 5], seed=1))
        hood = levels.out()
        for again in (pickle.loads(pickle.dumps(levels)), levels.to("cpu")):
            assert same(again.out(), hood)
            assert again.out().queries is again.queries
            assert again.out().support is again.clouds[0]

    def test_must_be_of_the_same_clouds(self):
        with pytest.raises(ValueError, match="must agree in num_clouds, got 3 and 2"):
            make(queries=random_cloud([7, 5]))


class TestCopies:
    def test_pickle_keeps_what_was_made_and_what_will_be(self):
        levels = make(max_neighbors=3)
        levels.within(1)
        again = pickle.loads(pickle.dumps(levels))
        for name, level in [("within", 1), ("down", 0)]:  # made before, made after
            hood = getattr(again, name)(level)
            assert same(hood, getattr(levels, name)(level))
            assert hood.support is again.clouds[level]

    def test_to_the_same_device(self):
        levels = make(max_neighbors=3)
        levels.down(0)
        again = levels.to("cpu")
        assert same(again.down(0), levels.down(0))
        assert again.down(0).support is again.clouds[0]
        assert again.down(0).queries is again.clouds[1]
        assert same(again.within(2), levels.within(2))

    def test_to_another_device_takes_everything(self):
        levels = make()
        levels.within(1)
        levels.up(0)
        moved = levels.to("meta")
        hoods = moved.within(1), moved.up(0)
        tensors = [*moved.kept, *(hood.indices for hood in hoods)]
        clouds = [moved.input, *moved.clouds]
        assert {part.device.type for part in (*tensors, *clouds)} == {"meta"}
        assert hoods[0].support is hoods[0].queries is moved.clouds[1]
        assert hoods[1].queries is moved.input
        assert levels.clouds[0].device.type == "cpu"

    def test_pin_memory(self, monkeypatch):
        monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # pinning needs an accelerator
        levels = make()
        expected = levels.within(1)
        pinned = levels.pin_memory()
        assert pinned.clouds[1] is not levels.clouds[1]
        assert pinned.within(1).support is pinned.within(1).queries is pinned.clouds[1]
        assert same(pinned.within(1), expected)


def collate(clouds: list[torch.Tensor]) -> Hierarchy:
    generator = torch.Generator().manual_seed(len(clouds[0]))
    levels = Hierarchy(PointCloud.from_list(clouds), RADII, max_neighbors=4, generator=generator)
    levels.within(0)
    levels.down(0)
    return levels


# Newer Pythons warn of any fork of a process with threads, which torch's loader makes by default.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_data_loader_workers_build_the_same_hierarchies():
    data = [random_cloud([3000 + i], seed=i).points for i in range(8)]
    expected = [collate(data[i : i + 2]) for i in range(0, 8, 2)]  # the parent has used its threads
    loader = DataLoader(
        data, batch_size=2, num_workers=2, collate_fn=collate, timeout=60, multiprocessing_context="fork"
    )
    for levels, other in zip(loader, expected, strict=True):
        assert torch.equal(levels.clouds[2].points, other.clouds[2].points)
        assert same(levels.within(0), other.within(0))
        assert same(levels.down(0), other.down(0))
        assert same(levels.up(1), other.up(1))  # made only here
        assert levels.within(0).support is levels.clouds[0]


class TestHardInputs:
    def test_no_points(self):
        levels = Hierarchy(PointCloud(torch.zeros(0, 3), [0, 0]), RADII, max_neighbors=2)
        assert [len(cloud) for cloud in levels.clouds] == [0, 0, 0]
        assert levels.down(0).num_edges == 0

    def test_a_single_point_sees_itself_on_every_level(self):
        levels = Hierarchy(PointCloud(torch.zeros(1, 3)), RADII)
        assert [levels.within(i).edge_index.tolist() for i in range(3)] == [[[0], [0]]] * 3


NAN, INF = float("nan"), float("inf")
RADII_THAT_ARE_NONE = ([], [0.0], [-0.1, 0.2], [0.2, 0.1], [NAN], [0.1, NAN], [0.1, INF])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *[({"radii": r}, ValueError, "radi") for r in RADII_THAT_ARE_NONE],
        *[({"radii": r, "farthest": [3] * len(r)}, ValueError, "radi") for r in RADII_THAT_ARE_NONE],
        *[({"reach": r}, ValueError, "reach must be positive") for r in (0.0, -1.0, NAN, INF)],
        *[({"max_neighbors": m}, ValueError, "max_neighbors") for m in (0, -1)],
        ({"max_neighbors": 2.0}, TypeError, "max_neighbors"),
        ({"farthest": [3, 3]}, ValueError, "one entry per level"),
        ({"cloud": torch.rand(5, 3)}, TypeError, "PointCloud"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        Hierarchy(**{"cloud": random_cloud([5]), "radii": [0.1], **options})
