"""What all data sets share: the interface, and what happens to files that are missing or broken."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset

from pointvar.data.formats import BadFileError
from pointvar.data.sample import Sample

T = TypeVar("T")
Task = Literal["classification", "segmentation"]
Errors = Literal["raise", "skip"]


class PointData(Dataset[Sample]):
    """The interface of every data set here: indexed samples with the names of their classes.

    ``task`` is "classification" (a label per cloud) or "segmentation" (a label per point, -1 for none).
    """

    task: Task
    classes: list[str]
    num_features: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> Sample:
        """Sample ``index``, from 0 to ``len(self) - 1``."""

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        return self.load(int(index) % len(self))


def usable(items: Sequence[T], load: Callable[[T], Any], errors: Errors) -> list[T]:
    """The items that can be loaded.

    With "raise" all are kept, and a broken one raises when it is used. With "skip" each is tried now; a
    warning says how many were left out, and names each of them.
    """
    check_choice("errors", errors, ("raise", "skip"))
    if errors == "raise":
        return list(items)
    good, bad = [], []
    for item in items:
        try:
            load(item)
            good.append(item)
        except BadFileError as error:
            bad.append(str(error))
    if not good:
        raise BadFileError(f"none of the {len(items)} files can be used:\n" + "\n".join(bad))
    if bad:
        warnings.warn(f"{len(bad)} of {len(items)} files are skipped:\n" + "\n".join(bad), stacklevel=3)
    return good


def require(path: Path, name: str, layout: str) -> Path:
    """A path, or an error with the layout and the source of the data set where there is nothing."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: {path} is missing.\nExpected layout:\n{layout}")
    return path


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def path_of(settings: Any) -> Path:
    """Where the files are, from the data section of a configuration."""
    if settings.path is None:
        raise ValueError(f"data.path must say where the files of {settings.name} are")
    return Path(settings.path)


def first_points(array: Any, num_points: int | None, name: str) -> Any:
    """The first points of a cloud; asking for more than there are is an error."""
    if num_points is None:
        return array
    if not 1 <= num_points <= len(array):
        raise ValueError(f"{name} has {len(array)} points, num_points={num_points} cannot be taken from it")
    return array[:num_points]


def tensor(array: ArrayLike) -> Tensor:
    """A float32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
