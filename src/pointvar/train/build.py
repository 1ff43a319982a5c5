"""From a configuration to data, to what is random in them, and to a network."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pointvar.data import (
    DATASETS,
    Folder,
    PointData,
    Sample,
    count_labels,
    divide,
    label_counts,
    transforms,
)
from pointvar.data.base import Task
from pointvar.data.features import measure_scale, widths
from pointvar.data.parts import Part
from pointvar.data.transforms import Transform
from pointvar.models import NETWORKS
from pointvar.train.config import DataConfig, ModelConfig


@dataclass
class Data:
    """What a network is trained and tested on. Give data sets of your own to ``fit`` as one of these.

    A data set is anything with a length and ``Sample`` by index. With ``validation``, it is that by which the
    best network is chosen; there need then be no ``test``. ``features`` says how files become features (see
    `scaled_features`), ``codes`` what the classes are in files.
    """

    train: Any
    test: Any
    classes: list[str]
    num_features: int
    task: Task = "classification"
    validation: Any = None
    features: dict[str, Any] | None = None
    codes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.test is None and self.validation is None:
            raise ValueError("there must be data to test on, or a part for validation, got neither")
        parts = {name: getattr(self, name) for name in ("train", "validation", "test")}
        parts = {name: samples for name, samples in parts.items() if samples is not None}
        if not all(map(len, parts.values())):
            sizes = " and ".join(f"{len(samples)} samples to {name}" for name, samples in parts.items())
            raise ValueError(f"there must be data to train and to test on, got {sizes}")
        if len(self.classes) < 2:
            names = ", ".join(self.classes) or "none"
            raise ValueError(
                f"there must be two classes or more to tell apart, got {len(self.classes)} ({names})"
            )
        for name, samples in parts.items():
            if not isinstance(samples, PointData):
                setattr(self, name, _Samples(samples, self, len(samples)))

    @property
    def evaluated(self) -> Any:
        """What is evaluated between epochs: the part for validation, if there is one."""
        return self.test if self.validation is None else self.validation


def load_data(config: DataConfig) -> Data:
    """The data of a configuration; in memory, unless ``config.cache`` is off."""
    whole = DATASETS.resolve(config.name)(config, "train")
    given = [name for name in ("features", "classes", "ignore") if getattr(config, name)]
    if given and not isinstance(whole, Folder):
        names = ", ".join(f"data.{name}" for name in given)
        raise ValueError(f"{names}: for files of your own (data.name=folder), not for {config.name}")
    if len(whole.classes) < 2:
        found = f"the training data have one class only ({', '.join(whole.classes)})"
        raise ValueError(f"{config.path or config.name}: {found}; give data of two classes or more")
    train, validation = (whole, None) if config.validation is None else divide(whole, config.validation)
    features, codes = features_of(config), None
    if isinstance(whole, Folder):
        _check_labels(whole, train, validation)
        if config.features:
            clouds = (train[index].features.numpy() for index in range(len(train)))
            whole.scale.update(measure_scale(config.features, clouds, config.ground))
        features, codes = whole.scale, whole.codes
    test = load_split(config, "test", whole.classes, features) if has_test(config) else None
    if test is not None and isinstance(whole, Folder):
        _check_any(test, "test")
    return Data(
        _first(train, config, "train"),
        test,
        whole.classes,
        whole.num_features,
        whole.task,
        None if validation is None else _Samples(validation, validation, len(validation), config.cache),
        features,
        codes,
    )


def _check_labels(whole: Folder, train: PointData, validation: PointData | None) -> None:
    """That there is something to learn and to compare in files of a user's own."""
    if whole.task == "classification":
        chosen = train.indices if isinstance(train, Part) else range(len(whole))
        counts = count_labels((whole.files[index][1] for index in chosen), len(whole.classes))
    else:
        _check_any(train, "training")
        counts = label_counts(train)
    present = [name for name, count in zip(whole.classes, counts.tolist(), strict=True) if count]
    if len(present) == 1:
        raise ValueError(
            f"{whole.root}: only {present[0]} of the classes {', '.join(whole.classes)} occurs in the "
            "training data; give data of two classes or more"
        )
    if missing := [name for name in whole.classes if name not in present]:
        warnings.warn(
            f"{whole.root}: no training data have the class {', '.join(missing)}, which cannot be learned",
            stacklevel=3,
        )
    if validation is not None:
        _check_any(validation, "validation")


def _check_any(part: PointData, name: str) -> None:
    """Raises if no label of a part counts."""
    labels = (part[index].label for index in range(len(part)))
    if not any(bool((torch.as_tensor(label) >= 0).any()) for label in labels):
        raise ValueError(
            f"no point of the {name} data has a label that counts: all are -1, ignored (data.ignore) or "
            "not named (data.classes)"
        )


def load_split(
    config: DataConfig,
    split: str,
    classes: list[str] | None = None,
    features: dict[str, Any] | None = None,
) -> PointData:
    """The training ("train"), validation ("validation") or test data ("test") of a configuration.

    Where there are no test data, but a part for validation, that is it.

    Args:
        classes: those to count by.
        features: how they are scaled, as it is kept with a network; else they are as in the files.
    """
    if split == "test" and not has_test(config):
        split = "validation"
    data = DATASETS.resolve(config.name)(config, "test" if split == "test" else "train")
    if isinstance(data, Folder):
        if classes is not None:
            data.align(classes)  # a class may have no file in one of the two
        data.scale.update(features or {})
    if split != "test" and config.validation is not None:
        data = divide(data, config.validation)[split == "validation"]
    return _first(data, config, split)


def has_test(config: DataConfig) -> bool:
    """Whether there are test data; files of a user's own need none if there is a part for validation."""
    if config.name != "folder" or config.validation is None or config.path is None:
        return True
    return (Path(config.path) / "test").is_dir()


def features_of(config: DataConfig) -> dict[str, Any]:
    """The features of a network that was trained with such settings, if they were not scaled."""
    if config.normals:
        return {"names": ["normals"]}
    return {"names": {"scannet": ["colors"], "rooms": ["colors"]}.get(config.name, config.columns)}


def _first(data: PointData, config: DataConfig, split: str) -> PointData:
    size = {"train": config.train_size, "test": config.test_size}.get(split)
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
    if config.features and "normals" in config.features:
        start = sum(widths(config.features[: config.features.index("normals")]))
        vectors = [slice(start, start + 3)]
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
        # A network may still have the older name.
        parameter = "checkpoint" if name == "recompute" and name not in known else name
        asked = value is not False and value not in (None, getattr(defaults, name))
        if parameter in known:
            # Null stands for the network's own default, but max_neighbors: null says that there is no cap.
            if value is not None or name == "max_neighbors":
                options[parameter] = value
        elif asked and name not in ("network", "basis", "estimator"):
            raise ValueError(f"model.{name}={value} means nothing to the network {config.network}")
    if config.basis is not None:
        options["method"] = (config.basis, config.estimator)
    return network(data.num_features, len(data.classes), generator=generator, **options)
