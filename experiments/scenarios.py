"""What the cells of a table share: data and recipe, by preset and by what data there are.

``"paper"`` is the published recipe on the published data, which ``options.data`` must be the folder of.
``"laptop"`` is the same networks and optimiser, scaled to about a minute per cell on one core, on real data
where they are and on data made on the spot otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from experiments.columns import SCHEDULE
from experiments.options import Options
from experiments.settings import Settings, flat
from pointvar.data import ModelNet, Sample
from pointvar.train import RECIPES, Config, Data, load_data

Metric = Literal["accuracy", "mean_iou"]
Preset = Literal["laptop", "long", "paper"]


@dataclass(frozen=True)
class Scenario:
    """Data, recipe and measure of a table."""

    name: str
    """Of the data."""
    text: str
    """What the data are, for the caption."""
    settings: Settings
    """The recipe."""
    table: str
    """Which table of z serves transfer: one that was made from other data."""
    metric: Metric = "accuracy"
    batches: Mapping[int, Settings] = field(default_factory=dict)
    """What goes with a number of clouds per batch, besides that number."""
    load: Callable[[Config], Data] = lambda config: load_data(config.data)
    preset: Preset = "laptop"
    """How much it is; some tables are always small, or always long, whatever is asked for."""

    @property
    def resumable(self) -> bool:
        """Whether cells take long: each keeps checkpoints, and goes on from them."""
        return self.preset != "laptop"

    def batch(self, size: int) -> Settings:
        """Settings for batches of that many clouds."""
        return {**self.batches.get(size, {}), "data.batch_size": size}


# Made smaller, the same for every column. A last batch of one cloud would be an error with batch norm.
LAPTOP: Settings = flat(
    {
        "data": {"rotate": False, "scale": 0.0, "drop_last": True},
        "model": {"network": "classifier", "channels": [32, 64, 128], "head": 128, "radii": [0.1, 0.2, 0.4]},
        "optimizer": {"rate": 0.005},
        "evaluate_every": 5,
    }
)
EPOCHS = {1: 6, 2: 10, 4: 15, 8: 20, 16: 20}
"""By the number of clouds per batch, so that all cells take about as long and none has too few steps."""
EPOCHS_THOUSAND = {1: 4, 2: 6, 16: 12}
"""Of twice as many shapes."""
EPOCHS_DENSE = {1: 3, 2: 6}
"""Of networks whose neighbourhoods are part of every step: 3,000 steps of either."""
EPOCHS_40 = {2: 12, 4: 15, 8: 20, 16: 25}
LAPTOP_UNET: Settings = flat(
    {
        "data": {"drop_last": True},
        "model": {"network": "unet", "channels": [16, 32, 64], "first_reach": 1.5},
        "optimizer": {"rate": 0.005, "milestones": [8], "class_weights": True},
        "epochs": 10,
        "evaluate_every": 11,  # once, at the end
    }
)


def lasting(epochs: int) -> Settings:
    """A training of so many epochs; the rate falls after four fifths."""
    return {"epochs": epochs, "optimizer.milestones": [round(0.8 * epochs)]}


def one_level(channels: int, radius: float, epochs: int) -> Settings:
    """For networks without pooling, which a table makes itself; the rate falls for the last two epochs."""
    return {
        "epochs": epochs,
        "evaluate_every": epochs,
        "model.channels": [channels],
        "model.radii": [radius],
        "optimizer.milestones": [epochs - 2],
    }


def modelnet10(options: Options) -> Scenario | None:
    """500 + 250 shapes of ModelNet10, 512 points, feature 1."""
    return _modelnet(options, 10, EPOCHS, 500, 250, 512, normals=False)


def modelnet10_whole(options: Options) -> Scenario | None:
    """1,000 shapes of ModelNet10 and all 499 of its test set, 512 points, feature 1."""
    return _modelnet(options, 10, EPOCHS_THOUSAND, 1000, 499, 512, normals=False)


def modelnet40(options: Options) -> Scenario | None:
    """800 + 400 shapes of ModelNet40, 256 points, normals as features."""
    return _modelnet(options, 40, EPOCHS_40, 800, 400, 256, normals=True)


def dense_shapes(options: Options) -> Scenario:
    """1,000 shapes of 256 points in the unit sphere for networks of any kind; all tests of ModelNet10."""
    scenario = _modelnet(options, 10, EPOCHS_DENSE, 1000, 499, 256, normals=False)
    scenario = scenario or shapes(options, 1000, 499, EPOCHS_DENSE, 256)
    settings = {"data.box": False, "model.channels": None, "model.radii": None}
    return replace(scenario, settings={**scenario.settings, **settings})


def _modelnet(
    options: Options,
    classes: int,
    epochs: Mapping[int, int],
    train: int,
    test: int,
    points: int,
    normals: bool,
) -> Scenario | None:
    path = options.file(f"modelnet{classes}_small.npz")
    if path is None:
        return None
    batches = {size: lasting(count) for size, count in epochs.items()}
    return modelnet(path, LAPTOP, batches, classes, train, test, points, normals)


def modelnet(
    path: Path,
    settings: Settings,
    batches: Mapping[int, Settings],
    classes: int,
    train: int,
    test: int,
    points: int,
    normals: bool = False,
) -> Scenario:
    """So many shapes of a file of ModelNet, in random order."""

    def load(config: Config) -> Data:
        first, second = (ModelNet(path, split, points, normals) for split in ("train", "test"))
        return Data(_shuffled(first, train), _shuffled(second, test), first.classes, first.num_features)

    text = f"ModelNet{classes}, {train:,} training and {test:,} test shapes of {points} points"
    return Scenario(f"ModelNet{classes}", text, settings, "synthetic", batches=batches, load=load)


def _shuffled(data: Any, size: int) -> list[Sample]:
    """So many samples in random order, the same in every run, so that all classes occur."""
    if size > len(data):
        raise ValueError(f"{size} samples are wanted, the file has {len(data)}")
    return [data[int(i)] for i in np.random.default_rng(0).permutation(len(data))[:size]]


def shapes(
    options: Options,
    train: int = 500,
    test: int = 250,
    epochs: Mapping[int, int] = EPOCHS,
    points: int = 512,
) -> Scenario:
    """The built-in shapes, where there are no real ones."""
    counts = {"data.train_size": train, "data.test_size": test, "data.num_points": points}
    sizes = {"data.name": "shapes", **counts}
    text = f"built-in synthetic shapes of 25 classes, {train} + {test} of {points} points"
    batches = {size: lasting(count) for size, count in epochs.items()}
    return Scenario("Shapes", text, {**LAPTOP, **sizes}, "modelnet40", batches=batches)


def _spheres(radii: Mapping[int, tuple[float, float]]) -> dict[int, Settings]:
    """Spheres by the number of clouds per batch: the more, the smaller, and always 60 steps an epoch."""
    return {
        size: {"data.radius": inner, "data.context": outer, "data.crops": 60 * size}
        for size, (inner, outer) in radii.items()
    }


RARE = 0.01
"""Classes with a smaller share of the aerial tile's points are not learned: their labels are left out."""


def aerial(options: Options, scaled: bool = False) -> Scenario | None:
    """A tile of aerial laser scans: one half by position to train, the other to test; intensity."""
    path = options.file("ahn3_delft.npz")
    if path is None:
        return None
    spheres = _spheres({1: (10.0, 16.0), 2: (7.0, 11.0), 4: (5.0, 8.0), 16: (4.0, 6.0)})
    text = (
        "AHN3, an aerial tile of Delft of 336,347 points, its west half to train, its east half to test, "
        "classes of fewer than 1 % of the points unlabelled"
    )
    settings = {**LAPTOP_UNET, **spheres[1], "model.radii": [1.0, 2.0, 4.0]}
    return Scenario(
        "AHN3", text, settings, "modelnet40", "mean_iou", spheres, lambda config: tile(path, scaled)
    )


def tile(path: Path, scaled: bool = False) -> Data:
    """The halves of the tile; the feature besides 1 is the logarithm of the intensity, scaled or as it is."""
    with np.load(path) as arrays:
        points, names = torch.from_numpy(arrays["xyz"]), arrays["classes"].tolist()
        strength = torch.from_numpy(np.log1p(arrays["intensity"].astype(np.float32)) / 5)
        label = torch.from_numpy(arrays["label"].astype(np.int64))
    counts = torch.bincount(label, minlength=len(names))
    kept = [i for i in range(len(names)) if counts[i] >= RARE * len(label)]
    new = torch.full((len(names),), -1)
    new[kept] = torch.arange(len(kept))
    east = points[:, 0] >= points[:, 0].median()
    if scaled:  # by the half to train on
        strength = (strength - strength[~east].mean()) / strength[~east].std()
    features = torch.stack([torch.ones(len(points)), strength], 1)
    scene = Sample(points, features, new[label], "tile")
    return Data([scene[~east]], [scene[east]], [names[i] for i in kept], 2, "segmentation")


def rooms(options: Options) -> Scenario:
    """The built-in rooms, where there is no tile."""
    spheres = _spheres({1: (1.2, 2.0), 2: (0.85, 1.4), 4: (0.6, 1.0), 16: (0.5, 0.75)})
    data = {"data.name": "rooms", "data.train_size": 12, "data.test_size": 3}
    text = "built-in synthetic rooms of 12 classes, 12 to train, 3 to test"
    settings = {**LAPTOP_UNET, **data, **spheres[1], "model.radii": [0.1, 0.2, 0.4]}
    return Scenario("Rooms", text, settings, "modelnet40", "mean_iou", spheres)


def scannet(options: Options) -> Scenario:
    """The published recipe, with the lists of scenes in the folder of the data."""
    scenario = _published(options, "ScanNet", "modelnet40")
    folder = Path(scenario.settings["data.path"])
    lists = {"train": str(folder / "scannetv2_train.txt"), "test": str(folder / "scannetv2_val.txt")}
    spheres: dict[int, Settings] = {
        1: {"data.radius": 2.0, "data.context": 4.0},
        4: {"data.radius": 1.0, "data.context": 2.0},
    }
    settings = {**scenario.settings, "data.scenes": lists}
    return replace(scenario, settings=settings, metric="mean_iou", batches=spheres)


def _published(options: Options, name: str, table: str) -> Scenario:
    if options.data is None:
        raise ValueError("the preset 'paper' needs the published data: give their folder by --data")
    where = {"data.path": str(options.data), "data.drop_last": True}
    settings = {**flat(RECIPES[name.lower()]), **where}
    return Scenario(name, f"{name}, the published recipe", settings, table, preset="paper")


def classification(options: Options) -> Scenario:
    """ScanObjectNN by the published recipe; on a laptop ModelNet10."""
    if options.preset == "paper":
        return _published(options, "ScanObjectNN", "modelnet40")
    return modelnet10(options) or shapes(options)


def classification_thousand(options: Options) -> Scenario:
    """As ``classification``, on a laptop with twice as many shapes."""
    if options.preset == "paper":
        return classification(options)
    return modelnet10_whole(options) or shapes(options, 1000, 500, EPOCHS_THOUSAND)


def many_classes(options: Options) -> Scenario:
    """ModelNet40, by the published recipe or a small one."""
    if options.preset == "paper":
        return _published(options, "ModelNet40", "synthetic")
    return modelnet40(options) or shapes(options)


def segmentation(options: Options) -> Scenario:
    """ScanNet by the published recipe; on a laptop an aerial tile."""
    return scannet(options) if options.preset == "paper" else aerial(options) or rooms(options)


def everything(options: Options) -> list[Scenario]:
    """All data that are there, for tables about data; always on the scale of a laptop."""
    found = [modelnet10(options), modelnet40(options), shapes(options), aerial(options), rooms(options)]
    return [scenario for scenario in found if scenario is not None]


def steady(scenario: Scenario) -> Scenario:
    """With the schedule of the recipe norm-free, whatever the column, and one evaluation, at the end."""
    schedule = {**SCHEDULE, "evaluate_every": 10_000}
    return replace(scenario, settings={**scenario.settings, **schedule})


def with_validation(scenario: Scenario, share: float = 0.2, train: float | None = None) -> Scenario:
    """The training data alone: a share to choose by, and of the rest, all or another share to train."""

    def load(config: Config) -> Data:
        data = scenario.load(config)
        samples = [data.train[i] for i in range(len(data.train))]
        if len(samples) > 1:
            cut = round(len(samples) * (1 - share))
            first, rest = samples[:cut], samples[cut:]
            if train is not None:
                first = first[: round(len(samples) * train)]
        else:  # one scene: its part that lies farthest along the second axis
            along = samples[0].points[:, 1]
            apart = along > float(np.quantile(along.numpy(), 1 - share))
            first, rest = [samples[0][~apart]], [samples[0][apart]]
        return Data(first, rest, data.classes, data.num_features, data.task)

    text = f"{scenario.text}; here the last {share:.0%} of the training data serve as test data"
    text += "" if train is None else f", the first {train:.0%} to train"
    return replace(scenario, text=text, load=load)
