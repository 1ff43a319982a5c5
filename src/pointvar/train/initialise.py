"""The initialisations by name, and a Lightning callback that applies one before the first step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import nn

from pointvar import init
from pointvar.convolution import PointConvolution
from pointvar.init import InitReport
from pointvar.layers import Forward, Select
from pointvar.train.config import InitConfig
from pointvar.train.loader import Prepared

MEASURED: dict[str, Callable[..., InitReport]] = {
    "direct": init.variance_init,
    "lsuv": init.lsuv_init,
    "data-dependent": init.data_dependent_init,
}
RULES: dict[str, Callable[..., InitReport]] = {
    "standard": init.standard_init,
    "authors": init.authors_init,
    "xavier": init.xavier_init,
}


def initialise(
    model: nn.Module, config: InitConfig, batches: list[Prepared], generator: torch.Generator
) -> InitReport:
    """Draws the weights of a network as a configuration says.

    Linear layers keep what they have, PyTorch's default, as in the paper, unless all layers are asked for.
    """
    if config.method == "none":
        return InitReport("none")
    layers = PointConvolution if config.layers == "convolutions" else None
    options: dict[str, Any] = {"layers": layers, "generator": generator}
    if config.method in RULES:
        return RULES[config.method](model, **options)
    if config.method in MEASURED:
        return MEASURED[config.method](model, batches, config.target, forward=forward, **options)
    features = torch.cat([batch.features for batch in batches])
    options["input_moment"] = float(features.double().square().mean())
    if config.method == "transfer":
        return init.transfer_init(model, config.table, config.target, **options)
    activation = next((m for m in model.modules() if isinstance(m, (nn.ReLU, nn.LeakyReLU))), "leaky_relu")
    return init.closed_form_init(model, activation, config.target, **options)


def forward(model: nn.Module, batch: Prepared) -> Any:
    """How the networks here take a batch."""
    return model(batch.features, batch.levels)


class VarianceInit(lightning.Callback):
    """Gives the weights of any Lightning module constant variance before its first step.

    Add it to your ``Trainer``: ``Trainer(callbacks=[VarianceInit(batches=8)])``. When training starts, it
    measures on the first batches of the training loader (``pointvar.variance_init``). With several processes,
    each measures on its own batches and all get the same weights. It does nothing when a checkpoint is
    resumed. ``report`` says what was done.

    Args:
        batches: how many batches to measure on.
        forward: ``forward(module, batch)`` calls the network; default: ``module(*batch)``,
            ``module(**batch)`` or ``module(batch)``. Where a batch holds labels, say how to leave them out:
            ``lambda module, batch: module(batch[0])``.
        layers, target: as for ``pointvar.variance_init``.
        seed: of the weights.
    """

    def __init__(
        self,
        batches: int = 8,
        forward: Forward | None = None,
        layers: Select = None,
        target: float = 1.0,
        seed: int = 0,
    ) -> None:
        if batches < 1:
            raise ValueError(f"VarianceInit needs at least one batch, got {batches}")
        self.batches, self.forward, self.layers = batches, forward, layers
        self.target, self.seed = target, seed
        self.report: InitReport | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.ckpt_path is not None or trainer.global_step > 0:
            return
        loader: Any = trainer.train_dataloader
        batches = [
            module.transfer_batch_to_device(batch, module.device, 0)
            for batch in islice(iter(loader), self.batches)
        ]
        self.report = self.apply(module, batches, torch.Generator().manual_seed(self.seed))

    def apply(
        self, module: lightning.LightningModule, batches: list[Any], generator: torch.Generator
    ) -> InitReport:
        return init.variance_init(
            module, batches, self.target, self.forward, layers=self.layers, generator=generator
        )
