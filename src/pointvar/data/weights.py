"""Weights of the classes for a loss, from how often they occur."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pointvar.data.base import PointData


def label_counts(data: PointData, ignore_index: int = -1) -> Tensor:
    """How many samples (or points, with a label each) a class has, ``[classes]``; reads all the data."""
    return count_labels((data[index].label for index in range(len(data))), len(data.classes), ignore_index)


def count_labels(labels: Iterable[int | Tensor], num_classes: int, ignore_index: int = -1) -> Tensor:
    """How often each class occurs in a series of labels or of label tensors, ``[classes]``, int64."""
    counts = torch.zeros(num_classes, dtype=torch.int64)
    for label in labels:
        values = torch.as_tensor(label).reshape(-1)
        values = values[values != ignore_index]
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
            raise ValueError(
                f"labels must be 0 to {num_classes - 1} or {ignore_index}, got {values.unique().tolist()}"
            )
        counts += torch.bincount(values, minlength=num_classes)
    return counts


def class_weights(counts: Tensor, power: float = 1.0) -> Tensor:
    r"""Weights that even out rare and frequent classes, ``[classes]``, float32.

    .. math:: w_c \propto (1 / n_c)^{power}, \qquad \sum_c n_c w_c = \sum_c n_c

    so that the mean weight over the labels is 1 and the size of the loss stays as it was. ``power`` 1 gives
    all classes the same total weight, 0.5 is milder, 0 gives 1 for all. A class that does not occur gets 0.
    """
    count = counts.to(torch.float64)
    if count.dim() != 1 or bool((count < 0).any()) or float(count.sum()) == 0:
        raise ValueError(f"counts must be a list of counts that are not all 0, got {counts.tolist()}")
    raw = torch.where(count > 0, count.clamp_min(1).pow(-power), 0.0)
    return (raw * count.sum() / (raw * count).sum()).float()
