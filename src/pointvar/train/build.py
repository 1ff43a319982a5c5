"""From a configuration to data, to what is random in them, and to a network."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from pointvar.data import DATASETS, Folder, PointData, Sample, transforms
from pointvar.data.base import Task
from pointvar.data.transforms import Transform
from pointvar.models import NETWORKS
from pointvar.train.config import DataConfig, ModelConfig


@dataclass
class Data:
    """What a network is trained and tested on. Give data sets of your own to ``fit`` as one of these.

    A data set is anything with a length and ``Sample`` by index.
    """

    train: Any
    test: Any
    classes: list[str]
    num_features: int
    task: Task = "classification"

    def __post_init__(self) -> None:
        if not len(self.train) or not len(self.test):
            sizes = f"{len(self.train)} and {len(self.test)} samples"
            raise ValueError(f"there must be data to train and to test on, got {sizes}")
        if len(self.classes) < 2:
            names = ", ".join(self.classes) or "none"
            raise ValueError(
                f"there must be two classes or more to tell apart, got {len(self.classes)} ({names})"
            )
        for name in ("train", "test"):
            samples = getattr(self, name)
            if not isinstance(samples, PointData):
                setattr(self, name, _Samples(samples, self, len(samples)))


def load_data(config: DataConfig) -> Data:
    """The data of a configuration; in memory, unless ``config.cache`` is off."""
    train = load_split(config, "train")
    if len(train.classes) < 2:
        found = f"the training data have one class only ({', '.join(train.classes)})"
        raise ValueError(f"{config.path or config.name}: {found}; give data of two classes or more")
    test = load_split(config, "test", train.classes)
    return Data(train, test, train.classes, train.num_features, train.task)


def load_split(config: DataConfig, split: str, classes: list[str] | None = None) -> PointData:
    """The training ("train") or the test data ("test") of a configuration, counted by these classes."""
    data = DATASETS.resolve(config.name)(config, split)
    if isinstance(data, Folder) and classes is not None:
        data.align(classes)  # a class may have no file in one of the two
    size = config.train_size if split == "train" else config.test_size
    if size is not None and size > len(data):
        raise ValueError(f"{size} {split} samples were asked for, {config.name} has {len(data)}")
    return _Samples(data, data, len(data) if size is None else size, config.cache)


class _Samples(PointData):
    """The first of any samples by index, as a data set; in memory once they were read, if asked for."""

    def __init__(self, samples: Any, of: Data | PointData, size: int, keep: bool = False) -> None:
        self.samples, self.size, self.keep = samples, size, keep
        self.task, self.classes, self.num_features = of.task, of.classes, of.num_features
        self._kept: dict[int, Sample] = {}

    def __len__(self) -> int:
        return self.size

    def load(self, index: int) -> Sample:
        sample = self._kept[index] if index in self._kept else self.samples[index]
        if self.keep:
            self._kept[index] = sample
        return sample


def preparation(config: DataConfig, task: Task) -> list[Transform]:
    """What is done to every cloud, in training and in evaluation."""
    steps: list[Transform] = []
    if task == "classification" and config.box:
        steps.append(transforms.NormalizeBox())
    if config.poisson is not None:
        steps.append(transforms.PoissonDisk(config.poisson))
    if task == "classification" and config.num_points is not None and config.name != "shapes":
        steps.append(transforms.Subset(config.num_points))
    return steps


def augmentation(config: DataConfig) -> list[Transform]:
    """What is done at random in training, and in evaluation by votes."""
    axis, vectors = "xyz".index(config.up), [slice(0, 3)] if config.normals else []
    steps: list[Transform] = []
    if config.rotate:
        steps.append(transforms.Rotate(axis, vectors=vectors))
    if config.scale:
        steps.append(transforms.Scale(1 - config.scale, 1 + config.scale, vectors))
    if config.mirror:
        steps.append(transforms.Mirror([other for other in range(3) if other != axis], vectors))
    if config.jitter:
        steps.append(transforms.Jitter(config.jitter))
    return steps


def transform_of(config: DataConfig, task: Task, augment: bool) -> Transform:
    """All that is done to a cloud before a network sees it."""
    return transforms.Compose(*preparation(config, task), *(augmentation(config) if augment else []))


def build_model(config: ModelConfig, data: Data, generator: torch.Generator | None = None) -> nn.Module:
    """The network of a configuration for given data, with its weights drawn by the standard.

    A network is given those of the settings that it has parameters for; one that is set, and that means
    nothing to the network, is an error.
    """
    network: Any = NETWORKS.resolve(config.network)
    if network.task != data.task:
        raise ValueError(f"model.network={config.network} is for {network.task}, the data for {data.task}")
    known, defaults = inspect.signature(network.__init__).parameters, ModelConfig()
    options: dict[str, Any] = {}
    for name, value in asdict(config).items():
        parameter = "checkpoint" if name == "recompute" else name
        if parameter in known:
            # Null stands for the network's own default, but max_neighbors: null says that there is no cap.
            if value is not None or name == "max_neighbors":
                options[parameter] = value
        elif name not in ("network", "basis", "estimator") and value not in (None, getattr(defaults, name)):
            raise ValueError(f"model.{name}={value} means nothing to the network {config.network}")
    if config.basis is not None:
        options["method"] = (config.basis, config.estimator)
    return network(data.num_features, len(data.classes), generator=generator, **options)
