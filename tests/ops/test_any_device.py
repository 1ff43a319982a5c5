"""Plain torch as it would run on a device: how often the host waits, and no digits where there are none."""

import pytest
import torch
from host_waits import HostWaits
from oracles import brute_ball_query, brute_knn, rows_of
from strategies import random_cloud
from torch.utils._python_dispatch import TorchDispatchMode

import pointvar as pv
from pointvar.ops import Edges, Values, grid, reference, reference_convolve

CLOUD = random_cloud([600, 0, 300])
PAIR = (CLOUD.points, CLOUD.offsets)
RADIUS = torch.full((3,), 0.2)


def waits(function, *arguments):
    with HostWaits() as seen:
        function(*arguments)
    return seen.total


def edges(rows=400, support=300):
    counts = torch.randint(0, 40, (rows,))
    row_offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    count = int(row_offsets[-1])
    return Edges(row_offsets, torch.randint(support, (count,)), Values(torch.rand(count, 4)))


def test_waits_are_counted():
    """By whatever name they are asked for."""
    x = torch.arange(3.0)
    for wait in (
        lambda: x[0].item(),
        lambda: x.tolist(),
        lambda: bool(x.sum() > 1),
        lambda: x[x > 1],
        lambda: torch.repeat_interleave(x.long()),
        lambda: x.unique(),
        lambda: x.nonzero(),
        lambda: torch.bincount(x.long()),
    ):
        assert waits(wait) == 1
    assert waits(lambda: torch.repeat_interleave(x.long(), output_size=3) + x[torch.tensor([0, 1, 2])]) == 0


@pytest.mark.parametrize("size", [1 << 10, 1 << 26])
def test_a_convolution_waits_once_for_each_list_of_edges(size, monkeypatch):
    monkeypatch.setattr(reference_convolve, "BYTES", size)
    features, weight, hood = torch.rand(300, 5), torch.rand(4, 5, 6), edges()
    assert waits(reference_convolve.convolve, features, weight, None, hood) == 1
    assert waits(reference_convolve.second_moment, features, hood) == 1
    out, norm = reference_convolve.convolve(features, weight, None, hood)
    transposed = pv.ops.transpose(hood.row_offsets, hood.indices, 300)
    told = hood._replace(transposed=lambda: transposed)
    wanted = [True, True, True, False, False]
    assert waits(reference_convolve.convolve_backward, out, norm, features, weight, told, wanted) == 2


@pytest.mark.parametrize(
    ("name", "arguments", "most"),
    [
        ("ball_query", (*PAIR, *PAIR, RADIUS, -1, 0), 3),
        ("ball_query", (*PAIR, *PAIR, RADIUS, 4, 0), 4),
        ("transpose", (torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]), 3), 1),
        ("kernel_density", (*PAIR, RADIUS), 3),
        ("kernel_density_backward", (CLOUD.points[:, 0].contiguous(), *PAIR, RADIUS), 3),
        ("spatial_order", PAIR, 1),
        ("farthest_points", (*PAIR, torch.tensor([50, 0, 20]), torch.tensor([0, 0, 3]), 70), 1),
    ],
)
def test_geometry_waits_a_few_times(name, arguments, most):
    assert 1 <= waits(getattr(reference, name), *arguments) <= most


def test_searches_in_rounds_wait_a_few_times_a_round():
    rounds = 4  # as many as it takes here
    assert waits(reference.knn, *PAIR, *PAIR, 8) <= 2 + 4 * rounds
    assert waits(reference.poisson_disk, *PAIR, RADIUS, 3) <= 2 + 2 * 2 * rounds
    assert waits(pv.voxel_grid, CLOUD, 0.1) <= 5


def test_given_edges_and_chosen_points_wait_a_few_times():
    pairs = pv.ball_query(CLOUD, CLOUD, 0.2).edge_index
    assert waits(pv.Neighborhood.from_edge_index, pairs, CLOUD) <= 2
    assert waits(CLOUD.__getitem__, torch.arange(0, 900, 3)) <= 2


class Writers(TorchDispatchMode):
    """Operators that add up what several threads of a GPU write, in any order."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        self.seen |= {name} & {"index_add", "index_add_", "scatter_add", "scatter_add_", "bincount"}
        return func(*args, **(kwargs or {}))


def test_a_convolution_has_the_same_bits_on_any_device():
    """Nothing is added up by several writers, also where values are divided by their response."""
    hood = edges()
    values = hood.values.requires_grad_()
    features, weight = torch.rand(300, 5, requires_grad=True), torch.rand(4, 5, 6, requires_grad=True)
    with Writers() as seen:
        assert not seen.seen
        torch.zeros(3).index_add(0, torch.tensor([0]), torch.ones(1))
        assert seen.seen == {"index_add"}  # they are noticed
        seen.seen.clear()
        told = hood._replace(functions=Values(values), unit_response=True).evaluated()
        torch.autograd.grad(told.values.square().sum(), values)
        plain = told.on(told.values.detach(), None, None)
        out, norm = reference_convolve.convolve(features.detach(), weight.detach(), None, plain)
        wanted = [True, True, True, False, False]
        reference_convolve.convolve_backward(out, norm, features.detach(), weight.detach(), plain, wanted)
        phi = reference_convolve.project(features.detach(), plain)
        reference_convolve.project_backward(phi, features.detach(), plain, [True, True])
    assert not seen.seen


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_cells_in_float32(dim, scale, monkeypatch):
    """On devices that have no float64, neighbours must not be missed for want of digits."""
    monkeypatch.setattr(grid, "widest", lambda device: torch.float32)
    cloud = random_cloud([400, 100], dim)
    points = torch.cat([cloud.points * 0.01, cloud.points[:20] * scale])
    offsets = torch.tensor([0, 400, 520])
    pair = (points, offsets) * 2
    radius = 0.003
    found = reference.ball_query(*pair, torch.full((2,), radius), -1, 0)
    assert rows_of(*found[:2]) == brute_ball_query(*pair, radius)
    assert rows_of(*reference.knn(*pair, 3)[:2]) == brute_knn(*pair, 3)[0]


def test_cells_that_are_too_many_to_be_numbered(monkeypatch):
    """Larger cells then, with the same result."""
    monkeypatch.setattr(grid, "LARGEST_KEY", 2000.0)
    pair = PAIR * 2
    found = reference.ball_query(*pair, torch.full((3,), 0.05), -1, 0)
    assert rows_of(*found[:2]) == brute_ball_query(*pair, 0.05)


def test_many_chunks_give_the_same(monkeypatch):
    whole = reference.ball_query(*PAIR, *PAIR, RADIUS, 4, 1), reference.knn(*PAIR, *PAIR, 5)
    disks = reference.poisson_disk(*PAIR, RADIUS, 1)
    monkeypatch.setattr(reference, "CHUNK", 100)
    parts = reference.ball_query(*PAIR, *PAIR, RADIUS, 4, 1), reference.knn(*PAIR, *PAIR, 5)
    assert all(
        torch.equal(a, b) for x, y in zip(whole, parts, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert torch.equal(disks, reference.poisson_disk(*PAIR, RADIUS, 1))
