"""Accuracies and intersections over unions, from one confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Metrics:
    """How well labels were predicted. A class that does not occur in the labels has neither accuracy nor IoU
    (``None``), and the means leave it out: they are over the same classes whatever was predicted. Points that
    were taken for such a class are missing in their own."""

    accuracy: float
    """Share of labels that were predicted."""
    mean_accuracy: float
    """Mean over the classes that occur of that share."""
    mean_iou: float
    """Mean over the classes that occur of intersection over union."""
    iou: dict[str, float | None]
    """By class."""
    count: int
    """Labels that were compared."""
    classes: int
    """Classes that occur, over which the means are."""
    precision: dict[str, float | None]
    """By class, the share of its predictions that are right; ``None``: it was never predicted."""
    recall: dict[str, float | None]
    """By class, the share of its labels that were predicted; ``None``: it has no labels."""
    labels: dict[str, int]
    """By class, how many there are."""
    confusion: dict[str, dict[str, int]]
    """By the class of the label, how often which class was predicted; those that never were are left out."""

    @staticmethod
    def of(confusion: Tensor, classes: list[str]) -> Metrics:
        """From counts ``[label, prediction]``."""
        counts = confusion.double()
        hit, labels, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        union = labels + predicted - hit
        present = labels > 0
        iou = (hit / union).where(present, torch.nan)
        total = float(labels.sum())

        def by_class(values: Tensor) -> dict[str, float | None]:
            return {c: None if torch.isnan(v) else float(v) for c, v in zip(classes, values, strict=True)}

        return Metrics(
            accuracy=float(hit.sum()) / total if total else float("nan"),
            mean_accuracy=float((hit / labels).nanmean()),
            mean_iou=float(iou.nanmean()),
            iou=by_class(iou),
            count=int(total),
            classes=int(present.sum()),
            precision=by_class(hit / predicted),
            recall=by_class(hit / labels),
            labels=dict(zip(classes, labels.long().tolist(), strict=True)),
            confusion={
                label: {c: count for c, count in zip(classes, row, strict=True) if count}
                for label, row in zip(classes, confusion.tolist(), strict=True)
            },
        )

    def scalars(self) -> dict[str, float]:
        """The three numbers that say most."""
        return {"accuracy": self.accuracy, "mean_accuracy": self.mean_accuracy, "mean_iou": self.mean_iou}

    def __str__(self) -> str:
        lines = [f"{name.replace('_', ' ')}: {value:.4f}" for name, value in self.scalars().items()]
        lines[2] = f"mean IoU: {self.mean_iou:.4f} over {self.classes} of {len(self.iou)} classes"
        width = max(map(len, self.iou), default=0)
        lines.append(f"  {'':{width}}     IoU  precision  recall  labels")
        for c, n in self.labels.items():
            numbers = [self.iou[c], self.precision[c], self.recall[c]]
            iou, precision, recall = ("-" if v is None else f"{v:.4f}" for v in numbers)
            lines.append(f"  {c:{width}}  {iou:>6}  {precision:>9}  {recall:>6}  {n:,}")
        return "\n".join(lines)
