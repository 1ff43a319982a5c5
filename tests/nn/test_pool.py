"""Pooling and interpolation of packed features, against loops."""

import pytest
import torch
from network_cases import clouds, features_of, seeded

import pointvar as pv
from pointvar.nn import at_kept, global_max, global_mean, interpolate

LENGTHS = (5, 0, 1, 7)


def per_cloud(features, cloud, reduce):
    parts = features.split(cloud.lengths.tolist())
    return torch.stack([reduce(p) if len(p) else torch.zeros(features.shape[1]).to(p) for p in parts])


def test_mean_and_max(dtype):
    cloud = clouds(*LENGTHS, dtype=dtype)
    features = features_of(cloud, 3) - 5  # so that no maximum is 0
    torch.testing.assert_close(
        global_mean(features, cloud), per_cloud(features, cloud, lambda part: part.mean(0))
    )
    assert torch.equal(global_max(features, cloud), per_cloud(features, cloud, lambda part: part.amax(0)))


def test_the_mean_is_summed_in_the_precision_of_the_points():
    """In float16 a sum above 65,504 would be infinite."""
    mean = global_mean(torch.full((1000, 2), 100.0).half(), clouds(1000))
    assert mean.dtype == torch.float16
    assert mean.tolist() == [[100.0, 100.0]]


@pytest.mark.parametrize("pool", [global_mean, global_max])
def test_gradients_of_pooling(pool):
    cloud = clouds(*LENGTHS, dtype=torch.float64)
    assert torch.autograd.gradcheck(pool, (features_of(cloud, 3).requires_grad_(), cloud))


@pytest.mark.parametrize("pool", [global_mean, global_max])
def test_pooling_of_nothing_and_of_the_wrong_rows(pool):
    assert pool(torch.ones(0, 3), clouds(0, 0)).tolist() == [[0.0] * 3] * 2
    with pytest.raises(ValueError, match=r"one row for each of the 5 points, got \[4, 3\]"):
        pool(torch.ones(4, 3), clouds(5))


def test_at_kept():
    cloud = clouds(60, 0, 30)
    levels = pv.Hierarchy(cloud, [0.2, 0.4], generator=seeded())
    first = at_kept(cloud.points, levels, 0)
    assert torch.equal(first, levels.clouds[0].points)
    assert torch.equal(at_kept(first, levels, 1), levels.clouds[1].points)
    for level in (2, -1):
        with pytest.raises(ValueError, match=f"no level {level}"):
            at_kept(first, levels, level)
    with pytest.raises(ValueError, match="one row for each"):
        at_kept(first, levels, 0)


def test_interpolate():
    cloud, queries = clouds(8, 0, 2, dtype=torch.float64), clouds(4, 0, 3, seed=1, dtype=torch.float64)
    queries.points[0] = cloud.points[3]  # a query at a point gets its value
    hood = pv.knn(cloud, queries, 3)
    features = features_of(cloud, 2)
    out = interpolate(features, hood)
    for x in range(len(queries)):
        neighbours = hood.indices[hood.row_offsets[x] : hood.row_offsets[x + 1]].tolist()
        if x == 0:
            torch.testing.assert_close(out[0], features[3], rtol=1e-6, atol=1e-6)
            continue
        squared = [((cloud.points[y] - queries.points[x]) ** 2).sum().item() for y in neighbours]
        expected = sum(features[y] / d for y, d in zip(neighbours, squared, strict=True))
        torch.testing.assert_close(out[x], expected / sum(1 / d for d in squared))
    with pytest.raises(ValueError, match="one row for each of the 10 points"):
        interpolate(features[1:], hood)
    with pytest.MonkeyPatch.context() as patch:  # what needs no gradient is made once
        patch.setattr(type(hood), "relative_positions", lambda hood: 1 / 0)
        assert torch.equal(interpolate(features, hood), out)
    constant = torch.full_like(features, 2.5)
    torch.testing.assert_close(interpolate(constant, hood), torch.full((7, 2), 2.5, dtype=torch.float64))


def test_gradients_of_interpolation():
    queries = clouds(4, 3, seed=1, dtype=torch.float64)
    features = features_of(clouds(6, 2, dtype=torch.float64), 2).requires_grad_()
    points = clouds(6, 2, dtype=torch.float64).points.clone().requires_grad_()

    def run(f, p):
        return interpolate(f, pv.knn(pv.PointCloud(p, [6, 2]), queries, 3))

    assert torch.autograd.gradcheck(run, (features, points))
