"""ball_query with max_neighbors: a uniformly random subset, the same for the same generator."""

from collections import Counter
from functools import cache
from itertools import combinations, pairwise
from math import comb, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Rows, brute_ball_query, rows_of
from strategies import batches, dims, dtypes, radii, random_cloud, spacings

from pointvar import PointCloud, ball_query


def capped(support: PointCloud, queries: PointCloud, cap: int, seed: int = 0, radius: float = 0.5) -> Rows:
    hood = ball_query(support, queries, radius, cap, torch.Generator().manual_seed(seed))
    return rows_of(hood.row_offsets, hood.indices)


@settings(max_examples=40)
@given(data=st.data(), dim=dims, dtype=dtypes, cap=st.integers(1, 6), seed=st.integers(0, 1 << 40))
def test_keeps_a_subset_of_exactly_the_right_size(data, cap, seed, dim, dtype, backend):
    spacing = data.draw(spacings)
    support = data.draw(batches(dim, dtype, spacing))
    queries = data.draw(batches(dim, dtype, spacing, support.num_clouds))
    radius = data.draw(radii(spacing))
    every = brute_ball_query(support.points, support.offsets, queries.points, queries.offsets, radius)
    hood = ball_query(support, queries, radius, cap, torch.Generator().manual_seed(seed))
    assert hood.total_counts.tolist() == [len(row) for row in every]
    for kept, row in zip(rows_of(hood.row_offsets, hood.indices), every, strict=True):
        assert len(kept) == min(cap, len(row))
        assert kept == sorted(set(kept) & set(row))


POINTS, CAP, DRAWS = 12, 4, 400


@cache
def draws_over_queries(backend: str) -> Rows:
    """One seed, many queries at the same place."""
    support = random_cloud([POINTS])
    return capped(support, PointCloud(torch.full((DRAWS, 3), 0.5)), CAP, radius=10.0)


@cache
def draws_over_seeds(backend: str) -> Rows:
    """One query, many seeds."""
    support, query = random_cloud([POINTS]), PointCloud(torch.full((1, 3), 0.5))
    return [capped(support, query, CAP, seed, radius=10.0)[0] for seed in range(DRAWS)]


@pytest.mark.parametrize("draws", [draws_over_queries, draws_over_seeds])
@pytest.mark.parametrize("size", [1, 2])
def test_every_neighbour_and_every_pair_is_equally_likely(draws, size, backend):
    """A set of this size is in a draw with probability p, so its count is binomial: within 5 standard
    deviations but for 6e-7 of cases, and there are at most 66 such sets."""
    seen = Counter(group for row in draws(backend) for group in combinations(row, size))
    p = comb(POINTS - size, CAP - size) / comb(POINTS, CAP)
    for group in combinations(range(POINTS), size):
        assert abs(seen[group] - DRAWS * p) < 5 * sqrt(DRAWS * p * (1 - p)), group


@pytest.mark.parametrize("draws", [draws_over_queries, draws_over_seeds])
def test_neighbouring_draws_are_independent(draws, backend):
    """Two draws agree with probability 1/495: 0.8 expected pairs; 9 or more have probability 2e-7."""
    assert sum(a == b for a, b in pairwise(draws(backend))) < 9
