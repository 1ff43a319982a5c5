"""Checks for the tests of those who build on this library."""

from __future__ import annotations

from typing import Any

from torch import nn

from pointvar.diagnose import NEVER_CALLED, variance_report
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

    The arguments are those of ``variance_report``. The error shows the table, and names the layers. A layer
    that is called and gives nothing that could be measured fails too.
    """
    report = variance_report(model, batch, backward=False, forward=forward, layers=layers, mode=mode)
    outside = [layer.name for layer in report.layers if not low <= layer.variance <= high]
    strange = {name: why for name, why in report.unmeasured.items() if why != NEVER_CALLED}
    if strange:
        reasons = "; ".join(f"{name} cannot be measured: {why}" for name, why in strange.items())
        raise AssertionError(f"{reasons}\n{report}")
    if outside:
        raise AssertionError(f"variance outside [{low}, {high}] at {', '.join(outside)}\n{report}")
