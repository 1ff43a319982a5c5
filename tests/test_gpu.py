"""On a GPU: what the CPU gives, the same bits every time, no waits. ``pytest -m cuda``, or ``make gpu``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from strategies import random_cloud
from torch import Tensor

import pointvar as pv
from pointvar.ops import backends

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]

DEVICE = "cuda"
CLOUD = random_cloud([700, 0, 300])


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    atol = tolerance * float(expected.detach().abs().max())
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=0, atol=atol)


def run(conv: torch.nn.Module, hood: pv.Neighborhood, channels: int = 24) -> list[Tensor]:
    """The result and all gradients of a layer."""
    device = hood.indices.device
    features = torch.randn(len(hood.support), channels, generator=seeded()).to(device).requires_grad_()
    conv = conv.to(device)
    out = conv(features, hood)
    weights = torch.sin(torch.arange(out.numel())).view_as(out).to(out)
    return [out, *torch.autograd.grad((out * weights).sum(), [features, *conv.parameters()])]


def test_triton_runs() -> None:
    assert backends.of(DEVICE).name == "triton", backends.describe(DEVICE)


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("name", pv.methods.METHODS)
def test_methods(name: str, unit: bool) -> None:
    options = {"radius": 0.2} if name == "PointConv" else {}
    conv = pv.methods.resolve(name, 24, 40, generator=seeded(), unit_response=unit, **options)
    hood = pv.ball_query(CLOUD, CLOUD, 0.2)
    expected = run(conv, hood)
    moved = hood.to(DEVICE)
    results = run(conv, moved)
    for got, wanted in zip(results, expected, strict=True):
        close(got, wanted)
    assert all(map(torch.equal, results, run(conv, moved)))  # the same bits
    features = torch.ones(len(CLOUD), 24)
    close(conv.second_moment(features.to(DEVICE), moved), conv.to("cpu").second_moment(features, hood))


@pytest.mark.parametrize(
    "choose",
    [
        lambda cloud: pv.ball_query(cloud, cloud, 0.2).indices,
        lambda cloud: pv.ball_query(cloud, cloud, 0.25).indices,
        lambda cloud: pv.ball_query(cloud, cloud, 0.3, 8, seeded()).indices,
        lambda cloud: pv.knn(cloud, cloud, 9).indices,
        lambda cloud: pv.poisson_disk(cloud, 0.1, seeded()),
        lambda cloud: pv.farthest_points(cloud, ratio=0.1),
        lambda cloud: pv.voxel_grid(cloud, 0.1).inverse,
        lambda cloud: pv.ball_query(cloud, cloud, 0.2).transposed().edges,
    ],
    ids=["ball query", "at the radius", "random cap", "knn", "disks", "farthest", "voxels", "transposed"],
)
@pytest.mark.parametrize("rounded", [False, True], ids=["uniform", "rounded"])
def test_geometry_has_the_bits_of_the_cpu(choose: Callable[[Any], Tensor], rounded: bool) -> None:
    """Also where distances are exactly the radius."""
    points = (CLOUD.points * 8).round() / 8 if rounded else CLOUD.points
    cloud = pv.PointCloud(points, CLOUD.lengths)
    assert torch.equal(choose(cloud.to(DEVICE)).cpu(), choose(cloud))


def test_density_and_its_gradient() -> None:
    results = []
    for device in ("cpu", DEVICE):
        points = CLOUD.points.clone().to(device).detach().requires_grad_()
        density = pv.kernel_density(pv.PointCloud(points, CLOUD.lengths.to(device)), 0.1)
        results.append([density, *torch.autograd.grad(density.log().sum(), points)])
    for expected, got in zip(*results, strict=True):
        close(got, expected)


def test_a_hierarchy_made_on_the_device() -> None:
    made = [pv.Hierarchy(CLOUD.to(device), [0.1, 0.2], 2.0, 8, seeded()) for device in ("cpu", DEVICE)]
    for levels in zip(*(levels.kept for levels in made), strict=True):
        assert torch.equal(levels[0], levels[1].cpu())
    for hood in (lambda levels: levels.within(0), lambda levels: levels.down(0), lambda levels: levels.up(1)):
        assert torch.equal(hood(made[0]).indices, hood(made[1]).indices.cpu())


def test_a_step_never_waits() -> None:
    """Once all is prepared: torch raises where the host would wait for the device."""
    hood = pv.ball_query(CLOUD, CLOUD, 0.2).to(DEVICE)
    conv = pv.KPConvN(24, 8)
    run(conv, hood)
    torch.cuda.set_sync_debug_mode("error")
    try:
        features = torch.randn(len(CLOUD), 24, device=DEVICE, requires_grad=True)
        conv(features, hood).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_autocast() -> None:
    hood, conv = pv.ball_query(CLOUD, CLOUD, 0.2), pv.KPConvN(24, 8, bias=False)
    expected = run(conv, hood)
    with torch.autocast(DEVICE, torch.bfloat16):
        results = run(conv, hood.to(DEVICE))
    assert results[0].dtype == torch.bfloat16
    for got, wanted in zip(results, expected, strict=True):
        close(got.float(), wanted, 3e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_compiles_as_one_graph() -> None:
    hood, conv = pv.ball_query(CLOUD, CLOUD, 0.2).to(DEVICE), pv.KPConvN(24, 8)
    expected = run(conv, hood)
    for got, wanted in zip(run(torch.compile(conv, fullgraph=True), hood), expected, strict=True):
        close(got, wanted.cpu())


def test_pinned_batches_are_the_same() -> None:
    levels = pv.Hierarchy(CLOUD, [0.1, 0.2], 2.0, 8, seeded(), hoods=[(0, 0, None)])
    moved = levels.pin_memory().to(DEVICE, non_blocking=True)
    assert torch.equal(moved.within(0).indices.cpu(), levels.within(0).indices)
    close(moved.within(0).relative_positions(), levels.within(0).relative_positions(), 0.0)
