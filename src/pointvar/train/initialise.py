"""A Lightning callback that draws the weights before the first step, by any of the named initialisations."""

from __future__ import annotations

import inspect
from itertools import islice
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import nn

from pointvar.convolution import PointConvolution
from pointvar.init import INITS, InitReport
from pointvar.init.center import Center
from pointvar.layers import Forward, Select, devices_of
from pointvar.nn import remove_norms
from pointvar.train.config import InitConfig
from pointvar.train.loader import Prepared
from pointvar.without_norms import NormFreeReport
from pointvar.without_norms import norm_free as without_norms


class VarianceInit(lightning.Callback):
    """Gives the weights of any Lightning module constant variance before its first step.

    Add it to your ``Trainer``: ``Trainer(callbacks=[VarianceInit(batches=8)])``. When training starts, it
    measures on the first batches of the training loader (``pointvar.variance_init``). With several processes,
    each measures on its own batches and all get the same weights. It does nothing when a checkpoint is
    resumed. ``report`` says what was done.

    Args:
        batches: how many batches to measure on.
        forward: ``forward(module, batch)`` calls the network; default: ``module(*batch)``,
            ``module(**batch)`` or ``module(batch)``, without what the module has no parameters for, such as
            labels. Else say how: ``lambda module, batch: module(batch[0])``.
        layers, target: as for ``pointvar.variance_init``.
        seed: of the weights, and of dropout while measuring.
        method: a name of ``pointvar.init.INITS``.
        table: of ``method="transfer"``: a table of z that is shipped, or a file.
        part: the name of the submodule to initialise; default: the whole module.
        center, dropout: as for ``pointvar.variance_init``.
        norm_free: takes the batch norms out as well, as ``pointvar.norm_free`` does, which then sets the
            weights. They go before the optimiser is made, and whenever a checkpoint of such a training is
            resumed.
    """

    def __init__(
        self,
        batches: int = 8,
        forward: Forward | None = None,
        layers: Select = None,
        target: float = 1.0,
        seed: int = 0,
        *,
        method: str = "direct",
        table: str | Path = "modelnet40",
        part: str = "",
        center: Center | None = None,
        dropout: bool = False,
        norm_free: bool = False,
    ) -> None:
        if batches < 1:
            raise ValueError(f"VarianceInit needs at least one batch, got {batches}")
        INITS.check(method)
        self.batches, self.seed, self.method, self.part = batches, seed, method, part
        self.options: dict[str, Any] = {
            "forward": forward,
            "layers": layers,
            "target": target,
            "table": table,
            "dropout": dropout,
        }
        if center is not None:  # else that of the function called
            self.options["center"] = center
        if norm_free and (method != "direct" or layers is not None):
            raise ValueError("norm_free sets all layers by its own method: give neither method nor layers")
        self.norm_free = norm_free
        self.report: InitReport | NormFreeReport | None = None
        self._norms: dict[str, str] = {}

    def setup(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        """Takes the norms out before the optimiser is made, which is to know what takes their place."""
        if self.norm_free and stage == "fit":
            self._norms |= remove_norms(module.get_submodule(self.part))

    @classmethod
    def from_settings(cls, settings: InitConfig, seed: int) -> VarianceInit:
        """The initialisation of a configuration, for the modules that ``fit`` trains.

        Linear layers keep PyTorch's default, as in the paper, unless all layers are asked for.
        """
        layers = PointConvolution if settings.layers == "convolutions" else None
        options: dict[str, Any] = {
            "method": settings.method,
            "table": settings.table,
            "part": "model",
            "center": settings.center,
            "dropout": True,  # as in the paper, whose networks have it before every convolution
        }
        return cls(settings.batches, forward, layers, settings.target, seed, **options)

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.ckpt_path is not None or trainer.global_step > 0:
            return
        loader: Any = trainer.train_dataloader
        chosen = islice(iter(loader), self.batches)
        batches = [module.transfer_batch_to_device(batch, module.device, 0) for batch in chosen]
        generator = torch.Generator().manual_seed(self.seed)
        offered: dict[str, Any] = {"batches": batches, "generator": generator, **self.options}
        initialise = without_norms if self.norm_free else INITS[self.method]
        wanted = inspect.signature(initialise).parameters
        if "input_moment" in wanted and all(isinstance(batch, Prepared) for batch in batches):
            features = torch.cat([batch.features for batch in batches])
            offered["input_moment"] = float(features.double().square().mean())
        model = module.get_submodule(self.part)
        with torch.random.fork_rng(devices=devices_of(model)):
            torch.manual_seed(self.seed)
            self.report = initialise(model, **{name: offered[name] for name in wanted if name in offered})
        if isinstance(self.report, NormFreeReport):
            self.report.norms = self._norms | self.report.norms


def forward(model: nn.Module, batch: Prepared) -> Any:
    """How the networks here take a batch."""
    return model(batch.features, batch.levels)
