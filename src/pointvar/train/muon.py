"""Torch's Muon for the weights that are matrices, AdamW for all other parameters, as one optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class Muon(torch.optim.Optimizer):
    """Muon makes the steps of matrices orthogonal; torch's takes matrices alone.

    The weight of a point convolution ``[K, in, out]`` is one, ``[K in, out]``: features are projected and
    then multiplied by it. Biases, weights of norms and the like go by AdamW. Steps of Muon are scaled so that
    a rate and a weight decay mean the same for both (``match_rms_adamw``).

    Args:
        groups: parameters with their ``weight_decay``, as for any optimiser of torch.
        rate, momentum: of both; the momentum is the first beta of AdamW.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], rate: float, momentum: float) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"optimizer.name=muon needs torch 2.9 or newer, this is {torch.__version__}")
        matrices = [p for group in groups for p in group["params"] if p.dim() > 1]
        self._views = {p: nn.Parameter(p.detach().view(-1, p.shape[-1])) for p in matrices}
        rates: dict[str, Any] = {"lr": rate, "weight_decay": 0.0}
        self._parts: list[torch.optim.Optimizer] = []
        if held := self._chosen(groups, True):
            options: dict[str, Any] = {"momentum": momentum, "adjust_lr_fn": "match_rms_adamw"}
            self._parts.append(torch.optim.Muon(held, **rates, **options))
        if held := self._chosen(groups, False):
            self._parts.append(torch.optim.AdamW(held, **rates, betas=(momentum, 0.999)))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _chosen(self, groups: Sequence[dict[str, Any]], matrices: bool) -> list[dict[str, Any]]:
        """The groups with their matrices, seen as such, or with all else."""
        held = [
            [self._views.get(p, p) for p in g["params"] if (p in self._views) == matrices] for g in groups
        ]
        return [{**group, "params": those} for group, those in zip(groups, held, strict=True) if those]

    def _share(self) -> None:
        """The parts work on the state and the groups of the whole, which schedules and checkpoints see."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.state, part.param_groups = self.state, [next(groups) for _ in part.param_groups]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for weight in self._views:
            weight.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for weight, view in self._views.items():
            view.data = weight.detach().view_as(view)  # wherever it is by now
            view.grad = None if weight.grad is None else weight.grad.view_as(view)
        for part in self._parts:
            part.step()
        return loss
