"""Passes through a model that leave no trace on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
