"""What is said of a run that has diverged: the first thing that is not finite, by its name."""

import pytest
import torch
from torch import Tensor, nn
from training_cases import one_cloud, prepared, small_classifier

import pointvar as pv
from pointvar.train.divergence import explain
from pointvar.train.loader import Prepared


class Inner(nn.Module):
    """Multiplies by a number, and remembers how it was called."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.drawn, self.graph = factor, 0.0, True

    def forward(self, x: Tensor) -> Tensor:
        self.drawn, self.graph = float(torch.rand(())), torch.is_grad_enabled()
        return x * self.factor


class Outer(nn.Module):
    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(1, 3), Inner(factor)) for factor in factors)

    def forward(self, features: Tensor, levels: pv.Hierarchy) -> Tensor:
        return sum(part(features) for part in self.parts)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def batch() -> Prepared:
    return prepared([one_cloud(0, 0), one_cloud(1, 1)], small_classifier())


def test_features(batch: Prepared) -> None:
    bad = Prepared(
        batch.features.clone().index_fill_(0, torch.tensor(3), torch.nan), batch.levels, batch.labels, 0
    )
    assert explain(Outer(1.0), bad) == "the input features are not finite"


def test_a_parameter(batch: Prepared) -> None:
    model = Outer(1.0, 1.0)
    with torch.no_grad():
        model.parts[1][0].bias[1] = torch.inf  # type: ignore[index]
    text = explain(model, batch)
    assert text == "the parameter parts.1.0.bias is not finite, so the step before was too large"


def test_the_innermost_of_the_first(batch: Prepared) -> None:
    model = Outer(1.0, 1e39, torch.inf)
    text, *table = explain(model, batch).splitlines()
    assert text == "it began in parts.1.1 (Inner), whose output is the first that is not finite"
    assert "parts.0.0" in "\n".join(table)
    assert not any(module._forward_hooks for module in model.modules())


def test_all_is_finite(batch: Prepared) -> None:
    model = Outer(1.0, 1.0)
    with torch.no_grad():
        model.parts[1][0].weight.fill_(1e4)  # type: ignore[index]
    text, *table = explain(model, batch).splitlines()
    assert text == "all outputs are finite, the largest are those of parts.1.0"
    assert "parts.0.0" in "\n".join(table)


def test_what_is_random_is_as_in_the_step_and_nothing_is_differentiated(batch: Prepared) -> None:
    model = Outer(1.0)
    explain(model, batch)
    torch.manual_seed(batch.seed)
    assert model.parts[0][1].drawn == float(torch.rand(()))  # type: ignore[index]
    assert not model.parts[0][1].graph  # type: ignore[index]
