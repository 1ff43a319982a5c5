"""From the model section of a configuration to a network."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from pointvar.models import NETWORKS
from pointvar.train.config import ModelConfig
from pointvar.train.sources import Data


def build_model(config: ModelConfig, data: Data, generator: torch.Generator | None = None) -> nn.Module:
    """The network of a configuration for given data, with its weights drawn by the standard."""
    network = NETWORKS.resolve(config.network)
    if network.task != data.task:
        raise ValueError(f"model.network={config.network} is for {network.task}, the data for {data.task}")
    known = inspect.signature(network).parameters
    options: dict[str, Any] = {}
    for name in (f.name for f in fields(ModelConfig)):
        value = getattr(config, name)
        if name in ("network", "basis", "estimator", "recompute") or value is None:
            continue
        if name in known:
            options[name] = value
        elif value != getattr(ModelConfig(), name):
            raise ValueError(f"model.{name}={value} means nothing to the network {config.network}")
    if "max_neighbors" in known:
        options["max_neighbors"] = config.max_neighbors  # here null says something: no cap
    if config.recompute:
        options["checkpoint"] = True
    if config.basis is not None:
        options["method"] = (config.basis, config.estimator)
    return network(data.num_features, len(data.classes), generator=generator, **options)
