"""The native kernels give what the reference defines: indices bit by bit, densities up to rounding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, radii, random_cloud, spacings

from pointvar.ops import native, reference

pytestmark = pytest.mark.skipif(not native.available, reason="the native kernels are not in use")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
RADIUS = {1: 1 / 256, 2: 1 / 16, 3: 1 / 8}  # some ten neighbours; exact in binary
KINDS = ["uniform", "rounded", "outlier"]
seeds = st.integers(0, (1 << 62) - 1)


def assert_identical(name: str, *args: object) -> None:
    got, expected = getattr(native, name)(*args), getattr(reference, name)(*args)
    if isinstance(expected, torch.Tensor):
        got, expected = [got], [expected]
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype == torch.int64
        assert torch.equal(a, b)


def assert_close(name: str, dtype: torch.dtype, *args: object) -> None:
    got, expected = getattr(native, name)(*args), getattr(reference, name)(*args)
    # A gradient is a sum of terms that may cancel: what counts is the error against the largest.
    slack = (
        TOLERANCE[dtype] * float(expected.abs().max()) if name.endswith("backward") and len(expected) else 0
    )
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=slack)


class TestOnOddClouds:
    @given(data=st.data(), cap=st.sampled_from([-1, 1, 3, 100]), seed=seeds)
    def test_ball_query(self, data, cap, seed, dim, dtype):
        spacing = data.draw(spacings)
        support = data.draw(batches(dim, dtype, spacing))
        queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
        radius = torch.tensor([data.draw(radii(spacing)) for _ in support.lengths], dtype=dtype)
        pair = (support.points, support.offsets, queries.points, queries.offsets)
        assert_identical("ball_query", *pair, radius, cap, seed)

    @given(data=st.data(), k=st.integers(1, 30))
    def test_knn(self, data, k, dim, dtype):
        spacing = data.draw(spacings)
        support = data.draw(batches(dim, dtype, spacing))
        queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
        assert_identical("knn", support.points, support.offsets, queries.points, queries.offsets, k)

    @given(data=st.data(), seed=seeds)
    def test_poisson_disk(self, data, seed, dim, dtype):
        spacing = data.draw(spacings)
        cloud = data.draw(batches(dim, dtype, spacing))
        radius = torch.tensor([data.draw(radii(spacing)) for _ in cloud.lengths], dtype=dtype)
        assert_identical("poisson_disk", cloud.points, cloud.offsets, radius, seed)

    @given(data=st.data(), count=st.integers(1, 24))
    def test_farthest_points(self, data, count, dim, dtype):
        cloud = data.draw(batches(dim, dtype, data.draw(spacings)))
        counts = cloud.lengths.clamp(max=count)
        start = (cloud.lengths - 1).clamp(min=0)
        assert_identical("farthest_points", cloud.points, cloud.offsets, counts, start, int(counts.sum()))

    @given(data=st.data())
    def test_kernel_density(self, data, dim, dtype):
        spacing = data.draw(spacings)
        cloud = data.draw(batches(dim, dtype, spacing))
        bandwidth = torch.tensor([data.draw(radii(spacing)) for _ in cloud.lengths], dtype=dtype)
        grad = torch.linspace(-1, 2, cloud.num_points, dtype=dtype)
        assert_close("kernel_density", dtype, cloud.points, cloud.offsets, bandwidth)
        assert_close("kernel_density_backward", dtype, grad, cloud.points, cloud.offsets, bandwidth)


class TestOnManyPoints:
    """Enough for several cells, blocks and threads, in clouds of very different size."""

    def cloud(
        self, dim: int, dtype: torch.dtype, kind: str, seed: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cloud = random_cloud([1000, 0, 1, 200], dim, dtype, seed)
        if kind == "rounded":  # many duplicates, many distances of exactly the radius
            return (cloud.points * 2 / RADIUS[dim]).round() * RADIUS[dim] / 2, cloud.offsets
        if kind == "outlier":
            cloud.points[17] = 1e5
        return cloud.points, cloud.offsets

    def lengths(self, dim: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([1, 5, 1, 2], dtype=dtype) * RADIUS[dim]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cap", [-1, 8])
    def test_ball_query(self, kind, cap, dim, dtype):
        radius = self.lengths(dim, dtype)
        support, queries = self.cloud(dim, dtype, kind), self.cloud(dim, dtype, kind, seed=1)
        assert_identical("ball_query", *support, *queries, radius, cap, 1 << 50)
        assert_identical("ball_query", *support, *support, radius, cap, 3)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("k", [1, 16, 300])
    def test_knn(self, kind, k, dim, dtype):
        support, queries = self.cloud(dim, dtype, kind), random_cloud([40, 20, 10, 30], dim, dtype, 1)
        assert_identical("knn", *support, queries.points, queries.offsets, k)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("seed", [0, 1 << 61])
    def test_poisson_disk(self, kind, seed, dim, dtype):
        assert_identical("poisson_disk", *self.cloud(dim, dtype, kind), self.lengths(dim, dtype), seed)

    @pytest.mark.parametrize("kind", KINDS)
    def test_farthest_points(self, kind, dim, dtype):
        counts, start = torch.tensor([150, 0, 1, 200]), torch.tensor([7, 0, 0, 199])
        assert_identical("farthest_points", *self.cloud(dim, dtype, kind), counts, start, 351)

    @pytest.mark.parametrize("kind", KINDS)
    def test_kernel_density(self, kind, dim, dtype):
        points, offsets = self.cloud(dim, dtype, kind)
        bandwidth = self.lengths(dim, dtype) / 2
        grad = torch.linspace(-1, 2, len(points), dtype=dtype)
        assert_close("kernel_density", dtype, points, offsets, bandwidth)
        assert_close("kernel_density_backward", dtype, grad, points, offsets, bandwidth)

    @pytest.mark.parametrize("cap", [8, 70, 150])
    def test_random_cap_of_crowded_rows(self, cap, dtype):
        """Rows of one to three hundred neighbours, more than are ranked all against all."""
        support = random_cloud([1000, 300], dtype=dtype)
        pair = (support.points, support.offsets) * 2
        assert_identical("ball_query", *pair, torch.tensor([0.4, 2.0], dtype=dtype), cap, 11)

    def test_transpose(self):
        cloud = random_cloud([2000, 0, 300])
        pair = (cloud.points, cloud.offsets) * 2
        row_offsets, indices, _ = reference.ball_query(*pair, torch.full((3,), 0.15), -1, 0)
        assert len(indices) > 2 << 14  # enough for two threads
        assert_identical("transpose", row_offsets, indices, 2300)
        assert_identical("transpose", torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int64), 4)


class TestOnEnoughPointsForThreads:
    """The native kernels share sorting, trees and rows among threads only from some 16,000 points on."""

    @pytest.fixture(autouse=True)
    def two_threads(self, threads: None) -> None:
        torch.set_num_threads(2)

    cloud = random_cloud([18_000, 0, 2_000])
    points, offsets = cloud.points, cloud.offsets
    radius = torch.tensor([0.05, 1.0, 0.1])

    def test_ball_query(self):
        assert_identical("ball_query", *(self.points, self.offsets) * 2, self.radius, 6, 5)

    def test_knn(self):
        assert_identical("knn", *(self.points, self.offsets) * 2, 8)

    def test_poisson_disk(self):
        assert_identical("poisson_disk", self.points, self.offsets, self.radius, 5)

    def test_farthest_points(self):
        counts, start = torch.tensor([300, 0, 300]), torch.tensor([17_999, 0, 5])
        assert_identical("farthest_points", self.points, self.offsets, counts, start, 600)

    def test_kernel_density(self):
        grad = torch.linspace(-1, 2, len(self.points))
        assert_close("kernel_density", torch.float32, self.points, self.offsets, self.radius / 3)
        assert_close(
            "kernel_density_backward", torch.float32, grad, self.points, self.offsets, self.radius / 3
        )


@given(data=st.data(), cap=st.sampled_from([-1, 2]))
def test_many_clouds(data, cap, dim, dtype):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing, 12))
    queries = data.draw(batches(dim, dtype, spacing, 12))
    pair = (support.points, support.offsets, queries.points, queries.offsets)
    radius = torch.full((12,), data.draw(radii(spacing)), dtype=dtype)
    assert_identical("ball_query", *pair, radius, cap, 3)
    assert_identical("knn", *pair, 5)
    assert_identical("knn", *pair[:2], *pair[:2], 5)
    assert_identical("poisson_disk", *pair[:2], radius, 3)
