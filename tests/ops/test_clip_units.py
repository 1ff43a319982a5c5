"""Clipping of all parameters in one native call, against its definition parameter by parameter."""

import pytest
import torch

from pointvar.ops import clip_units, native
from pointvar.ops.clipping import _clip

SHAPES = [
    ((), -1),
    ((7,), -1),
    ((3000,), -1),
    ((5, 4), 0),
    ((5, 4), 1),
    ((16, 33, 21), 2),
    ((16, 3, 130), 2),
    ((9, 70, 5), 1),  # a transposed image convolution
    ((600, 4, 1), 2),
    ((300, 1000), 0),
    ((16, 256, 300), 2),  # large enough for a team of threads
    ((1100, 1000), 0),
    ((0, 4), 0),
    ((4, 0), 0),
]


Made = tuple[list[torch.Tensor], list[torch.Tensor], list[int]]


def made(dtype: torch.dtype, generator: torch.Generator) -> Made:
    weights = [torch.randn(shape, generator=generator, dtype=dtype) for shape, _ in SHAPES]
    # A quarter of the units or so is to be clipped.
    gradients = [torch.randn(w.shape, generator=generator, dtype=dtype) * 0.04 for w in weights]
    for gradient, (_, unit) in zip(gradients, SHAPES, strict=True):
        sizes = [1] * gradient.dim()
        if unit >= 0:
            sizes[unit] = gradient.shape[unit]
        gradient *= torch.rand(sizes, generator=generator, dtype=dtype) * 2
    return weights, gradients, [unit for _, unit in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matches_the_definition(dtype: torch.dtype, generator: torch.Generator) -> None:
    weights, gradients, units = made(dtype, generator)
    expected = [g.clone() for g in gradients]
    for weight, gradient, unit in zip(weights, expected, units, strict=True):
        _clip(weight, gradient, unit, 0.05, 1e-3)
    before = [g.clone() for g in gradients]
    clip_units(weights, gradients, units, 0.05, 1e-3)
    for new, right, old in zip(gradients, expected, before, strict=True):
        torch.testing.assert_close(new, right, rtol=2e-6 if dtype == torch.float32 else 1e-14, atol=0)
        assert torch.equal(new == old, right == old)  # what is not clipped keeps its bits
    changed = torch.cat([(g != b).flatten() for g, b in zip(gradients, before, strict=True)]).double().mean()
    assert 0.1 < changed < 0.9


def test_the_same_bits_on_any_number_of_threads(generator: torch.Generator) -> None:
    weights, gradients, units = made(torch.float32, generator)
    results = []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append([g.clone() for g in gradients])
            clip_units(weights, results[-1], units, 0.05, 1e-3)
    finally:
        torch.set_num_threads(threads)
    for one, two, three in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("unit", [0, 1])
def test_what_is_zero_or_not_finite(unit: int) -> None:
    """Units of zeros, of NaN, of infinity: as the definition, and never finite by mistake."""
    weight = torch.ones(6, 6)
    weight.select(unit, 3).zero_()
    weight.select(unit, 5)[1] = torch.nan
    gradient = torch.ones(6, 6)
    gradient.select(unit, 0).zero_()
    gradient.select(unit, 1)[2] = torch.nan
    gradient.select(unit, 2)[2] = torch.inf
    expected = gradient.clone()
    _clip(weight, expected, unit, 0.1, 1e-3)
    clip_units([weight], [gradient], [unit], 0.1, 1e-3)
    torch.testing.assert_close(gradient, expected, equal_nan=True)
    for bad in (1, 2):
        assert not gradient.select(unit, bad).isfinite().all()
    assert (gradient.select(unit, 3) > 0).all()  # weights of 0 can change


def test_other_layouts_take_the_definition(generator: torch.Generator) -> None:
    weight = torch.randn(6, 5, generator=generator)
    gradient = torch.randn(5, 6, generator=generator)
    half = torch.randn(6, 5, generator=generator).bfloat16()
    pairs = [(weight, gradient.clone().T), (weight.T, gradient), (half, half.clone())]
    for w, g in pairs:
        expected = g.clone()
        _clip(w, expected, 1, 0.1, 1e-3)
        clip_units([w], [g], [1], 0.1, 1e-3)
        assert torch.equal(g, expected)
        assert g.norm() < 0.2 * w.norm()


@pytest.mark.skipif(not native.available, reason="native kernels only")
@pytest.mark.parametrize(
    ("gradient", "unit", "message"),
    [
        (torch.ones(3, 4), 0, "dtype and shape"),
        (torch.ones(12), 0, "dtype and shape"),
        (torch.ones(4, 3, dtype=torch.float64), 0, "dtype and shape"),
        (torch.ones(4, 3), 2, "dimension"),
        (torch.ones(4, 3), -2, "dimension"),
    ],
)
def test_the_kernel_refuses_what_does_not_fit(gradient: torch.Tensor, unit: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.clip_units([torch.ones(4, 3)], [gradient], [unit], 0.1, 1e-3)
    with pytest.raises(ValueError, match="float32 or float64"):
        native.clip_units([torch.ones(4, 3).long()], [torch.ones(4, 3).long()], [0], 0.1, 1e-3)
    with pytest.raises(ValueError, match="each weight"):
        native.clip_units([torch.ones(4, 3)], [], [0], 0.1, 1e-3)
