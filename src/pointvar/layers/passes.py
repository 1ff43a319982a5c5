"""Passes of batches through a model: how it is fed, and how it is left as it was."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from numbers import Number
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from pointvar.cloud import PointCloud
from pointvar.convolution import PointConvolution
from pointvar.geometry import Hierarchy, Neighborhood

Forward = Callable[[Any, Any], Any]


def feed(model: nn.Module, batch: Any) -> Any:
    """How a batch is fed to a model by default: a tuple or list as arguments, a mapping as keywords.

    What the model has no parameters for, such as labels at the end, is left out. An error says so.
    """
    signature = inspect.signature(model.forward)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    args, kwargs = ([batch], {}) if not isinstance(batch, (tuple, list)) else (list(batch), {})
    if isinstance(batch, Mapping):
        args, kwargs = [], dict(batch)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            kwargs = {name: value for name, value in batch.items() if name in signature.parameters}
    elif inspect.Parameter.VAR_POSITIONAL not in kinds:
        places = [p for p in signature.parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
        args = args[: max(len(places), 1)]
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        raise TypeError(
            f"a batch of type {type(batch).__name__} does not fit the forward of {type(model).__name__} "
            f"({problem}): say by forward=lambda model, batch: ... how the model is called"
        ) from problem
    try:
        return model(*args, **kwargs)
    except Exception as problem:
        if hasattr(problem, "add_note"):  # Python 3.11
            problem.add_note(_HINT)
        raise


_HINT = (
    "The model was called as model(*batch), model(**batch) or model(batch), without what it has no "
    "parameters for. If that is not how it is called, say how: forward=lambda model, batch: model(batch[0])"
)


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor of real numbers in what a layer returns, however deep."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return next((x for x in map(first_tensor, output) if x is not None), None)
    return None


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
def restored(model: nn.Module, mode: str | None = "train", dropout: bool = True) -> Iterator[None]:
    """Puts a model into a mode for passes that leave no trace: buffers, flags and random state come back, and
    after an exception the parameters too. Without ``dropout``, what drops something in training lets all
    through: modules, and functions of torch.
    """
    if mode not in ("train", "eval", None):
        raise ValueError(f"mode must be 'train', 'eval' or None (as the model is), got {mode!r}")
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    drawn = [*model.parameters(), *preconditioners(model)]
    parameters = [(tensor, tensor.detach().clone()) for tensor in drawn]
    known = {id(tensor) for tensor in drawn}
    buffers = [(b, b.detach().clone()) for b in model.buffers() if id(b) not in known]
    undropped = mode == "train" and not dropout
    caching = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)  # weights change while they are used
        torch.clear_autocast_cache()
        with (
            forked_random(model),
            _other(torch.utils.checkpoint, CheckpointFunction=_Plain),
            ExitStack() as rest,
        ):
            if mode is not None:
                model.train(mode == "train")
            if undropped:
                rest.enter_context(_other(functional, **_DROPS_NOTHING))
                for module, *_ in modules:
                    if "Drop" in type(module).__name__ or isinstance(module, nn.RNNBase):  # DropPath, ...
                        module.eval()
            yield
    except BaseException:
        _copy_back(parameters)
        raise
    finally:
        torch.set_autocast_cache_enabled(caching)
        for module, training, held in modules:
            module.training = training
            module._buffers.update(held)  # also where a pass has put a new tensor in the place of a buffer
        _copy_back(buffers)


def preconditioners(model: nn.Module) -> list[Tensor]:
    """The buffers that belong to weights, and change with them; all others change with data."""
    convolutions = (module for module in model.modules() if isinstance(module, PointConvolution))
    return [convolution.preconditioner for convolution in convolutions if convolution.precondition]


@contextmanager
def _other(module: Any, **others: Any) -> Iterator[None]:
    """Other things under some names of a module."""
    before = {name: getattr(module, name) for name in others}
    vars(module).update(others)
    try:
        yield
    finally:
        vars(module).update(before)


class _Plain:
    """Reentrant checkpointing runs layers without a graph first, and again behind the back of ``grad``, which
    refuses to work with it: what it wraps is run as if it was not wrapped."""

    @staticmethod
    def apply(run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return run(*args)


def _let_through(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    return _ATTENTION(query, key, value, attn_mask, 0.0, *args, **kwargs)


_ATTENTION = functional.scaled_dot_product_attention
_DROPS_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), _let_through),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), _let_through),
    "scaled_dot_product_attention": _attend,
}
"""Modules call these by their names in ``torch.nn.functional``, and so do most networks."""


@contextmanager
def forked_random(model: nn.Module) -> Iterator[None]:
    """Random numbers of torch, of numpy and of Python that are drawn inside leave no trace outside."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002, the global one is what is meant
    try:
        with torch.random.fork_rng(devices=devices_of(model)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@torch.no_grad()
def _copy_back(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in pairs:
        tensor.copy_(value)


def devices_of(model: nn.Module) -> list[torch.device]:
    """The CUDA devices that hold parameters of a model: their random state is kept apart."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})
