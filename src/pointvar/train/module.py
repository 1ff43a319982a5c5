"""The Lightning modules: a network, its loss, its optimiser, its metrics."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torchmetrics.classification import MulticlassConfusionMatrix

from pointvar.convolution import PointConvolution
from pointvar.train.clipping import AdaptiveClipping, decayed
from pointvar.train.config import OptimizerConfig
from pointvar.train.divergence import DivergedError, explain
from pointvar.train.loader import Prepared, WholeScene
from pointvar.train.metrics import Metrics
from pointvar.train.muon import Muon
from pointvar.train.voting import predict_scene

SCORE = "score"
"""Name of the logged value of a network in an evaluation: the larger, the better."""


class _Supervised(lightning.LightningModule):
    """Training with labels. Batches are ``Prepared``.

    Args:
        model: the network.
        classes: their names.
        optimizer: settings; default: those of ``OptimizerConfig``.
        class_weights: of the loss.
        steps: of the whole training, for a schedule over all of them; default: Lightning's estimate. That
            sets up the loader before a checkpoint says where it is to go on, so that a run cannot be resumed
            in the middle of an epoch.
    """

    class_weights: Tensor | None
    score: str
    """Of the metrics, that by which networks are compared."""

    def __init__(
        self,
        model: nn.Module,
        classes: list[str],
        optimizer: OptimizerConfig | None = None,
        class_weights: Tensor | None = None,
        steps: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.classes, self.steps = model, list(classes), steps
        self.settings = optimizer or OptimizerConfig()
        self.confusion = MulticlassConfusionMatrix(len(classes), ignore_index=-1, validate_args=False)
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.metrics: Metrics | None = None
        """Of the last evaluation."""
        self.totals = torch.zeros(3, dtype=torch.float64)
        """Of the present epoch: loss times labels, labels predicted, labels."""
        self._clip: AdaptiveClipping | None = None
        if self.settings.agc is not None:
            self._clip = AdaptiveClipping(model, self.settings.agc)

    @abstractmethod
    def loss(self, scores: Tensor, batch: Prepared) -> Tensor:
        """A scalar from the scores ``[M, classes]`` of a batch."""

    def forward(self, batch: Prepared) -> Tensor:
        return self.model(batch.features, batch.levels)

    def training_step(self, batch: Prepared, number: int) -> Tensor:
        # Dropout depends on the batch, not on what was drawn before. On a CPU torch.manual_seed would keep a
        # stack trace of every call for the day that another device is used: milliseconds, and memory.
        seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
        seed(batch.seed)
        scores = self(batch)
        loss = self.loss(scores, batch)
        self._refuse_divergence(loss, batch)
        with torch.no_grad():
            hits = (scores.argmax(1) == batch.labels).sum()
            count = (batch.labels >= 0).sum()
            self.totals += torch.stack([loss * count, hits, count]).to(self.totals)
        return loss

    def _refuse_divergence(self, loss: Tensor, batch: Prepared) -> None:
        bad = not bool(torch.isfinite(loss.detach()))
        if self.trainer.strategy.reduce_boolean_decision(bad, all=False):  # all processes stop, or none
            where = explain(self.model, batch)
            when = f"epoch {self.current_epoch + 1}, step {self.global_step}"
            raise DivergedError(f"the loss is {float(loss.detach()):g} in {when}: {where}")

    def validation_step(self, batch: Prepared | WholeScene, number: int) -> None:
        if isinstance(batch, WholeScene):
            found, _ = predict_scene(self.model, batch.sample, batch.config, seed=batch.seed)
            self.confusion.update(
                found.to(self.device), torch.as_tensor(batch.sample.label, device=self.device)
            )
        else:
            self.confusion.update(self(batch).argmax(1), batch.labels)

    def on_validation_epoch_end(self) -> None:
        self.metrics = Metrics.of(self.confusion.compute().cpu(), self.classes)
        self.confusion.reset()
        # For callbacks that compare networks; the loggers get all numbers of an epoch at once.
        self.log(SCORE, getattr(self.metrics, self.score), logger=False, sync_dist=True)

    def configure_optimizers(self) -> Any:
        settings, chosen = self.settings, {id(p) for p in decayed(self.model)}
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": held, "weight_decay": amount}
            for decay, amount in ((True, settings.weight_decay), (False, 0.0))
            if (held := [p for p in parameters if (id(p) in chosen) == decay])
        ]
        # One pass over the memory where there is one; else as few kernels as there can be.
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        passes: Any = {"fused": fused, "foreach": not fused}
        optimizer: torch.optim.Optimizer
        if settings.name == "muon":
            optimizer = Muon(groups, settings.rate, settings.momentum)
        elif settings.name == "adamw":
            optimizer = torch.optim.AdamW(groups, settings.rate, (settings.momentum, 0.999), **passes)
        else:
            optimizer = torch.optim.SGD(groups, settings.rate, settings.momentum, **passes)
        return {"optimizer": optimizer, "lr_scheduler": self._schedule(optimizer)}

    def _schedule(self, optimizer: torch.optim.Optimizer) -> Any:
        settings = self.settings
        if settings.schedule == "milestones":
            return lr_scheduler.MultiStepLR(optimizer, settings.milestones, settings.gamma)
        steps = self.steps or int(self.trainer.estimated_stepping_batches)
        rise = round(settings.warmup * steps)
        schedule: lr_scheduler.LRScheduler
        if settings.schedule == "one-cycle":
            # The momentum stays: it has a setting of its own.
            schedule = lr_scheduler.OneCycleLR(
                optimizer, settings.rate, steps, pct_start=settings.warmup, cycle_momentum=False
            )
        else:
            schedule = lr_scheduler.CosineAnnealingLR(optimizer, steps - rise)
            if rise:
                warm = lr_scheduler.LinearLR(optimizer, 1 / (rise + 1), total_iters=rise)
                schedule = lr_scheduler.SequentialLR(optimizer, [warm, schedule], [rise])
        return {"scheduler": schedule, "interval": "step"}

    def on_train_batch_start(self, batch: Any, number: int) -> None:
        every, step = self.settings.refresh, self.global_step
        if every is None or step % every or not step or number % self.settings.accumulate:
            return  # gradients that are being summed have the coordinates of today
        for conv in self.model.modules():
            if isinstance(conv, PointConvolution) and any(p.requires_grad for p in conv.basis.parameters()):
                conv.refresh_precondition()

    def on_train_epoch_start(self) -> None:
        self.totals.zero_()

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        if self._clip is not None:
            self._clip()
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
        return batch if device == batch.features.device else batch.to(device, non_blocking=True)

    def epoch_totals(self) -> Tensor:
        """``totals``, averaged over the ranks."""
        totals = self.totals.to(self.device, copy=True)  # reduced in place
        return self.trainer.strategy.reduce(totals, reduce_op="mean").cpu()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["totals"] = self.epoch_totals()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.totals = checkpoint["totals"]


class ClassificationModule(_Supervised):
    """A class for each cloud: mean cross-entropy over the clouds of a batch."""

    score = "accuracy"

    def loss(self, scores: Tensor, batch: Prepared) -> Tensor:
        return functional.cross_entropy(scores.float(), batch.labels, self.class_weights, ignore_index=-1)


class SegmentationModule(_Supervised):
    """A class for each point: mean cross-entropy over the labelled points of each cloud, then over clouds.

    A cloud without any label counts as none, and a batch without any gives a loss of 0.
    """

    score = "mean_iou"

    def loss(self, scores: Tensor, batch: Prepared) -> Tensor:
        each = functional.cross_entropy(
            scores.float(), batch.labels, self.class_weights, ignore_index=-1, reduction="none"
        )
        # Each row has the weight of its class as a factor already, and is 0 where there is no label.
        weight = (batch.labels >= 0).to(each.dtype)
        if self.class_weights is not None:
            weight = weight * self.class_weights[batch.labels.clamp(min=0)]
        queries = batch.levels.queries
        sums = each.new_zeros(2, queries.num_clouds).index_add(1, queries.batch, torch.stack([each, weight]))
        labelled = sums[1] > 0
        return (sums[0] / sums[1].where(labelled, 1.0)).sum() / labelled.sum().clamp(min=1)
