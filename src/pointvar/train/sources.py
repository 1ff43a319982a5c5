"""From the data section of a configuration to the samples of a training and a test set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils.data import Dataset

from pointvar.data import Sample, Shapes
from pointvar.train.config import DataConfig


@dataclass
class Data:
    """What a network is trained and tested on. Give your own data sets to ``fit`` as one of these."""

    train: Dataset[Sample]
    test: Dataset[Sample]
    classes: list[str]
    num_features: int
    task: Literal["classification", "segmentation"] = "classification"


def load_data(config: DataConfig) -> Data:
    """The data of a configuration; in memory, unless ``config.cache`` is off."""
    train, test = SOURCES[config.name](config, "train"), SOURCES[config.name](config, "test")
    parts = [_first(train, config.train_size, config.cache), _first(test, config.test_size, config.cache)]
    return Data(*parts, train.classes, train.num_features, train.task)


def _shapes(config: DataConfig, split: str) -> Any:
    size = config.train_size if split == "train" else config.test_size
    size = size if size is not None else (1000 if split == "train" else 500)
    return Shapes(size, split, config.num_points or 1024, normals=config.normals)


SOURCES: dict[str, Callable[[DataConfig, str], Any]] = {"shapes": _shapes}


class Kept(Dataset[Sample]):
    """Samples in memory."""

    def __init__(self, samples: Any, size: int) -> None:
        self.samples = [samples[index] for index in range(size)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def _first(samples: Any, size: int | None, keep: bool) -> Dataset[Sample]:
    if size is not None and size > len(samples):
        raise ValueError(f"{size} samples were asked for, the data set has {len(samples)}")
    size = len(samples) if size is None else size
    return Kept(samples, size) if keep else samples
