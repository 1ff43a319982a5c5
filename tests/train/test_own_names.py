"""A data set, a network and an initialisation of one's own: a line adds each, and settings name them."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from training_cases import tiny

import pointvar as pv
from pointvar.cli import main
from pointvar.data import DATASETS, PointData, Sample
from pointvar.init import INITS, InitReport
from pointvar.models import NETWORKS
from pointvar.train import fit


class Halves(PointData):
    """Points on the left, and points on the right."""

    task, classes, num_features = "classification", ["left", "right"], 1

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def load(self, index: int) -> Sample:
        points = torch.rand(40, 3, generator=torch.Generator().manual_seed(index))
        return Sample(points - index % 2, torch.ones(40, 1), index % 2, str(index))


class Small(nn.Module):
    """One convolution and a mean."""

    task = "classification"

    def __init__(self, in_channels, num_classes, method="MCConv", radii=(0.3,), generator=None) -> None:
        super().__init__()
        self.radii = radii
        self.convolution = getattr(pv, method)(in_channels, num_classes, generator=generator)

    def hierarchy(self, cloud, generator=None):
        return pv.Hierarchy(cloud, self.radii, generator=generator)

    def forward(self, features, levels):
        hood = levels.within(0)
        return pv.nn.global_mean(self.convolution(features[levels.kept[0]], hood), hood.queries)


def constant_init(model: nn.Module, target: float) -> InitReport:
    """Sets all weights of convolutions to the target."""
    nn.init.constant_(model.convolution.weight, target)
    return InitReport("constant")


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for registry in (DATASETS, NETWORKS, INITS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    DATASETS.add("halves", lambda settings, split: Halves({"train": 12, "test": 6}[split]))
    NETWORKS.add("small", Small)
    INITS.add("constant", constant_init)


def test_they_are_trained_by_name() -> None:
    sections = {
        "data": {"name": "halves", "test_size": 4, "num_points": None},
        "model": {"network": "small", "channels": None, "head": None, "radii": [0.5], "method": "KPConvN"},
        "init": {"method": "constant", "target": 0.125},
        "optimizer": {"rate": 1e-12},
    }
    result = fit(tiny(sections, epochs=1))
    assert isinstance(result.model, Small)
    assert result.model.radii == [0.5]
    assert result.model.convolution.method == "KPConvN"
    torch.testing.assert_close(
        result.model.convolution.weight, torch.full_like(result.model.convolution.weight, 0.125)
    )
    assert result.init is not None
    assert result.init["method"] == "constant"
    assert result.metrics["count"] == 4


def test_a_setting_that_the_network_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"model.head=8 means nothing to the network small"):
        fit(tiny({"data": {"name": "halves"}, "model": {"network": "small", "channels": None}}))


@pytest.mark.parametrize(
    ("setting", "given", "known"),
    [
        ("data.name", "halve", "halves"),
        ("model.network", "smal", "small"),
        ("init.method", "const", "constant"),
    ],
)
def test_help_and_errors_name_them(
    setting: str, given: str, known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert known in text[text.index(f"--{setting} ") :].split("(type:")[0]
    assert main(["train", "shapes", f"--{setting}={given}", "--print"]) == 2
    assert f"{given!r} (did you mean {known!r}?)" in capsys.readouterr().err
