"""Adaptive gradient clipping against the formula written as loops."""

import math

import pytest
import torch

import pointvar as pv
from pointvar.train import AdaptiveClipping


def network() -> pv.models.Classifier:
    return pv.models.Classifier(
        2, 3, channels=[4, 5], head=6, radii=[0.2, 0.4], bias=True, generator=torch.Generator().manual_seed(0)
    )


def expected(weight: torch.Tensor, gradient: torch.Tensor, limit: float) -> torch.Tensor:
    size = math.sqrt(sum(float(w) ** 2 for w in weight.flatten()))
    slope = math.sqrt(sum(float(g) ** 2 for g in gradient.flatten()))
    largest = limit * max(size, 1e-3)
    return gradient * (largest / slope) if slope > largest else gradient


@pytest.mark.parametrize("limit", [0.01, 0.3])
def test_matches_loops_over_units(limit: float, generator: torch.Generator) -> None:
    model = network()
    before = {}
    for name, parameter in model.named_parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.1
        before[name] = parameter.grad.clone()
    AdaptiveClipping(model, limit)()
    clipped = 0
    for name, parameter in model.named_parameters():
        weight, old, new = parameter.detach(), before[name], parameter.grad
        assert new is not None
        if name.startswith("head.1.linear"):  # the last layer
            assert torch.equal(old, new)
            continue
        if weight.dim() == 1:
            units = [(weight, old, new)]
        elif name.endswith("convolution.weight"):
            units = [(weight[:, :, o], old[:, :, o], new[:, :, o]) for o in range(weight.shape[2])]
        else:
            units = [(weight[o], old[o], new[o]) for o in range(weight.shape[0])]
        for w, g, result in units:
            torch.testing.assert_close(result, expected(w, g, limit), rtol=1e-5, atol=1e-8)
            clipped += not torch.equal(g, result)
    assert clipped > 10


def test_zero_gradient_and_missing_gradient_stay() -> None:
    model = network()
    first, *others = model.parameters()
    first.grad = torch.zeros_like(first)
    AdaptiveClipping(model, 0.1)()
    assert torch.equal(first.grad, torch.zeros_like(first))
    assert all(parameter.grad is None for parameter in others)


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        AdaptiveClipping(network(), 0.0)
