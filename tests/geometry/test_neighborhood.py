"""Neighborhood: rows of neighbours, their two transposed forms, and what may be kept of them."""

import pickle

import pytest
import torch
from oracles import brute_transpose, rows_of
from strategies import random_cloud

from pointvar import Neighborhood, PointCloud, ball_query, kernel_density, knn


@pytest.fixture
def hood() -> Neighborhood:
    """Two clouds and an empty one; some queries see nothing."""
    support, queries = random_cloud([20, 0, 12], seed=1), random_cloud([9, 3, 6], seed=2)
    result = ball_query(support, queries, 0.3)
    assert 0 in result.counts[:9]
    return result


def make_knn(cloud: PointCloud) -> Neighborhood:
    return knn(cloud, cloud, 4)


def make_edges(cloud: PointCloud) -> Neighborhood:
    return Neighborhood.from_edge_index(torch.tensor([[1, 2, 0, 3], [0, 0, 1, 3]]), cloud)


class TestRows:
    def test_rows_and_counts_follow_from_the_offsets(self, hood):
        rows = rows_of(hood.row_offsets, hood.indices)
        assert hood.counts.tolist() == [len(row) for row in rows]
        assert hood.rows.tolist() == [query for query, row in enumerate(rows) for _ in row]
        assert hood.num_edges == sum(map(len, rows))

    def test_all_integers_are_int64(self, hood):
        parts = (hood.row_offsets, hood.indices, hood.rows, hood.counts, hood.total_counts, hood.edge_index)
        assert {part.dtype for part in parts} == {torch.int64}

    def test_counts_are_kept_and_total_counts_true(self):
        cloud = random_cloud([200])
        every, capped = ball_query(cloud, cloud, 0.3), ball_query(cloud, cloud, 0.3, max_neighbors=5)
        assert every.counts.max() > 5
        assert torch.equal(every.total_counts, every.counts)
        assert torch.equal(capped.total_counts, every.counts)
        assert torch.equal(capped.counts, every.counts.clamp(max=5))

    def test_radius_has_one_value_per_query(self):
        support, queries = random_cloud([5, 0, 4], seed=1), random_cloud([2, 1, 3], seed=2)
        radius = ball_query(support, queries, [0.5, 0.25, 2.0]).radius
        assert radius.tolist() == [0.5, 0.5, 0.25, 2.0, 2.0, 2.0]
        assert ball_query(support, queries, 0.5).radius.tolist() == [0.5] * 6

    def test_repr_shows_the_sizes(self, hood):
        assert repr(hood).startswith("Neighborhood(18 queries, 32 support points, ")
        assert f"{hood.num_edges} edges" in repr(hood)


class TestEdgeIndex:
    def test_has_sources_above_targets(self, hood):
        rows = rows_of(hood.row_offsets, hood.indices)
        expected = [(point, query) for query, row in enumerate(rows) for point in row]
        assert list(map(tuple, hood.edge_index.T.tolist())) == expected

    def test_round_trip_in_any_order(self, hood, generator):
        shuffled = hood.edge_index[:, torch.randperm(hood.num_edges, generator=generator)]
        assert not torch.equal(shuffled, hood.edge_index)
        again = Neighborhood.from_edge_index(shuffled, hood.support, hood.queries, radius=0.3)
        assert torch.equal(again.row_offsets, hood.row_offsets)
        assert torch.equal(again.indices, hood.indices)
        assert torch.equal(again.counts, again.total_counts)
        assert torch.equal(again.relative_positions(), hood.relative_positions())

    def test_round_trip_of_knn_keeps_the_radius(self):
        cloud = random_cloud([30, 20])
        hood = knn(cloud, cloud, 5)
        again = Neighborhood.from_edge_index(hood.edge_index, cloud)
        assert again.queries is cloud
        assert torch.equal(again.radius, hood.radius)

    def test_a_query_without_edges_has_radius_0(self):
        cloud = PointCloud(torch.tensor([[0.0], [1.0], [3.0]]))
        hood = Neighborhood.from_edge_index(torch.tensor([[1, 2], [0, 0]]), cloud)
        assert hood.counts.tolist() == [2, 0, 0]
        assert hood.radius.tolist() == [3.0, 0.0, 0.0]

    def test_no_edges_at_all(self):
        cloud = random_cloud([3])
        hood = Neighborhood.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), cloud)
        assert hood.row_offsets.tolist() == [0, 0, 0, 0]
        assert hood.radius.tolist() == [0, 0, 0]
        assert hood.relative_positions().shape == (0, 3)

    @pytest.mark.parametrize("radius", [0.5, [0.5, 0.5], torch.tensor([0.5, 0.5, 0.5, 0.5])])
    def test_radius_as_number_per_cloud_or_per_query(self, radius):
        cloud = random_cloud([2, 2])
        hood = Neighborhood.from_edge_index(torch.tensor([[1], [0]]), cloud, radius=radius)
        assert hood.radius.tolist() == [0.5] * 4

    @pytest.mark.parametrize(
        ("edges", "error", "message"),
        [
            *[
                (torch.zeros(shape).long(), ValueError, r"shape \[2, E\]")
                for shape in ((3, 4), (4,), (2, 4, 1))
            ],
            *[(x, TypeError, "int64") for x in (torch.zeros(2, 3), torch.zeros(2, 3).int(), [[0], [0]])],
            *[(torch.tensor([[x], [0]]), ValueError, "names support points") for x in (4, -1)],
            *[(torch.tensor([[0], [x]]), ValueError, "names query points") for x in (3, -1)],
            (torch.tensor([[0], [2]]), ValueError, "different clouds"),
        ],
    )
    def test_rejects(self, edges, error, message):
        with pytest.raises(error, match=message):
            Neighborhood.from_edge_index(edges, random_cloud([2, 2]), random_cloud([2, 1]))

    @pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), torch.tensor([1.0, 1.0, 0.0, 1.0])])
    def test_rejects_bad_radii(self, radius):
        with pytest.raises(ValueError, match="radius must be positive"):
            Neighborhood.from_edge_index(torch.tensor([[1], [0]]), random_cloud([2, 2]), radius=radius)


class TestRelativePositions:
    @pytest.mark.parametrize("kind", ["ball", "knn"])
    def test_equal_the_loop(self, kind, dim, dtype):
        support, queries = random_cloud([20, 9], dim, dtype, 1), random_cloud([8, 7], dim, dtype, 2)
        hood = ball_query(support, queries, [0.5, 0.7]) if kind == "ball" else knn(support, queries, 4)
        expected = torch.stack(
            [
                (support.points[point] - queries.points[query]) / hood.radius[query]
                for query, row in enumerate(rows_of(hood.row_offsets, hood.indices))
                for point in row
            ]
        )
        torch.testing.assert_close(hood.relative_positions(), expected, rtol=0, atol=0)
        assert hood.relative_positions().norm(dim=1).max() <= 1 + 1e-6  # rounding of root and quotient

    def test_are_0_where_the_radius_is_0(self):
        points = torch.rand(5, 3, requires_grad=True)
        cloud = PointCloud(points)
        hood = knn(cloud, cloud, 1)
        assert hood.radius.tolist() == [0] * 5
        assert hood.relative_positions().tolist() == [[0, 0, 0]] * 5
        hood.relative_positions().sum().backward()
        assert points.grad is not None
        assert points.grad.eq(0).all()

    @pytest.mark.parametrize("make", [make_knn, make_edges, lambda c: ball_query(c, c, 0.6)])
    def test_gradient_within_one_cloud(self, make, dim):
        points = random_cloud([5, 3], dim, torch.float64).points.requires_grad_()
        assert torch.autograd.gradcheck(lambda p: make(PointCloud(p, [5, 3])).relative_positions(), points)

    @pytest.mark.parametrize("make", [lambda s, q: knn(s, q, 3), lambda s, q: ball_query(s, q, 0.6)])
    def test_gradient_in_support_and_queries(self, make, dim):
        support = random_cloud([5], dim, torch.float64, 1).points.requires_grad_()
        queries = random_cloud([3], dim, torch.float64, 2).points.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda s, q: make(PointCloud(s), PointCloud(q)).relative_positions(), (support, queries)
        )

    @pytest.mark.parametrize("make", [make_knn, make_edges, lambda c: ball_query(c, c, 0.5)])
    def test_follow_points_that_are_changed_in_place(self, make):
        cloud = random_cloud([8])
        hood = make(cloud)
        assert hood.relative_positions().abs().max() > 0  # whatever is kept is kept now
        cloud.points.mul_(2)
        scale = torch.where(hood.radius > 0, hood.radius, 1.0)[hood.rows, None]
        offsets = (cloud.points[hood.indices] - cloud.points[hood.rows]) / scale
        torch.testing.assert_close(hood.relative_positions(), offsets)

    @pytest.mark.parametrize("make", [make_knn, make_edges])
    def test_radius_follows_points_that_are_changed_in_place(self, make):
        cloud = random_cloud([8])
        hood = make(cloud)
        before = hood.radius.clone()
        cloud.points.mul_(2)
        torch.testing.assert_close(hood.radius, 2 * before)

    def test_coinciding_points_give_finite_gradients(self):
        points = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
        cloud = PointCloud(points)
        knn(cloud, cloud, 3).relative_positions().square().sum().backward()
        assert points.grad is not None
        assert points.grad.isfinite().all()


class TestTransposed:
    def test_equals_the_loop(self, hood, backend):
        queries, edges = brute_transpose(rows_of(hood.row_offsets, hood.indices), hood.support.num_points)
        transposed = hood.transposed()
        assert rows_of(transposed.row_offsets, transposed.indices) == queries
        assert rows_of(transposed.row_offsets, transposed.edges) == edges

    def test_is_made_once(self, hood):
        assert hood.transposed() is hood.transposed()
        assert hood.rows is hood.rows

    def test_without_edges(self, backend):
        hood = ball_query(random_cloud([3, 0]), random_cloud([0, 2]), 0.1)
        assert hood.transposed().row_offsets.tolist() == [0, 0, 0, 0]
        assert hood.transposed().edges.tolist() == []


KEPT = {
    "radius of knn": (make_knn, lambda hood: hood.radius),
    "radius of edges": (make_edges, lambda hood: hood.radius),
    "offsets": (make_knn, lambda hood: hood.relative_positions()),
    "density": (lambda cloud: cloud, lambda cloud: kernel_density(cloud, 0.4)),
}


@pytest.mark.parametrize(("make", "get"), KEPT.values(), ids=KEPT)
class TestGradientsAreNeverLost:
    """What is kept may carry no gradients, nor lack them where they are needed later."""

    def test_first_asked_without_gradients(self, make, get):
        holder = make(PointCloud(torch.rand(6, 3, requires_grad=True)))
        with torch.no_grad():
            assert not get(holder).requires_grad
        assert get(holder).requires_grad

    def test_points_that_need_gradients_only_later(self, make, get):
        points = torch.rand(6, 3)
        holder = make(PointCloud(points))
        assert not get(holder).requires_grad
        points.requires_grad_()
        assert get(holder).requires_grad

    def test_two_backward_passes(self, make, get):
        """A graph that is kept could be walked only once."""
        points = torch.rand(6, 3, requires_grad=True)
        holder, gradients = make(PointCloud(points)), []
        for _ in range(2):
            points.grad = None
            get(holder).square().sum().backward()
            gradients.append(points.grad)
        assert torch.equal(*gradients)
        assert gradients[0].ne(0).any()

    def test_what_inference_mode_made_does_not_break_training(self, make, get):
        holder = make(random_cloud([6]))
        with torch.inference_mode():
            made = get(holder).clone()
        weights = torch.ones(made.shape, requires_grad=True)
        (weights * get(holder)).sum().backward()
        assert torch.equal(weights.grad, made)


def test_rows_that_inference_mode_made_do_not_break_training():
    hood = make_knn(random_cloud([6]))
    with torch.inference_mode():
        assert hood.rows.tolist() == [query for query in range(6) for _ in range(4)]
        assert len(hood.transposed().edges) == 24
    weights = torch.ones(6, requires_grad=True)
    (weights[hood.rows] + weights[hood.transposed().indices]).sum().backward()
    assert weights.grad.tolist() == [8.0] * 6


class TestCopies:
    def test_to_moves_every_part(self, hood):
        moved = hood.to("meta")
        parts = (moved.row_offsets, moved.indices, moved.total_counts, moved.radius)
        devices = {part.device.type for part in parts}
        assert devices | {moved.support.device.type, moved.queries.device.type} == {"meta"}

    def test_to_keeps_queries_that_are_the_support(self):
        cloud = random_cloud([5])
        same = ball_query(cloud, cloud, 0.5).to("meta")
        assert same.support is same.queries
        other = ball_query(cloud, random_cloud([5]), 0.5).to("meta")
        assert other.support is not other.queries

    def test_pin_memory_keeps_queries_that_are_the_support(self, monkeypatch):
        monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # pinning needs an accelerator
        cloud = random_cloud([5])
        pinned = knn(cloud, cloud, 2).pin_memory()
        assert pinned.support is pinned.queries
        assert pinned.support is not cloud
        assert torch.equal(pinned.indices, knn(cloud, cloud, 2).indices)

    @pytest.mark.parametrize("make", [make_knn, lambda c: ball_query(c, c, 0.5)])
    def test_pickle(self, make):
        hood = make(random_cloud([8, 5]))
        expected = hood.relative_positions(), hood.transposed().edges
        again = pickle.loads(pickle.dumps(hood))
        assert again.support is again.queries
        assert torch.equal(again.relative_positions(), expected[0])
        assert torch.equal(again.transposed().edges, expected[1])
        assert torch.equal(again.total_counts, hood.total_counts)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_orders_keep_clouds_and_neighbours_together(dim):
    generator = torch.Generator().manual_seed(dim)
    support = PointCloud(torch.rand(900, dim, generator=generator), lengths=[400, 0, 500])
    queries = PointCloud(torch.rand(300, dim, generator=generator), lengths=[100, 100, 100])
    hood = ball_query(support, queries, 0.2)
    for order, cloud in zip(hood.orders(), (queries, support), strict=True):
        assert torch.equal(order.sort().values, torch.arange(len(cloud)))
        assert torch.equal(cloud.batch[order], cloud.batch)
        steps = cloud.points[order].diff(dim=0).norm(dim=1).mean()
        assert steps < 0.5 * cloud.points.diff(dim=0).norm(dim=1).mean()  # at random they would be equal
