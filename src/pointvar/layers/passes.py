"""Passes of batches through a model: how it is fed, and how it is left as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pointvar.cloud import PointCloud
from pointvar.geometry import Hierarchy, Neighborhood

Forward = Callable[[Any, Any], Any]


def feed(model: nn.Module, batch: Any) -> Any:
    """How a batch is fed to a model by default: a tuple or list as arguments, a mapping as keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


def as_batches(batches: Any, limit: int | None = None) -> list[Any]:
    """A list of batches from one (a tuple, a mapping, a tensor, any other object) or many (a list, a data
    loader, an iterator)."""
    if limit is not None and limit < 1:
        raise ValueError(f"num_batches must be at least 1, got {limit}")
    if isinstance(batches, (Neighborhood, Hierarchy)):
        raise TypeError(f"a {type(batches).__name__} is no batch: give (features, neighbourhood) as a tuple")
    if batches is None or isinstance(batches, (str, bytes, Number, set, frozenset, nn.Module, Dataset)):
        raise TypeError(
            "batches must be one batch (a tuple, a mapping, a tensor, an object) or many (a list, a "
            f"DataLoader, an iterator), got {type(batches).__name__}"
        )
    many = isinstance(batches, (list, DataLoader)) or (
        isinstance(batches, Iterable) and inspect.getattr_static(batches, "__next__", None) is not None
    )
    if not many:
        return [batches]
    if isinstance(batches, list) and any(isinstance(b, (Neighborhood, Hierarchy)) for b in batches):
        raise TypeError("a list is a list of batches: give one batch as a tuple, (features, neighbourhood)")
    result = list(islice(batches, limit))
    if not result:
        raise ValueError("there are no batches to measure on")
    return result


def size_of(batch: Any) -> tuple[int | None, int | None]:
    """How many clouds and points a batch has, where it says so."""
    if isinstance(batch, Hierarchy):
        batch = batch.clouds[0] if len(batch.clouds) else None
    if isinstance(batch, Neighborhood):
        batch = batch.support
    if isinstance(batch, PointCloud):
        return batch.num_clouds, batch.num_points
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        sizes = [size_of(part) for part in batch if not isinstance(part, Tensor)]
        return next((size for size in sizes if size[0] is not None), (None, None))
    cloud = getattr(batch, "cloud", None)
    return size_of(cloud) if isinstance(cloud, PointCloud) else (None, None)


@contextmanager
def restored(model: nn.Module, mode: str | None = "train") -> Iterator[None]:
    """Puts a model into a mode for passes that leave no trace: buffers, flags and random state come back, and
    after an exception the parameters too."""
    if mode not in ("train", "eval", None):
        raise ValueError(f"mode must be 'train', 'eval' or None (as the model is), got {mode!r}")
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    parameters = [(p, p.detach().clone()) for p in model.parameters()]
    try:
        with torch.random.fork_rng(devices=devices_of(model)):
            if mode is not None:
                model.train(mode == "train")
            yield
    except BaseException:
        _copy_back(parameters)
        raise
    finally:
        for module, training, held in modules:
            module.training = training
            module._buffers.update(held)  # also where a pass has put a new tensor in the place of a buffer
        _copy_back(buffers)


@torch.no_grad()
def _copy_back(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in pairs:
        tensor.copy_(value)


def devices_of(model: nn.Module) -> list[torch.device]:
    """The CUDA devices that hold parameters of a model: their random state is kept apart."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})
