"""From the model section of a configuration to a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pointvar import models
from pointvar.train.config import ModelConfig
from pointvar.train.sources import Data

NETWORKS = {"classifier": "Classifier", "unet": "SegmentationUNet"}


def build_model(config: ModelConfig, data: Data, generator: torch.Generator | None = None) -> nn.Module:
    """The network of a configuration for given data, with its weights drawn by the standard."""
    network = getattr(models, NETWORKS[config.network])
    options: dict[str, Any] = {
        "method": config.method if config.basis is None else (config.basis, config.estimator),
        "norm": config.norm,
        "unit_response": config.unit_response,
        "max_neighbors": config.max_neighbors,
    }
    names = ("num_basis", "channels", "head", "radii", "reach", "head_norm", "dropout", "head_dropout")
    for name in (*names, "bias", "first_reach"):
        value = getattr(config, name)
        if value is not None:
            options[name] = value
    if config.recompute:
        options["checkpoint"] = True
    try:
        return network(data.num_features, len(data.classes), generator=generator, **options)
    except TypeError as error:
        raise ValueError(f"model.network={config.network}: {error}") from error
