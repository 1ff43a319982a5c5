"""The settings of a model, as the network gets them."""

from typing import Any

import pytest
import torch
from torch import nn
from training_cases import room_data

import pointvar as pv
from pointvar.models import NETWORKS
from pointvar.train import ModelConfig
from pointvar.train.build import build_model


class Own(nn.Module):
    """Keeps what it was given."""

    task = "segmentation"

    def __init__(self, in_channels, num_classes, channels="own", reach="own", max_neighbors="own",
                 method="own", generator=None, checkpoint="own") -> None:  # fmt: skip
        super().__init__()
        self.given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", {**NETWORKS._entries, "own": Own})


def given(**settings: Any) -> dict[str, Any]:
    random = torch.Generator()
    result = build_model(ModelConfig(network="own", **settings), room_data(), random).given  # type: ignore[operator]
    assert result.pop("generator") is random  # type: ignore[union-attr]
    assert (result.pop("in_channels"), result.pop("num_classes")) == (1, 3)  # type: ignore[union-attr]
    return result  # type: ignore[return-value]


def test_null_is_the_default_of_the_network_but_of_max_neighbors() -> None:
    plain = {"channels": "own", "reach": "own", "max_neighbors": 16, "method": "MCConv", "checkpoint": False}
    assert given() == plain
    assert given(max_neighbors=None) == {**plain, "max_neighbors": None}
    assert given(channels=[3], reach=2.0) == {**plain, "channels": [3], "reach": 2.0}


def test_recompute_was_once_called_checkpoint() -> None:
    assert given(recompute=True)["checkpoint"] is True
    sizes = {"channels": [4], "radii": [0.2], "recompute": True}
    assert build_model(ModelConfig(network="unet", **sizes), room_data()).recompute is True


def test_basis_and_estimator_replace_the_method() -> None:
    assert given(basis="Gaussian", estimator="Average")["method"] == ("Gaussian", "Average")


def test_what_the_network_does_not_know() -> None:
    assert "norm" not in given(norm="none", head=None)
    with pytest.raises(ValueError, match=r"model.norm=batch means nothing to the network own"):
        given(norm="batch")
    with pytest.raises(ValueError, match=r"model.dropout=0.0 means nothing to the network own"):
        given(dropout=0.0)


def test_wrong_task() -> None:
    with pytest.raises(ValueError, match=r"model.network=classifier is for classification, the data for seg"):
        build_model(ModelConfig(), room_data())


def test_a_real_one() -> None:
    settings = ModelConfig(
        network="unet", channels=[4, 8], radii=[0.2, 0.4], basis="Gaussian", estimator="Average"
    )
    model, same = (build_model(settings, room_data(), torch.Generator().manual_seed(0)) for _ in range(2))
    assert isinstance(model, pv.models.SegmentationUNet)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
