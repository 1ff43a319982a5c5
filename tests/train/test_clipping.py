"""Adaptive gradient clipping against the formula written as loops."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import pointvar as pv
from pointvar.train import AdaptiveClipping
from pointvar.train.clipping import decayed


def network(**options: Any) -> pv.models.Classifier:
    generator = torch.Generator().manual_seed(0)
    return pv.models.Classifier(
        2, 3, channels=[4, 5], head=6, radii=[0.2, 0.4], bias=True, generator=generator, **options
    )


def expected(weight: torch.Tensor, gradient: torch.Tensor, limit: float) -> torch.Tensor:
    size = math.sqrt(sum(float(w) ** 2 for w in weight.flatten()))
    slope = math.sqrt(sum(float(g) ** 2 for g in gradient.flatten()))
    largest = limit * max(size, 1e-3)
    return gradient * (largest / slope) if slope > largest else gradient


@pytest.mark.parametrize("precondition", [False, True])
@pytest.mark.parametrize("limit", [0.01, 0.3])
def test_matches_loops_over_units(limit: float, precondition: bool, generator: torch.Generator) -> None:
    """With preconditioning, of the coordinates that are learned."""
    model = network(precondition=precondition)
    convolution = "convolution.coordinates" if precondition else "convolution.weight"
    before = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.1
        before[name] = parameter.grad.clone()
    AdaptiveClipping(model, limit)()
    clipped = 0
    for name, parameter in model.named_parameters():
        if name not in before:
            continue
        weight, old, new = parameter.detach(), before[name], parameter.grad
        assert new is not None
        if weight.dim() == 1:
            units = [(weight, old, new)]
        elif name.endswith(convolution):
            units = [(weight[:, :, o], old[:, :, o], new[:, :, o]) for o in range(weight.shape[2])]
        else:
            units = [(weight[o], old[o], new[o]) for o in range(weight.shape[0])]
        for w, g, result in units:
            torch.testing.assert_close(result, expected(w, g, limit), rtol=1e-5, atol=1e-8)
            clipped += not torch.equal(g, result)
    assert clipped > 10


def test_zero_gradients_and_missing_ones_stay() -> None:
    model = network()
    first, second, third, *others = model.parameters()
    second.grad, third.grad = torch.zeros_like(second), torch.ones_like(third)
    AdaptiveClipping(model, 0.1)()
    assert torch.equal(second.grad, torch.zeros_like(second))
    assert (third.grad < 1).all()
    assert all(parameter.grad is None for parameter in (first, *others))


def test_what_is_not_trained_or_not_finite_is_left_alone() -> None:
    model = network()
    frozen, second, third, *_ = model.parameters()
    frozen.requires_grad_(False)
    frozen.grad, second.grad, third.grad = (torch.ones_like(p) for p in (frozen, second, third))
    second.grad.flatten()[0] = torch.nan
    AdaptiveClipping(model, 0.1)()
    assert (frozen.grad == 1).all()
    assert second.grad.isnan().any()
    assert (third.grad < 1).all()


class Scaled(nn.Module):
    """A layer between parameters that are none of its own: a number and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.matrix = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.eye(2) * 2)
        self.last = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x @ self.matrix * self.factor)


def test_parameters_of_no_layer() -> None:
    """A number is a unit, and so is each row of a matrix."""
    model = Scaled()
    model.factor.grad, model.matrix.grad = torch.tensor(-3.0), torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    AdaptiveClipping(model, 1.0)()
    assert float(model.factor.grad) == -2.0
    torch.testing.assert_close(model.matrix.grad, torch.tensor([[1.2, 1.6], [0.6, 0.8]]))


def test_a_model_without_layers() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2))])
    model[0].grad = torch.ones(2)
    AdaptiveClipping(model, 0.5)()
    torch.testing.assert_close(model[0].grad, torch.full((2,), 0.5))


@pytest.mark.parametrize(("precondition", "convolution"), [(False, ".weight"), (True, ".coordinates")])
def test_weight_decay_is_for_convolutions(precondition: bool, convolution: str) -> None:
    model = network(precondition=precondition)
    names = {id(p): name for name, p in model.named_parameters()}
    chosen = [names[id(p)] for p in decayed(model)]
    assert chosen == [name for name in names.values() if name.endswith("convolution" + convolution)]
    assert len(chosen) == 4


class Kernel(nn.Module):
    """A point convolution that nobody has registered, with its weight [K, in, out]."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(5, 3, 2))


def test_units_of_a_convolution_that_is_not_known_are_its_outputs() -> None:
    model = Kernel()
    model.weights.grad = torch.zeros(5, 3, 2)
    model.weights.grad[..., 1] = 1.0
    AdaptiveClipping(model, 0.5)()
    assert not model.weights.grad[..., 0].any()
    torch.testing.assert_close(model.weights.grad[..., 1], torch.full((5, 3), 0.5))


class HeadFirst(nn.Module):
    """Registered in another order than that of execution."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 2), nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.norm(x)).relu())


def test_the_head_is_found_by_execution(generator: torch.Generator) -> None:
    model, x = HeadFirst(), torch.randn(8, 3, generator=generator)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert pv.last_layer(model, x) == "head"
    assert pv.last_layer(model, {"y": x}, forward=lambda model, batch: model.body(batch["y"])) == "body"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for head, free in (("head", model.head), (None, None)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)
        pv.AdaptiveClipping(model, 0.1, head=head)()
        for layer in (model.head, model.body):
            assert layer.weight.grad is not None
            assert bool((layer.weight.grad == 1e3).all()) == (layer is free)
    with pytest.raises(ValueError, match=r"head is 'tail', which is no layer; there are \['head', 'body'\]"):
        AdaptiveClipping(model, 0.1, head="tail")
    with pytest.raises(ValueError, match="reaches no layer of HeadFirst"):
        pv.last_layer(model, x, forward=lambda model, batch: batch)


def test_clipping_needs_no_lightning() -> None:
    code = "import sys; sys.modules['lightning'] = None; import pointvar as pv; pv.AdaptiveClipping"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        AdaptiveClipping(network(), 0.0)
