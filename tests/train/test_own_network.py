"""Networks of one's own in ``fit``, and which of their layers are initialised."""

import pytest
import torch
from torch import nn
from training_cases import tiny

import pointvar as pv
from pointvar.train import fit


class Own(nn.Module):
    """A convolution and a linear layer, on one level of points."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.convolution = pv.KPConvN(1, 8, generator=generator)
        self.last = nn.Linear(8, 25)

    def hierarchy(self, cloud, generator=None):
        return pv.Hierarchy(cloud, [0.3], generator=generator)

    def forward(self, features, levels):
        hood = levels.within(0)
        return self.last(pv.nn.global_mean(self.convolution(features[levels.kept[0]], hood), hood.queries))


def started(**init):
    """A network after an epoch whose steps change next to nothing, and what its weights were before."""
    torch.manual_seed(0)
    model = Own()
    before = {name: p.clone() for name, p in model.named_parameters()}
    config = tiny({"init": init, "optimizer": {"rate": 1e-12}}, epochs=1)
    result = fit(config, model=model)
    assert result.model is model
    changed = {n for n, p in model.named_parameters() if not torch.allclose(p, before[n], atol=1e-6)}
    return result, changed


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ({"method": "none"}, []),
        ({"method": "standard"}, ["convolution.weight"]),
        ({"method": "direct"}, ["convolution.weight"]),
        ({"method": "direct", "layers": "all"}, ["convolution.weight", "last.bias", "last.weight"]),
    ],
    ids=str,
)
def test_the_layers_that_are_asked_for_are_drawn(init, expected):
    result, changed = started(**init)
    assert sorted(changed) == expected
    assert len(result.init["layers"]) == len({name.split(".")[0] for name in expected})


def test_a_network_that_cannot_be_saved_still_has_a_summary(tmp_path):
    fit(tiny(epochs=1, output=str(tmp_path / "run")), model=Own(), verbose=False)
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()
