"""Each operator is a proper citizen of torch: opcheck, fake tensors, torch.compile."""

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from strategies import random_cloud

from pointvar import ops


def arguments(name: str, dtype: torch.dtype = torch.float32, gradients: bool = False) -> tuple[Any, ...]:
    support, queries = (
        random_cloud([30, 0, 20], dtype=dtype, seed=1),
        random_cloud([9, 2, 6], dtype=dtype, seed=2),
    )
    points, offsets = support.points.requires_grad_(gradients), support.offsets
    lengths = torch.tensor([0.3, 0.2, 0.4], dtype=dtype)
    pair = (points, offsets, queries.points, queries.offsets)
    return {
        "ball_query": (*pair, lengths, 4, 7, torch.arange(50).flip(0), torch.arange(17) * 3),
        "knn": (*pair, 3),
        "poisson_disk": (points, offsets, lengths, 7, torch.arange(50).flip(0).roll(30)),
        "spatial_order": (points, offsets),
        "farthest_points": (points, offsets, torch.tensor([4, 0, 3]), torch.tensor([2, 0, 0]), 7),
        "kernel_density": (points, offsets, lengths),
        "kernel_density_backward": (random_cloud([50], 1, dtype).points[:, 0], points, offsets, lengths),
        "transpose": (torch.tensor([0, 2, 2, 4]), torch.tensor([1, 3, 0, 1]), 5),
    }[name]


NAMES = [
    "ball_query",
    "knn",
    "poisson_disk",
    "spatial_order",
    "farthest_points",
    "kernel_density",
    "kernel_density_backward",
    "transpose",
]


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name, dtype, backend):
    results = torch.library.opcheck(getattr(ops, name), arguments(name, dtype))
    assert set(results.values()) == {"SUCCESS"}


def test_opcheck_with_gradients(dtype, backend):
    results = torch.library.opcheck(ops.kernel_density, arguments("kernel_density", dtype, gradients=True))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["ball_query", "knn", "poisson_disk", "farthest_points"])
def test_opcheck_of_indices_of_points_that_need_gradients(name):
    """They have no gradient, and say so rather than fail."""
    outputs = getattr(ops, name)(*arguments(name, gradients=True))
    assert not any(t.requires_grad for t in (outputs if isinstance(outputs, tuple) else [outputs]))


def assert_compiles(operator: Callable[..., Any], args: tuple[Any, ...], compiler: str) -> None:
    def model(*args: Any) -> Any:
        result = operator(*args)
        return [part * 2 for part in (result if isinstance(result, tuple) else (result,))]

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(model, fullgraph=True, backend=compiler)
        for got, expected in zip(compiled(*args), model(*args), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_into_one_graph(name, backend):
    assert_compiles(getattr(ops, name), arguments(name), "aot_eager")


# Importing the compiler warns of torch's own use of what torch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(" " in tempfile.gettempdir(), reason="torch gives its compiler such paths without quotes")
def test_compiles_with_the_default_compiler():
    assert_compiles(ops.ball_query, arguments("ball_query"), "inductor")


def test_compiled_density_has_a_gradient(backend):
    points, offsets, bandwidth = arguments("kernel_density", torch.float64)

    def loss(points: torch.Tensor) -> torch.Tensor:
        return ops.kernel_density(points, offsets, bandwidth).log().sum()

    gradients = []
    torch._dynamo.reset()
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaf = points.clone().requires_grad_()
        function(leaf).backward()
        gradients.append(leaf.grad)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_not_changed(name, backend):
    args = arguments(name)
    before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    getattr(ops, name)(*args)
    for arg, old in zip(args, before, strict=True):
        assert torch.equal(arg, old) if isinstance(arg, torch.Tensor) else arg == old


@pytest.mark.parametrize("name", [name for name in NAMES if name != "transpose"])
def test_strided_inputs_give_the_same(name, backend):
    """Operators are public: a transposed or expanded tensor must not be read as if it were packed."""
    args = arguments(name)
    strided = [torch.stack([arg, arg], -1)[..., 0] if isinstance(arg, torch.Tensor) else arg for arg in args]
    assert not strided[0].is_contiguous()
    got, expected = getattr(ops, name)(*strided), getattr(ops, name)(*args)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
