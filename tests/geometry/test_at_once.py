"""The geometry of a network in one call: the same bits as made one by one, sorted, and packed for travel."""

import pickle
from collections.abc import Iterator
from io import BytesIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import poisson_disk_faults
from strategies import batches, random_cloud
from torch import Tensor
from torch.utils.data import DataLoader

import pointvar as pv
from pointvar import Hierarchy, Neighborhood, PointCloud, ops
from pointvar.geometry import Needs, hierarchy
from pointvar.ops import native

RADII = [0.1, 0.2, 0.4]
HOODS = [(-1, 0, 2.0), (0, 0, None), (1, 1, None), (2, 2, 1.5), (0, 1, None), (2, 1, None), (0, -3, None)]
ALL = Needs(0.2, weights=True, transposed=True)

needs_native = pytest.mark.skipif(not native.available, reason="the native kernels are not in use")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_by_one(*arguments: object, **options: object) -> Hierarchy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hierarchy.ops, "at_once", lambda points: None)
        return Hierarchy(*arguments, **options)


def tensors(levels: Hierarchy, fraction: float | None = 0.2) -> Iterator[tuple[str, Tensor]]:
    """All that a network may ask of a hierarchy."""
    for i, (cloud, kept) in enumerate(zip(levels.clouds, levels.kept, strict=True)):
        assert cloud.names is not None
        yield from {
            f"points {i}": cloud.points,
            f"offsets {i}": cloud.offsets,
            f"names {i}": cloud.names,
            f"kept {i}": kept,
        }.items()
    for key, hood in levels._hoods.items():
        yield from {
            f"row_offsets {key}": hood.row_offsets,
            f"indices {key}": hood.indices,
            f"total_counts {key}": hood.total_counts,
            f"radius {key}": hood.radius,
            f"relative positions {key}": hood.relative_positions(),
            **{f"transposed {key} {name}": t for name, t in hood.transposed()._asdict().items()},
        }.items()
        if fraction is not None:
            yield f"weights {key}", pv.estimator.MonteCarlo(fraction)(hood)
            yield f"density {key}", pv.estimator.density(hood, fraction)


def assert_same(a: Hierarchy, b: Hierarchy, fraction: float | None = 0.2) -> None:
    parts = dict(tensors(b, fraction))
    for name, tensor in tensors(a, fraction):
        other = parts.pop(name)
        assert tensor.dtype == other.dtype, name
        assert tensor.shape == other.shape, name
        assert torch.equal(tensor, other), name
    assert not parts


@needs_native
class TestAtOnce:
    @given(
        data=st.data(),
        cap=st.sampled_from([None, 1, 3, 16]),
        bandwidth=st.sampled_from([None, 0.5]),
        asked=st.booleans(),
        seed=st.integers(0, 1 << 40),
    )
    def test_is_what_the_operators_make_one_by_one(self, data, cap, bandwidth, asked, seed, dim, dtype):
        spacing = data.draw(st.sampled_from([0.03, 0.1]))
        cloud = data.draw(batches(dim, dtype, spacing))
        queries = data.draw(batches(dim, dtype, spacing, cloud.num_clouds)) if asked else None
        options = {"max_neighbors": cap, "bandwidth": bandwidth, "queries": queries}
        made = [
            make(cloud, RADII, generator=seeded(seed), **options, hoods=HOODS, needs=ALL)
            for make in (Hierarchy, one_by_one)
        ]
        assert_same(*made)

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_on_any_number_of_threads(self, threads, dtype):
        cloud = random_cloud([3000, 0, 20000], dtype=dtype)
        options = {"max_neighbors": 8, "hoods": HOODS, "needs": ALL}
        expected = one_by_one(cloud, [0.03, 0.06, 0.12], generator=seeded(), **options)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            made = Hierarchy(cloud, [0.03, 0.06, 0.12], generator=seeded(), **options)
        finally:
            torch.set_num_threads(before)
        assert_same(made, expected)

    def test_makes_all_that_is_asked_for(self, monkeypatch):
        levels = Hierarchy(random_cloud([90, 60]), RADII, max_neighbors=4, hoods=HOODS, needs=ALL)
        for name in ("ball_query", "transpose", "kernel_density", "poisson_disk"):
            monkeypatch.delattr(ops, name)  # what is made twice fails
        assert len(levels._hoods) == len(HOODS)
        assert dict(tensors(levels))

    def test_what_is_asked_for_later_is_made_as_before(self):
        arguments = random_cloud([90, 60]), RADII
        early = Hierarchy(*arguments, max_neighbors=4, generator=seeded(), hoods=HOODS, needs=ALL)
        late = Hierarchy(*arguments, max_neighbors=4, generator=seeded())
        for source, target, reach in HOODS:
            late._hood(late._key(source, target, reach, None))
        assert_same(late, early)

    @pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
    def test_of_a_tiny_or_a_huge_cloud(self, scale):
        cloud = PointCloud(random_cloud([80], dtype=torch.float64).points * scale)
        radii, options = [r * scale for r in RADII], {"hoods": HOODS, "needs": ALL, "max_neighbors": 4}
        made = [make(cloud, radii, generator=seeded(), **options) for make in (Hierarchy, one_by_one)]
        q = [pv.estimator.MonteCarlo(0.2)(levels.within(0)) for levels in made]
        assert torch.equal(*q)
        assert torch.isfinite(q[0]).all()

    def test_serves_in_training_where_it_was_made_in_inference_mode(self):
        model = pv.models.Classifier(1, 2, channels=(4, 4, 4), head=4)
        cloud = random_cloud([100, 50])
        with torch.inference_mode():
            levels = model.hierarchy(cloud, seeded())
        model(torch.ones(150, 1), levels).sum().backward()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"levels": [(0.0, 1)]}, "positive and finite"),
            ({"levels": [(1e-60, 1)]}, "positive and finite"),
            ({"densities": [(5, 0.1)]}, "no such level"),
            ({"densities": [(0, -1.0)]}, "positive and finite"),
            ({"hoods": [(0, 7, 0.1, 3, 1, -1, False)]}, "no such level"),
            ({"hoods": [(-2, 0, 0.1, 3, 1, -1, False)]}, "no such level"),
            ({"hoods": [(0, 0, 0.1, 3, 1, 0, False)]}, "one of the support points"),
            ({"densities": [(-1, 0.1)], "hoods": [(0, 0, 0.1, 3, 1, 0, False)]}, "one of the support points"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, change, message):
        cloud = random_cloud([20])
        plan = {"levels": [(0.1, 1)], "densities": [], "hoods": [], **change}
        with pytest.raises(ValueError, match=message):
            native.geometry(cloud.points, cloud.offsets, None, None, *plan.values())


def test_gradients_go_through_every_level():
    """Where points need gradients, everything is made of operators that have them."""
    points = random_cloud([60], dtype=torch.float64).points.requires_grad_()
    levels = Hierarchy(PointCloud(points), RADII, hoods=HOODS, needs=ALL, generator=seeded())
    hood = levels.within(1)
    (hood.relative_positions().sum() + pv.estimator.MonteCarlo()(hood).sum()).backward()
    assert points.grad.abs().sum() > 0


def unsorted(levels: Hierarchy, level: int) -> tuple[Tensor, Tensor]:
    """The points of a level in the order of the input, and the place of each in the level."""
    kept = torch.arange(levels.input.num_points)
    for keep in levels.kept[: level + 1]:
        kept = kept[keep]
    order = kept.argsort()
    assert torch.equal(levels.clouds[level].points, levels.input.points[kept])
    return kept[order], order


class TestOrder:
    @pytest.mark.parametrize("make", [Hierarchy, one_by_one])
    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_the_same_seed_chooses_the_same_points_as_without_it(self, make, dim, backend):
        """A loop over levels that are not sorted, with the seeds of a hierarchy."""
        cloud = random_cloud([300, 0, 200], dim)
        levels = make(cloud, RADII, max_neighbors=3, generator=seeded(5))
        finer, places = cloud, [torch.arange(500)]
        clouds = [cloud]
        for level, radius in enumerate(RADII):
            keep = pv.poisson_disk(finer, radius, levels._generator(0, level))
            finer = finer[keep]
            clouds.append(finer)
            places.append(places[-1][keep])
            assert torch.equal(unsorted(levels, level)[0], places[-1])
        for source, target in [(0, 0), (1, 1), (0, 1), (2, 1), (-1, 0), (0, -1)]:
            hood = levels._hood(levels._key(source, target, None, None))
            radius = 3.0 * RADII[max(min(source, target), 0)]
            pair = clouds[source + 1], clouds[target + 1]
            expected = pv.ball_query(*pair, radius, 3, levels._generator(1, source, target))
            assert self.pairs(hood) == self.pairs(expected)
            assert hood.total_counts.sum() == expected.total_counts.sum()

    @staticmethod
    def pairs(hood: Neighborhood) -> set[tuple[float, ...]]:
        both = hood.queries.points[hood.rows], hood.support.points[hood.indices]
        return {tuple(row) for row in torch.cat(both, 1).tolist()}

    def test_levels_stand_along_the_curve(self, backend, dim):
        levels = Hierarchy(random_cloud([300, 0, 200], dim), [0.02, 0.05], generator=seeded())
        first = levels.clouds[0]
        assert ops.spatial_order(first.points, first.offsets).tolist() == list(range(len(first)))
        assert levels.kept[1].diff().min() > 0  # part of the same order
        for cloud in levels.clouds:
            assert torch.equal(cloud.names.sort().values, torch.arange(len(cloud)))
            assert torch.equal(cloud.batch[cloud.names], cloud.batch)

    def test_a_curve_by_hand(self, backend):
        """Of the four quarters of a square, x counts before y."""
        points = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [7.0, 7.0]])
        assert ops.spatial_order(points, torch.tensor([0, 4, 4, 5])).tolist() == [3, 2, 1, 0, 4]

    @given(data=st.data())
    def test_native_order_is_the_reference(self, data, dim, dtype):
        cloud = data.draw(batches(dim, dtype, 0.03))
        expected = ops.reference.spatial_order(cloud.points, cloud.offsets)
        assert torch.equal(ops.spatial_order(cloud.points, cloud.offsets), expected)

    @pytest.mark.parametrize("extent", [0.0, 1e-300, 1e308])
    def test_order_of_odd_extents(self, extent, backend):
        points = torch.tensor([[1.0], [-1.0], [0.5], [1.0]], dtype=torch.float64) * extent
        order = ops.spatial_order(points, torch.tensor([0, 4]))
        assert order.sort().values.tolist() == [0, 1, 2, 3]
        assert torch.equal(order, ops.reference.spatial_order(points, torch.tensor([0, 4])))

    def test_no_other_order_is_needed_within(self):
        levels = Hierarchy(random_cloud([200]), RADII, generator=seeded())
        assert levels.within(0).orders() == (None, None)
        assert levels.up(1).orders() == (None, None)
        queries, support = levels.down(-1).orders()  # the input is as it was given
        assert queries.tolist() == list(range(len(levels.clouds[0])))
        assert torch.equal(support, ops.spatial_order(levels.input.points, levels.input.offsets))

    def test_a_level_may_be_an_input(self):
        """It is sorted already, and random choices know its points by their names."""
        first = Hierarchy(random_cloud([300]), [0.1], generator=seeded()).clouds[0]
        levels = Hierarchy(first, [0.2], max_neighbors=3, generator=seeded(1))
        plain = PointCloud(first.points[first.names.argsort()])
        expected = Hierarchy(plain, [0.2], max_neighbors=3, generator=seeded(1))
        assert levels.kept[0].diff().min() > 0
        assert {*first.names[levels.kept[0]].tolist()} == {*expected.kept[0].tolist()}
        assert self.pairs(levels.within(0)) == self.pairs(expected.within(0))


class TestNames:
    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (torch.arange(4), "number per point"),
            (torch.tensor([0, 1, 2, 4, 3]), "each once"),  # in the wrong cloud
            (torch.tensor([0, 1, 1, 3, 4]), "each once"),
            (torch.tensor([0, 1, -1, 3, 4]), "each once"),
            (torch.tensor([0, 1, 9, 3, 4]), "each once"),
        ],
    )
    def test_of_poisson_disks_are_the_numbers_of_the_points(self, names, message, backend):
        points, offsets = torch.rand(5, 3), torch.tensor([0, 4, 5])
        with pytest.raises(ValueError, match=message):
            ops.poisson_disk(points, offsets, torch.tensor([0.1, 0.1]), 1, names)

    def test_of_neighbours_are_as_many_as_points(self, backend):
        points, offsets = torch.rand(5, 3), torch.tensor([0, 5])
        for names in ((torch.arange(4), None), (None, torch.arange(6))):
            with pytest.raises(ValueError, match="number per point"):
                ops.ball_query(points, offsets, points, offsets, torch.tensor([0.5]), 2, 1, *names)

    def test_rename_the_choice(self, backend, dim):
        """Points in another order, named as they stood, have the same samplings and neighbours."""
        cloud = random_cloud([70, 0, 50], dim)
        order = torch.cat([torch.randperm(70, generator=seeded()), 70 + torch.randperm(50)])
        points, offsets, radius = cloud.points, cloud.offsets, torch.full((3,), 0.2)
        keep = ops.poisson_disk(points, offsets, radius, 5)
        named = ops.poisson_disk(points[order], offsets, radius, 5, order)
        assert {*order[named].tolist()} == {*keep.tolist()}
        assert poisson_disk_faults(points[order], offsets, 0.2, named) == []
        plain = ops.ball_query(points, offsets, points, offsets, radius, 2, 5)
        found = ops.ball_query(points[order], offsets, points[order], offsets, radius, 2, 5, order, order)
        rows = [torch.repeat_interleave(offsets.diff()) for offsets in (plain[0], found[0])]
        pairs = {*zip(rows[0].tolist(), plain[1].tolist(), strict=True)}
        assert {*zip(order[rows[1]].tolist(), order[found[1]].tolist(), strict=True)} == pairs


class Counting(pickle.Pickler):
    """Counts the storages that would travel."""

    def __init__(self) -> None:
        super().__init__(BytesIO())
        self.storages: set[int] = set()
        self.tensors = 0

    def reducer_override(self, value: object) -> object:
        if isinstance(value, Tensor):
            self.storages.add(value.untyped_storage().data_ptr())
            self.tensors += 1
        return NotImplemented


def planned(queries: bool = True, make: type[Hierarchy] = Hierarchy) -> Hierarchy:
    others = random_cloud([20, 0, 9], seed=1) if queries else None
    cloud = random_cloud([300, 0, 200])
    return make(cloud, RADII, 3.0, 4, seeded(), queries=others, hoods=HOODS, needs=ALL)


class TestTravel:
    @needs_native
    def test_few_tensors_are_pickled(self):
        """The two buffers of the one call, and what was given: points and offsets, joined by dtype."""
        counting = Counting()
        counting.dump(planned())
        assert counting.tensors == len(counting.storages) == 4

    @needs_native
    def test_the_buffers_of_the_one_call_are_not_copied(self):
        levels = planned()
        again = pickle.loads(pickle.dumps(levels))
        assert [len(buffer) for buffer in again._buffers[:2]] == [len(buffer) for buffer in levels._buffers]
        places = [t.untyped_storage().data_ptr() for t in (again.within(0).indices, again.clouds[0].points)]
        assert places == [buffer.data_ptr() for buffer in again._buffers[:2]]

    @pytest.mark.parametrize("make", [Hierarchy, one_by_one])
    def test_copies_have_all_that_was_made(self, make, monkeypatch):
        levels = planned(make=make)
        expected = dict(tensors(levels))
        copies = [pickle.loads(pickle.dumps(levels)), levels._moved(torch.clone)]
        copies.append(pickle.loads(pickle.dumps(copies[1])))
        for name in ("ball_query", "transpose", "kernel_density", "spatial_order"):
            monkeypatch.delattr(ops, name)  # nothing is computed again
        for copy in copies:
            assert dict(tensors(copy)).keys() == expected.keys()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(copy))
            assert copy.within(1).support is copy.within(1).queries is copy.clouds[1]
            assert copy.out().queries is copy.queries
            assert copy.down(-1, 2.0).support is copy.input
        assert copies[0].clouds[0].points.data_ptr() != levels.clouds[0].points.data_ptr()

    def test_what_is_asked_for_later_travels_too(self):
        levels = planned(queries=False)
        late = levels.down(1), levels.within(0, nearest=3)
        offsets = [hood.relative_positions() for hood in late]
        again = pickle.loads(pickle.dumps(levels))
        for hood, other, offset in zip(
            (again.down(1), again.within(0, nearest=3)), late, offsets, strict=True
        ):
            assert torch.equal(hood.indices, other.indices)
            assert torch.equal(hood._cache["offsets"][1], offset)
            assert torch.equal(hood.radius, other.radius)
        assert again.out() is again.up(0)
        assert torch.equal(
            again.within(-1).indices, levels.within(-1).indices
        )  # made only now, the same seed

    def test_to_another_device_and_not_back(self):
        levels = planned()
        moved = levels.to("meta")
        assert {tensor.device.type for _, tensor in tensors(moved)} == {"meta"}
        assert moved.input.device.type == moved.queries.device.type == "meta"
        assert moved.to("meta") is moved
        assert levels.to("cpu") is levels

    def test_pinned_once_per_buffer(self, monkeypatch):
        pinned: list[Tensor] = []

        def pin(tensor: Tensor) -> Tensor:
            pinned.append(tensor)
            return tensor.clone()

        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)  # pinning needs an accelerator
        levels = planned()
        copy = levels.pin_memory()
        assert len(pinned) <= 4
        assert_same(copy, levels)

    def test_stale_results_stay_behind(self):
        levels = planned(queries=False)
        levels.input.points.mul_(2)  # what was made with the old points is no longer true
        again = pickle.loads(pickle.dumps(levels))
        hood = again.down(-1, 2.0)
        expected = (again.input.points[hood.indices] - hood.queries.points[hood.rows]) / 0.2
        torch.testing.assert_close(hood.relative_positions(), expected)


def collate(clouds: list[Tensor]) -> Hierarchy:
    return Hierarchy(PointCloud.from_list(clouds), RADII, 3.0, 4, seeded(), hoods=HOODS, needs=ALL)


# Newer Pythons warn of any fork of a process with threads, which torch's loader makes by default.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_send_all_that_they_made(monkeypatch):
    data = [random_cloud([500 + i], seed=i).points for i in range(8)]
    expected = [collate(data[i : i + 2]) for i in range(0, 8, 2)]
    loader = DataLoader(
        data, batch_size=2, num_workers=2, collate_fn=collate, timeout=60, multiprocessing_context="fork"
    )
    for levels, other in zip(loader, expected, strict=True):
        assert_same(levels, other)
        assert {buffer.is_shared() for buffer in levels._buffers} == {True}
        assert "offsets" in levels.within(0)._cache


@pytest.mark.parametrize("value", [0.3, 2.0, 1e-14, 1e14, 1e-18, 7])
def test_one_number_per_cloud(value, dtype):
    cloud = random_cloud([3, 0, 2], dtype=dtype)
    values = pv.cloud.per_cloud(value, cloud, "radius")
    assert values.tolist() == torch.full((3,), value, dtype=dtype).tolist()
    assert values.dtype == dtype


class Own(pv.Estimator):
    def forward(self, hood: Neighborhood) -> Tensor:
        return hood.relative_positions().square().sum(1)


@pytest.mark.parametrize("network", [pv.models.Classifier, pv.models.SegmentationUNet])
@pytest.mark.parametrize("estimator", [Own, pv.estimator.LearnedDensity, pv.estimator.MonteCarlo])
def test_networks_of_any_estimator(network, estimator):
    """What an estimator says that it needs changes nothing but the time at which that is made."""
    cloud = random_cloud([150, 100])
    features = torch.ones(250, 1)
    model = network(1, 3, (pv.basis.Gaussian(8), estimator()), generator=seeded(), dropout=0.0).eval()
    plain = model.hierarchy(cloud, generator=seeded())
    plain._hoods.clear()
    for level in plain.clouds:
        level._cache.clear()
    plain.input._cache.clear()
    expected = model(features, plain)
    assert torch.equal(model(features, model.hierarchy(cloud, generator=seeded())), expected)
