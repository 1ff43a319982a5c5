"""Batches of small clouds that are hard for a grid: duplicates, lattices, cell borders, empty clouds."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from pointvar import PointCloud

MAX_POINTS = 16
SPACINGS = [0.1, 0.25, 1 / 3, 1.0, 7.3]  # two are exact in binary, the others are rounded


def _coordinates(size: int, dim: int) -> st.SearchStrategy[np.ndarray]:
    """Whole numbers (a lattice, with many duplicates), halves (cell borders) or anything between."""
    shape = (size, dim)
    whole = hnp.arrays(np.int64, shape, elements=st.integers(-3, 3)).map(np.float64)
    anything = hnp.arrays(np.float64, shape, elements=st.floats(-3, 3, width=32))
    return st.one_of(whole, whole.map(lambda x: x / 2), anything)


@st.composite
def batches(
    draw: st.DrawFn, dim: int, dtype: torch.dtype, spacing: float, num_clouds: int | None = None
) -> PointCloud:
    """A batch whose lattices have the given spacing; a third of the clouds is empty or one point."""
    count = draw(st.integers(1, 3)) if num_clouds is None else num_clouds
    sizes = st.one_of(st.integers(0, 1), st.integers(2, MAX_POINTS), st.integers(2, MAX_POINTS))
    clouds: list[Tensor] = []
    for _ in range(count):
        size = draw(sizes)
        shift = draw(st.sampled_from([0.0, 0.0, 1000.0]))
        clouds.append(torch.from_numpy(draw(_coordinates(size, dim)) + shift).to(dtype) * spacing)
    return PointCloud.from_list(clouds)


spacings = st.sampled_from(SPACINGS)
dims = st.sampled_from([1, 2, 3])
dtypes = st.sampled_from([torch.float32, torch.float64])


def radii(spacing: float) -> st.SearchStrategy[float]:
    """Often exactly the spacing of the lattice, so that neighbours lie exactly at the radius."""
    return st.sampled_from([1.0, 1.0, 2.0, 0.5, 1.7]).map(lambda factor: factor * spacing)


def one_or_each(spacing: float, num_clouds: int) -> st.SearchStrategy[float | list[float]]:
    """One radius for all clouds, or one for each."""
    each = st.lists(radii(spacing), min_size=num_clouds, max_size=num_clouds)
    return st.one_of(radii(spacing), each)


def random_cloud(
    lengths: list[int], dim: int = 3, dtype: torch.dtype = torch.float32, seed: int = 0
) -> PointCloud:
    """Uniform in the unit cube: for tests that need many points rather than odd ones."""
    generator = torch.Generator().manual_seed(seed)
    return PointCloud(torch.rand(sum(lengths), dim, generator=generator, dtype=dtype), lengths)
