"""Plain torch and the Triton kernels on a device that is pretended (``pretended.py``), as strict as a GPU."""

import pytest
import torch
from host_waits import HostWaits
from strategies import random_cloud

import pointvar as pv
from pointvar.ops import Edges, Values, backends, reference

if backends.of("cpu").name == "triton":  # or all here is skipped
    from pretended import DEVICE, Far, Pretended
    from triton.runtime import interpreter

CLOUD = random_cloud([8, 0, 4])
PAIR = CLOUD.points, CLOUD.offsets
RADIUS = torch.full((3,), 0.4)
GEOMETRY = {
    "ball query": ("ball_query", (*PAIR, *PAIR, RADIUS, -1, 0)),
    "random cap": ("ball_query", (*PAIR, *PAIR, RADIUS, 2, 0)),
    "knn": ("knn", (*PAIR, *PAIR, 4)),
    "disks": ("poisson_disk", (*PAIR, RADIUS, 0)),
    "farthest": ("farthest_points", (*PAIR, torch.tensor([4, 0, 2]), torch.tensor([0, 0, 0]), 6)),
    "density": ("kernel_density", (*PAIR, RADIUS)),
    "its gradient": ("kernel_density_backward", (CLOUD.points[:, 0].contiguous(), *PAIR, RADIUS)),
    "order": ("spatial_order", PAIR),
    "transpose": ("transpose", (torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]), 3)),
}


@pytest.fixture(params=["reference", "triton"])
def backend(request, monkeypatch):
    """The one that serves the device; kernels are started with what is behind its tensors."""
    chosen = {"reference": backends.PLAIN, "triton": backends.TRITON}[request.param]
    monkeypatch.setattr(backends, "BACKENDS", {DEVICE.type: chosen})
    start = interpreter.GridExecutor.__call__

    def started(self, *arguments, **options):
        assert len({isinstance(a, Far) for a in arguments if isinstance(a, torch.Tensor)}) == 1
        return start(self, *(a.near if isinstance(a, Far) else a for a in arguments), **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", started)
    return chosen


def moved(parts):
    return [part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in parts]


def test_the_device_is_strict():
    with Pretended() as device:
        x = torch.arange(3.0).to(DEVICE)
        assert device.total == 1
        with pytest.raises(RuntimeError, match="of the device and of the CPU"):
            x + torch.arange(3.0)
        assert device.total == 1
        for number, wait in enumerate(
            (
                lambda: x[0].item(),
                lambda: x.tolist(),
                lambda: bool(x.sum() > 1),
                lambda: x[x > 1],
                lambda: torch.repeat_interleave(x.long()),
                lambda: x.unique(),
                lambda: x.nonzero(),
                lambda: torch.equal(x, x),
                lambda: x.index_put_((x > 9,), x[:1]),
                lambda: x.cpu(),
            )
        ):
            wait()
            assert device.total == number + 2
        torch.repeat_interleave(x.long(), output_size=3) + x[torch.arange(3, device=DEVICE)]
        assert device.total == number + 2


def both(run, arguments):
    """What is found on the device, among no tensor of the CPU, and on the CPU; and the waits of each."""
    with Pretended() as device:
        there = moved(arguments)
        device.waits.clear()
        result = run(*there)
    with HostWaits() as here:
        expected = run(*arguments)
    for got, wanted in zip(several(result), several(expected), strict=True):
        if wanted is not None:
            torch.testing.assert_close(got.near, wanted)
    return device.total, here.total


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry(name, backend):
    """As many waits as are counted on the CPU."""
    function, arguments = GEOMETRY[name]
    there, here = both(getattr(backend.geometry, function, getattr(reference, function)), arguments)
    assert there == here


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
def test_a_convolution_and_its_gradients(unit, backend):
    row_offsets, indices = torch.tensor([0, 3, 3, 8]), torch.tensor([0, 2, 5, 1, 2, 3, 4, 5])
    numbers = torch.rand(6, 3), torch.rand(4, 3, 2), torch.rand(2), torch.rand(8, 4)
    columns = reference.transpose(row_offsets, indices, 6)
    kernels = backend.convolution
    unit = unit and kernels.DIVIDES

    def run(features, weight, bias, values, row_offsets, indices, *columns):
        edges = Edges(row_offsets, indices, Values(values), unit, transposed=lambda: columns)
        out, norm = kernels.convolve(features, weight, bias, edges)
        wanted = [True, True, True, False, False]
        return [
            *(out, *kernels.convolve_backward(out, norm, features, weight, edges, wanted)),
            *(kernels.project(features, edges), kernels.second_moment(features, edges)),
        ]

    there, here = both(run, (*numbers, row_offsets, indices, *columns))
    assert there == here == (0 if backend is backends.TRITON else 5)


BASES = {
    "linear": lambda: pv.basis.LinearCorrelation(4),
    "spherical": lambda: pv.basis.SphericalBins(1, 2, 2),
}


@pytest.mark.parametrize("unit", [False, True], ids=["published", "unit"])
@pytest.mark.parametrize("basis", BASES)
def test_a_layer_on_what_was_moved(basis, unit, backend):
    """A hierarchy moves with all that was made, and nothing is made again."""
    conv = pv.PointConvolution(2, 3, BASES[basis](), pv.estimator.MonteCarlo(), unit_response=unit)
    features = torch.rand(len(CLOUD), 2)
    levels = pv.Hierarchy(CLOUD, [0.2], 2.0, 4, torch.Generator().manual_seed(1))
    levels.down(-1)
    expected = conv(features, levels.down(-1))
    levels.down(-1).transposed()
    with torch.no_grad(), Pretended() as device:
        there, moved_features = levels.to(DEVICE), features.to(DEVICE)
        conv.to(DEVICE)
        device.waits.clear()
        hood = there.down(-1)
        assert set(hood._cache) == set(levels.down(-1)._cache)
        out = conv(moved_features, hood)
        assert set(hood._cache) == set(levels.down(-1)._cache)
    torch.testing.assert_close(out.near, expected.detach())
    assert backend is backends.PLAIN or not device.total, device.waits


PUBLIC = {
    "a cloud": (lambda cloud: pv.PointCloud(cloud.points, [8, 0, 4]), 2, 2),
    "its parts": (lambda cloud: cloud.split(), 1, 1),
    "chosen points": (lambda cloud: cloud[torch.arange(0, 12, 3, device=DEVICE)], 2, 2),
    "ball query": (lambda cloud: pv.ball_query(cloud, cloud, 0.4), 3, 2),
    "random cap": (lambda cloud: pv.ball_query(cloud, cloud, 0.4, 2), 4, 2),
    "knn": (lambda cloud: pv.knn(cloud, cloud, 4), 14, 3),
    "disks": (lambda cloud: pv.poisson_disk(cloud, 0.4, torch.Generator().manual_seed(1)), 6, 3),
    "farthest": (lambda cloud: pv.farthest_points(cloud, ratio=0.5), 4, 4),
    "voxels": (lambda cloud: pv.voxel_grid(cloud, 0.3), 1, 1),
    "density": (lambda cloud: pv.kernel_density(cloud, 0.2), 3, 1),
    "given edges": (
        lambda cloud: pv.Neighborhood.from_edge_index(torch.stack([cloud.batch] * 2), cloud),
        2,
        2,
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_a_user_calls_waits_a_few_times(name, backend):
    """At most so often in plain torch, and with Triton."""
    call, plain, fast = PUBLIC[name]
    with Pretended() as device:
        cloud = CLOUD.to(DEVICE)
        device.waits.clear()
        call(cloud)
    assert 1 <= device.total <= (fast if backend is backends.TRITON else plain), device.waits


def test_a_hierarchy_made_there(backend):
    made = []
    with Pretended():
        for cloud in (CLOUD, CLOUD.to(DEVICE)):
            levels = pv.Hierarchy(cloud, [0.2, 0.4], 2.0, 4, torch.Generator().manual_seed(1))
            hoods = levels.within(0), levels.down(0), levels.up(1), levels.within(1, nearest=3)
            tensors = [*levels.kept, *(hood.indices for hood in hoods), hoods[0].relative_positions()]
            made.append([*tensors, pv.voxel_grid(cloud, 0.3).inverse, pv.kernel_density(cloud, 0.2)])
    for got, expected in zip(made[1], made[0], strict=True):
        torch.testing.assert_close(got.near, expected)


def several(result):
    return result if isinstance(result, (tuple, list)) else [result]
