"""Accuracies and intersections over unions, from one confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Metrics:
    """How well labels were predicted. A class that occurs neither in the labels nor in the predictions has no
    IoU (``None``), one without labels no accuracy; the means leave them out."""

    accuracy: float
    """Share of labels that were predicted."""
    mean_accuracy: float
    """Mean over the classes of that share."""
    mean_iou: float
    """Mean over the classes of intersection over union."""
    iou: dict[str, float | None]
    """By class."""
    count: int
    """Labels that were compared."""

    @staticmethod
    def of(confusion: Tensor, classes: list[str]) -> Metrics:
        """From counts ``[label, prediction]``."""
        counts = confusion.double()
        hit, labels, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        union = labels + predicted - hit
        iou = hit / union
        total = float(labels.sum())
        return Metrics(
            accuracy=float(hit.sum()) / total if total else float("nan"),
            mean_accuracy=float((hit / labels).nanmean()),
            mean_iou=float(iou.nanmean()),
            iou={c: None if torch.isnan(v) else float(v) for c, v in zip(classes, iou, strict=True)},
            count=int(total),
        )

    def scalars(self) -> dict[str, float]:
        """The three numbers that say most."""
        return {"accuracy": self.accuracy, "mean_accuracy": self.mean_accuracy, "mean_iou": self.mean_iou}

    def __str__(self) -> str:
        lines = [f"{name.replace('_', ' ')}: {value:.4f}" for name, value in self.scalars().items()]
        width = max(map(len, self.iou), default=0)
        lines += [f"  {c.ljust(width)}  {'-' if v is None else f'{v:.4f}'}" for c, v in self.iou.items()]
        return "\n".join(lines)
