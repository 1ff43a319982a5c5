"""From the model section of a configuration to a network."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from pointvar.models import NETWORKS
from pointvar.train.config import ModelConfig
from pointvar.train.sources import Data


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
