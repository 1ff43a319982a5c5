"""farthest_points: each point the farthest from those before it, exactly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import brute_farthest_points
from strategies import batches, dims, dtypes, random_cloud, spacings

from pointvar import PointCloud, farthest_points


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes, count=st.integers(1, 24))
def test_equals_the_loop(data, count, dim, dtype, backend):
    cloud = data.draw(batches(dim, dtype, data.draw(spacings)))
    lengths = cloud.lengths.tolist()
    starts = [data.draw(st.integers(0, max(length - 1, 0))) for length in lengths]
    counts = [min(count, length) for length in lengths]
    expected = brute_farthest_points(cloud.points, cloud.offsets, counts, starts)
    assert farthest_points(cloud, count=count, start=starts).tolist() == expected


def test_equals_the_loop_on_many_points(dim, dtype, backend):
    cloud = random_cloud([400, 0, 1, 150], dim, dtype)
    expected = brute_farthest_points(cloud.points, cloud.offsets, [30, 0, 1, 30], [0] * 4)
    assert farthest_points(cloud, count=30).tolist() == expected
    assert farthest_points(cloud, count=15)[:15].tolist() == expected[:15]  # a prefix is a sampling too


def test_ties_go_to_the_lower_index(dim, dtype, backend, generator):
    lattice = torch.cartesian_prod(*[torch.arange(4, dtype=dtype)] * dim).view(-1, dim)
    cloud = PointCloud(lattice[torch.randperm(len(lattice), generator=generator)])
    expected = brute_farthest_points(cloud.points, cloud.offsets, [4**dim], [0])
    assert farthest_points(cloud, ratio=1.0).tolist() == expected


def test_count_per_cloud_and_more_than_there_are(backend):
    cloud = random_cloud([5, 0, 4])
    keep = farthest_points(cloud, count=[2, 1, 9])
    assert cloud.batch[keep].tolist() == [0, 0, 2, 2, 2, 2]
    assert sorted(keep[2:].tolist()) == [5, 6, 7, 8]


def test_start_is_the_first(backend):
    cloud = random_cloud([5, 4])
    assert farthest_points(cloud, count=1, start=3).tolist() == [3, 8]
    assert farthest_points(cloud, count=1, start=torch.tensor([4, 2])).tolist() == [4, 7]


@pytest.mark.parametrize(
    ("ratio", "counts"), [(1.0, [10, 1, 7]), (0.5, [5, 1, 4]), (0.1, [1, 1, 1]), (1e-9, [1, 1, 1])]
)
def test_ratio_is_rounded_up(ratio, counts, backend):
    cloud = random_cloud([10, 1, 7])
    assert torch.bincount(cloud.batch[farthest_points(cloud, ratio=ratio)]).tolist() == counts


@pytest.mark.parametrize(("part", "whole"), [(7, 13), (15, 19), (3, 21), (1, 3), (55, 100), (7, 100)])
def test_a_ratio_of_whole_numbers_gives_that_number(part, whole):
    assert len(farthest_points(random_cloud([whole]), ratio=part / whole)) == part


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        *[(a, ValueError, "either ratio or count") for a in ({}, {"ratio": 0.5, "count": 3})],
        *[({"ratio": r}, ValueError, "ratio must lie in") for r in (0.0, -0.5, 1.1, float("nan"))],
        *[({"count": c}, ValueError, "count must be at least 1") for c in (0, -1, [0, 1, 1], [2, -1, 1])],
        *[({"start": s}, ValueError, "start must name a point") for s in (5, -1, [0, 0, 3], [0, 1, 0])],
        *[({"count": c}, ValueError, "one integer for each of the 3") for c in ([1, 1], [1.0] * 3)],
        *[({"start": s}, ValueError, "one integer for each of the 3") for s in ([1, 1], torch.ones(3))],
        *[({name: 1.5}, TypeError, f"{name} must be an integer") for name in ("count", "start")],
    ],
)
def test_wrong_arguments(arguments, error, message):
    if "start" in arguments:
        arguments = {"count": 2, **arguments}
    with pytest.raises(error, match=message):
        farthest_points(random_cloud([5, 0, 3]), **arguments)


def test_an_empty_cloud_may_be_asked_for_nothing(backend):
    cloud = PointCloud(torch.rand(12, 3), [8, 0, 4])
    keep = farthest_points(cloud, count=cloud.lengths // 4)
    assert torch.bincount(cloud.batch[keep], minlength=3).tolist() == [2, 0, 1]
