"""What every geometry function promises of chance and threads: a seed decides, and nothing else."""

import pytest
import torch
from strategies import random_cloud

from pointvar import ball_query, farthest_points, knn, poisson_disk

RANDOM = {
    "ball_query": lambda cloud, generator: ball_query(cloud, cloud, 0.1, 4, generator).indices,
    "poisson_disk": lambda cloud, generator: poisson_disk(cloud, 0.1, generator),
}
EXACT = {
    "ball_query": lambda cloud, generator: ball_query(cloud, cloud, 0.1, generator=generator).indices,
    "knn": lambda cloud, generator: knn(cloud, cloud, 8).indices,
    "farthest_points": lambda cloud, generator: farthest_points(cloud, count=50),
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("function", RANDOM.values(), ids=RANDOM)
def test_the_state_of_the_generator_decides(function, backend, generator):
    cloud = random_cloud([500])
    assert torch.equal(function(cloud, seeded(5)), function(cloud, seeded(5)))
    assert not torch.equal(function(cloud, seeded(5)), function(cloud, seeded(6)))
    assert not torch.equal(function(cloud, generator), function(cloud, generator))


@pytest.mark.parametrize("function", RANDOM.values(), ids=RANDOM)
def test_without_generator_torchs_global_one_decides(function, backend):
    cloud, results = random_cloud([500]), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(function(cloud, None))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("function", EXACT.values(), ids=EXACT)
def test_where_nothing_is_random_no_numbers_are_drawn(function, backend, generator):
    states = generator.get_state(), torch.get_rng_state()
    function(random_cloud([100]), generator)
    assert torch.equal(generator.get_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[1])


@pytest.mark.parametrize("function", [*RANDOM.values(), *EXACT.values()], ids=[*RANDOM, *EXACT])
def test_same_on_any_number_of_threads(function, threads, backend):
    cloud = random_cloud([20_000, 0, 3_000] if backend == "native" else [5_000, 0, 1_000])
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(function(cloud, seeded(0)))
    assert torch.equal(*results)
