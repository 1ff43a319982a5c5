"""The presets: the paper's networks by the name of a data set."""

import pytest

import pointvar as pv
from pointvar.models import PRESETS, Classifier, SegmentationUNet, preset
from pointvar.recipes import RECIPES


@pytest.mark.parametrize(
    ("name", "kind", "channels", "classes", "radii"),
    [
        ("scanobjectnn", Classifier, [1, 128, 128, 256, 256, 512], 15, (0.1, 0.2, 0.4)),
        ("modelnet40", Classifier, [3, 256, 256, 512, 512, 1024], 40, (0.05, 0.1, 0.2)),
        ("scannet", SegmentationUNet, [3, 64, 64, 128, 128, 256], 21, (0.03, 0.06, 0.12, 0.24)),
    ],
)
def test_the_papers_networks(name, kind, channels, classes, radii):
    model = preset(name)
    convolutions = [m for m in model.modules() if isinstance(m, pv.PointConvolution)]
    assert isinstance(model, kind)
    assert [m.in_channels for m in convolutions[:6]] == channels
    last = model.head[1].linear if kind is Classifier else model.exit.convolution
    assert last.bias.shape == (classes,)
    assert model.radii == radii
    assert (model.reach, model.max_neighbors) == (3.0, 16)
    if kind is SegmentationUNet:
        assert model.first_reach == 3.0
    else:
        assert model.head[0].linear.out_features == channels[-1]


@pytest.mark.parametrize("name", PRESETS)
def test_they_are_those_of_the_recipes(name):
    network, options = PRESETS[name]
    recipe = RECIPES[name]["model"]
    assert network is pv.models.NETWORKS[recipe["network"]]
    for setting in {"channels", "head", "radii", "dropout", "head_dropout"} & recipe.keys():
        assert options[setting] == recipe[setting]


def test_overrides():
    model = preset("modelnet40", num_classes=10, method="KPConvN", norm="group")
    assert model.head[1].linear.out_features == 10
    assert {m.method for m in model.modules() if isinstance(m, pv.PointConvolution)} == {"KPConvN"}
    assert PRESETS["modelnet40"][1]["num_classes"] == 40
    with pytest.raises(
        ValueError, match=r"no preset 'modelnet' .*'modelnet40'.*; known are .*, modelnet40, scannet"
    ):
        preset("modelnet")
    with pytest.raises(TypeError, match="widths"):
        preset("modelnet40", widths=3)
