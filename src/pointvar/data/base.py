"""What all data sets share: the interface, and what happens to files that are missing or broken."""

from __future__ import annotations

import hashlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset

from pointvar.data.files import Array, Arrays, BadFileError, optional
from pointvar.data.mesh import Mesh, sample_surface
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
    if errors not in ("raise", "skip"):
        raise ValueError(f'errors must be "raise" or "skip", got {errors!r}')
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


def require(path: Path, name: str, layout: str, source: str) -> None:
    """Raises, with the layout and the source of the data set, where a file or folder is missing."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: {path} is missing.\nExpected layout:\n{layout}\n{source}")


def check_split(split: str, choices: Sequence[str]) -> None:
    if split not in choices:
        raise ValueError(f"split must be one of {', '.join(choices)}, got {split!r}")


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


def sampled(arrays: Arrays, num_points: int, path: Path) -> Arrays:
    """Points and normals on the surface of a mesh that was read from ``path``; the same each time."""
    seed = hashlib.sha256(path.name.encode()).digest()[:8]
    random = np.random.default_rng(int.from_bytes(seed, "big"))
    try:
        points, normals = sample_surface(Mesh(arrays["points"], arrays["faces"]), num_points, random)
    except ValueError as error:
        raise BadFileError(f"{path}: {error}") from error
    return {"points": points, "normals": normals}


def read_clouds(path: Path) -> tuple[Array, Array]:
    """Many clouds of as many points from one h5 file: ``data`` ``[M, N, 3]`` and ``label`` ``[M]``."""
    h5py = optional("h5py", "data")
    try:
        with h5py.File(path, "r") as content:
            points, labels = content["data"][()], content["label"][()].reshape(-1)
    except Exception as error:
        raise BadFileError(f"{path}: cannot be read as h5 with data and label: {error}") from error
    if points.ndim != 3 or points.shape[2] != 3 or not points.size or len(points) != len(labels):
        raise BadFileError(f"{path}: data {list(points.shape)} and label {list(labels.shape)} do not fit")
    if not np.isfinite(points).all():
        raise BadFileError(f"{path}: data holds NaN or infinity")
    return points, labels.astype(np.int64)
