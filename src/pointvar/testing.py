"""Checks for the tests of those who build on this library."""

from __future__ import annotations

from typing import Any

from torch import nn

from pointvar.diagnose import variance_report
from pointvar.layers import Forward, Select


def assert_variance(
    model: nn.Module,
    batch: Any,
    low: float = 0.5,
    high: float = 2.0,
    *,
    forward: Forward | None = None,
    layers: Select = None,
    mode: str | None = None,
) -> None:
    """Fails unless the output of every layer has a second moment within [low, high] on this batch.

    The arguments are those of ``variance_report``. The error shows the table, and names the layers.
    """
    report = variance_report(model, batch, backward=False, forward=forward, layers=layers, mode=mode)
    outside = [layer.name for layer in report.layers if not low <= layer.variance <= high]
    if outside:
        raise AssertionError(f"variance outside [{low}, {high}] at {', '.join(outside)}\n{report}")
