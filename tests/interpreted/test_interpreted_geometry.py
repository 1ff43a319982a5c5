"""Geometry by Triton kernels: what brute force gives, and the choices at random that the CPU makes."""

import pytest
import torch
from host_waits import HostWaits
from oracles import (
    brute_ball_query,
    brute_density,
    brute_farthest_points,
    brute_knn,
    poisson_disk_faults,
    rows_of,
)
from strategies import random_cloud

import pointvar as pv
from pointvar.ops import backends, reference
from pointvar.ops import triton_geometry as fast


def cloud(kind, dim, dtype):
    """Two clouds and an empty one; rounded: duplicates, and distances of exactly the radius."""
    made = random_cloud([8, 0, 4], dim, dtype)
    if kind == "rounded":
        made.points.copy_((made.points * 4).round() / 4)
    if kind == "outlier":
        made.points[3] = 1e6
    return made.points, made.offsets


KINDS = ["uniform", "rounded", "outlier"]
PICKS = torch.tensor([4, 0, 2]), torch.tensor([0, 0, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_ball_query(kind, dim, dtype):
    pair = cloud(kind, dim, dtype) * 2
    radius = torch.tensor([0.25, 1.0, 0.5], dtype=dtype)
    row_offsets, indices, total = fast.ball_query(*pair, radius, -1, 0)
    assert rows_of(row_offsets, indices) == brute_ball_query(*pair, radius.tolist())
    assert torch.equal(total, row_offsets.diff())


@pytest.mark.parametrize("cap", [1, 3])
def test_random_cap(cap, dtype):
    """The same seed chooses what it chooses on the CPU, also by other names."""
    support, queries = cloud("uniform", 3, dtype), random_cloud([5, 2, 1], 3, dtype, 1)
    radius = torch.full((3,), 0.7, dtype=dtype)
    arguments = *support, queries.points, queries.offsets, radius, cap, 1 << 50
    for names in ((), (torch.randperm(12), torch.randperm(8))):
        for got, expected in zip(
            fast.ball_query(*arguments, *names), reference.ball_query(*arguments, *names), strict=True
        ):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_knn(kind, dim, dtype):
    support, queries = cloud(kind, dim, dtype), random_cloud([3, 1, 2], dim, dtype, 1)
    pair = *support, queries.points, queries.offsets
    for k in (1, 5):
        got, expected = fast.knn(*pair, k), reference.knn(*pair, k)
        assert rows_of(*got[:2]) == brute_knn(*pair, k)[0]
        assert all(map(torch.equal, got, expected))


@pytest.mark.filterwarnings("ignore:overflow")  # numpy, in the interpreter
def test_squares_that_overflow():
    cloud = pv.PointCloud(torch.tensor([[0.0], [1e20], [3e20], [1.0]]))
    hood = pv.knn(cloud, cloud, 3)
    assert rows_of(hood.row_offsets, hood.indices) == [[0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 3]]


@pytest.mark.parametrize("kind", KINDS)
def test_poisson_disk(kind, dim, dtype):
    points, offsets = cloud(kind, dim, dtype)
    radius = torch.tensor([0.25, 1.0, 0.5], dtype=dtype)
    keep = fast.poisson_disk(points, offsets, radius, 7)
    assert poisson_disk_faults(points, offsets, radius.tolist(), keep) == []
    assert torch.equal(keep, reference.poisson_disk(points, offsets, radius, 7))
    names = torch.cat([torch.randperm(8), 8 + torch.randperm(4)])
    renamed = fast.poisson_disk(points, offsets, radius, 7, names)
    assert torch.equal(renamed, reference.poisson_disk(points, offsets, radius, 7, names))


@pytest.mark.parametrize("kind", KINDS)
def test_farthest_points(kind, dim, dtype, monkeypatch):
    monkeypatch.setattr(fast, "CLOUD_BLOCK", 4)  # several blocks
    points, offsets = cloud(kind, dim, dtype)
    counts, start = [5, 0, 4], [3, 0, 3]
    got = fast.farthest_points(points, offsets, torch.tensor(counts), torch.tensor(start), 9)
    assert got.tolist() == brute_farthest_points(points, offsets, counts, start)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_density(kind, dim, dtype):
    points, offsets = cloud(kind, dim, dtype)
    bandwidth = torch.tensor([0.1, 1.0, 0.2], dtype=dtype)
    expected = torch.tensor(brute_density(points, offsets, bandwidth.tolist()), dtype=dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(
        fast.kernel_density(points, offsets, bandwidth), expected, rtol=tolerance, atol=0
    )
    grad = torch.linspace(-1, 2, len(points), dtype=dtype)
    slopes = reference.kernel_density_backward(grad, points, offsets, bandwidth)
    torch.testing.assert_close(
        fast.kernel_density_backward(grad, points, offsets, bandwidth),
        slopes,
        rtol=tolerance,
        atol=tolerance * float(slopes.abs().max()),
    )


def test_nothing_at_all():
    empty, some = random_cloud([0, 0]), random_cloud([2, 1])
    for support, queries in ((empty, some), (some, empty), (empty, empty)):
        for hood in (pv.ball_query(support, queries, 0.5), pv.knn(support, queries, 3)):
            assert hood.num_edges == 0
    assert len(pv.poisson_disk(empty, 0.1)) == len(pv.kernel_density(empty, 0.1)) == 0
    assert len(pv.farthest_points(empty, count=0)) == 0


def test_wrong_numbers_are_refused():
    points, offsets = cloud("uniform", 3, torch.float32)
    spoiled = points.clone()
    spoiled[3, 1] = torch.nan
    radius = torch.ones(3)
    for wrong in ((spoiled, offsets), (points, torch.tensor([0, 30, 10, 12]))):
        for call in (
            lambda pair: fast.ball_query(*pair, *pair, radius, -1, 0),
            lambda pair: fast.knn(*pair, *pair, 3),
            lambda pair: fast.poisson_disk(*pair, radius, 0),
            lambda pair: fast.kernel_density(*pair, radius),
        ):
            with pytest.raises(ValueError, match=r"finite|offsets"):
                call(wrong)


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (lambda pair, radius: fast.ball_query(*pair, *pair, radius, -1, 0), 2),
        (lambda pair, radius: fast.ball_query(*pair, *pair, radius, 2, 0), 2),
        (lambda pair, radius: fast.knn(*pair, *pair, 4), 3),
        (lambda pair, radius: fast.poisson_disk(*pair, radius, 0), 3),
        (lambda pair, radius: fast.kernel_density(*pair, radius), 1),
        (lambda pair, radius: fast.kernel_density_backward(pair[0][:, 0].contiguous(), *pair, radius), 1),
        (lambda pair, radius: fast.farthest_points(*pair, *PICKS, 6), 1),
    ],
    ids=["ball query", "random cap", "knn", "poisson disk", "density", "its gradient", "farthest points"],
)
def test_the_host_waits_a_few_times(call, most):
    pair = cloud("uniform", 3, torch.float32)
    with HostWaits() as seen:
        call(pair, torch.full((3,), 0.4))
    assert 1 <= seen.total <= most, seen.waits


def test_a_hierarchy_is_what_it_is_on_the_cpu(monkeypatch):
    """Levels and neighbours by Triton kernels, and by plain torch."""
    points, results = torch.rand(12, 3), []
    for kernels in (backends.BACKENDS, {}):
        monkeypatch.setattr(backends, "BACKENDS", kernels)
        generator = torch.Generator().manual_seed(3)
        levels = pv.Hierarchy(pv.PointCloud(points, [7, 5]), [0.3, 0.5], 2.0, 3, generator)
        hoods = levels.within(0), levels.down(0), levels.up(1)
        results.append([*levels.kept, *(hood.indices for hood in hoods)])
    assert all(map(torch.equal, *results))
