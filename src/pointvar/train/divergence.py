"""When a run has diverged: where it began."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pointvar.diagnose import variance_report
from pointvar.train.loader import Prepared


class DivergedError(RuntimeError):
    """The loss is not a finite number; the message names the layer where that began."""


def explain(model: nn.Module, batch: Prepared) -> str:
    """Where a network's numbers cease to be finite on a batch, in words."""
    if not torch.isfinite(batch.features).all():
        return "the input features are not finite"
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the parameter {name} is not finite, so the step before was too large"
    first: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not first and isinstance(output, Tensor) and not torch.isfinite(output).all():
                first.append(f"{name} ({type(module).__name__})")

        return hook

    # Hooks of inner modules run before those of what contains them, so the first is the innermost.
    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        report = variance_report(
            model,
            batch,
            backward=False,
            forward=lambda network, x: (torch.manual_seed(x.seed), network(x.features, x.levels))[1],
        )
    finally:
        for handle in handles:
            handle.remove()
    if first:
        return f"it began in {first[0]}, whose output is the first that is not finite\n{report}"
    largest = max(report.layers, key=lambda layer: layer.variance)
    return f"all outputs are finite, the largest are those of {largest.name}\n{report}"
