"""Networks in files: the same again, and nothing else than a network."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pointvar as pv
from pointvar.models import read_notes

NETWORKS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "classifier": (
        pv.models.Classifier,
        {"method": "KPConvN", "channels": [4, 8], "head": 8, "radii": [0.2, 0.4], "norm": "batch"},
    ),
    "pair": (
        pv.models.Classifier,
        {
            "method": ("Gaussian", "Average"),
            "channels": (4,),
            "head": 4,
            "radii": (0.3,),
            "unit_response": True,
            "orthonormal": True,
        },
    ),
    "function": (pv.models.PlainNet, {"method": pv.MCConv, "channels": 4, "dim": 2}),
    "preconditioned": (pv.models.PlainNet, {"method": "ConvPoint", "channels": 4, "precondition": True}),
    "unet": (pv.models.SegmentationUNet, {"channels": [4, 8], "radii": [0.2, 0.4], "max_neighbors": None}),
    "pointconv": (pv.models.PointConvClassifier, {"counts": (8, 4)}),
}


def make(name: str) -> nn.Module:
    network, options = NETWORKS[name]
    sizes = (3,) if network is pv.models.PlainNet else (2, 3)
    return network(*sizes, generator=torch.Generator().manual_seed(0), **options)


@pytest.mark.parametrize("name", NETWORKS)
def test_again(name: str, tmp_path: Path) -> None:
    model = make(name)
    pv.save(model, tmp_path / "model.safetensors", classes=["a", "b"])
    again = pv.load(tmp_path / "model.safetensors")
    assert repr(again) == repr(model.eval())
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in again.state_dict().items())
    assert read_notes(tmp_path / "model.safetensors") == {"classes": ["a", "b"]}


def test_same_predictions(tmp_path: Path, generator: torch.Generator) -> None:
    model = make("classifier").eval()
    assert isinstance(model, pv.models.Classifier)
    pv.save(model, tmp_path / "model.safetensors")
    levels = model.hierarchy(pv.PointCloud(torch.rand(50, 3, generator=generator)), generator=generator)
    features = torch.randn(50, 2, generator=generator)
    assert torch.equal(model(features, levels), pv.load(tmp_path / "model.safetensors")(features, levels))


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Linear cannot be saved"):
        pv.save(nn.Linear(2, 2), tmp_path / "x")
    model = pv.models.PlainNet(2, 4, method=lambda *args, **options: pv.MCConv(*args, **options))
    with pytest.raises(ValueError, match=r"method=.* cannot be saved"):
        pv.save(model, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "os.system"}, "holds a network 'os.system'"),
        ({"network": "nn.Linear"}, "holds a network"),
        ({"arguments": {"in_channels": 2, "num_classes": 3, "method": "os.system"}}, "os.system"),
        ({"arguments": {"command": "x"}}, "does not fit"),
        ({"arguments": {"in_channels": 5, "num_classes": 3}}, "does not fit"),
    ],
)
def test_a_file_cannot_name_what_is_not_ours(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    pv.save(make("classifier"), tmp_path / "good")
    description = {"network": "Classifier", "arguments": {}, "notes": {}} | change
    save_file({"x": torch.zeros(1)}, tmp_path / "bad", {"pointvar": json.dumps(description)})
    with pytest.raises(ValueError, match=message):
        pv.load(tmp_path / "bad")


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pv.save(make("function"), tmp_path / "model", note="old")

    def fail(*_: object) -> None:
        raise OSError("killed before the name was given")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="killed"):
        pv.save(make("classifier"), tmp_path / "model")
    assert read_notes(tmp_path / "model") == {"note": "old"}
    assert isinstance(pv.load(tmp_path / "model"), pv.models.PlainNet)


class Own(pv.models.Network):
    task = "classification"

    def __init__(self, in_channels: int, num_classes: int, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_channels, width), nn.Linear(width, num_classes))


def test_a_network_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = pv.models.NETWORKS
    model = Own(2, num_classes=3, width=5)
    with pytest.raises(TypeError, match=r"Own cannot be saved: known networks are Classifier,.*PlainNet"):
        pv.save(model, tmp_path / "x")
    monkeypatch.setattr(known, "_entries", {**known._entries, "own": Own})
    for original in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        pv.save(original, tmp_path / "own")
        again = pv.load(tmp_path / "own")
        assert type(again) is Own
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_every_listed_network_says_its_task() -> None:
    tasks = {name: network.task for name, network in pv.models.NETWORKS.items()}
    clouds, points = "classification", "segmentation"
    wanted = {"classifier": clouds, "unet": points, "pointconv": points, "pointconv-classifier": clouds}
    assert tasks == wanted


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pv.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a network that pointvar has saved"):
        pv.load(tmp_path / "text")
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    with pytest.raises(ValueError, match="not a network that pointvar has saved"):
        pv.load(tmp_path / "plain")
