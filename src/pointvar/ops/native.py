"""The C++ kernels on the CPU, with the signatures of ``reference.py``.

The module is built once per instruction set; the best one that this processor runs is imported.
torch comes first: its OpenMP runtime is then the one that the kernels find, so that
``torch.set_num_threads`` rules both.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

_LEVELS = ("avx512", "avx2", "baseline")

WISH = os.environ.get("POINTVAR_BACKEND", "")
"""The backend that is asked for; nothing: the fastest of each device (``backends.py``)."""
if WISH not in ("", "native", "reference", "triton"):
    raise ValueError(f"POINTVAR_BACKEND must be 'native', 'triton' or 'reference', got {WISH!r}")


def _load() -> ModuleType | None:
    if WISH == "reference":
        return None
    level = os.environ.get("POINTVAR_ISA", "")
    if level not in ("", *_LEVELS):
        raise ValueError(f"POINTVAR_ISA must be one of {', '.join(_LEVELS)}, got {level!r}")
    try:
        baseline = importlib.import_module("pointvar._native_baseline")
        supported = [name for name in _LEVELS if baseline.supports(name) and _built(name)]
        if level and level not in supported:
            raise ValueError(f"POINTVAR_ISA={level} does not run here; available: {', '.join(supported)}")
        return importlib.import_module(f"pointvar._native_{level or supported[0]}")
    except ImportError as error:
        warnings.warn(
            f"pointvar's native kernels cannot be imported ({error}); plain torch is used instead, "
            "with the same results but much slower. Reinstall pointvar with a C++ compiler at hand, "
            "or set POINTVAR_BACKEND=reference to silence this.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _built(level: str) -> bool:
    return importlib.util.find_spec(f"pointvar._native_{level}") is not None


_module: Any = _load()
available = _module is not None


def facts() -> dict[str, Any]:
    """Instruction set, threads and OpenMP runtime of the kernels, where there are any."""
    return {
        "instruction_set": _module.level if available else None,
        "threads": _module.max_threads() if available else torch.get_num_threads(),
        "openmp": _module.openmp_runtime() if available else None,
    }


def empty_cache() -> None:
    """Gives back the memory that the native kernels keep for their next call (1/32 of all at most)."""
    if available:
        _module.empty_cache()


def _kernel(name: str) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        return getattr(_module, name)(*map(_plain, arguments))

    return run


def _plain(argument: Any) -> Any:
    return capsule(argument.detach().contiguous()) if isinstance(argument, Tensor) else argument


def capsule(tensor: Tensor | None) -> Any:
    """How a tensor crosses into the module: its own ``__dlpack__`` takes ten times as long."""
    return None if tensor is None else to_dlpack(tensor)


ball_query = _kernel("ball_query")
knn = _kernel("knn")
poisson_disk = _kernel("poisson_disk")
spatial_order = _kernel("spatial_order")
farthest_points = _kernel("farthest_points")
kernel_density = _kernel("kernel_density")
kernel_density_backward = _kernel("kernel_density_backward")
transpose = _kernel("transpose")
geometry = _kernel("geometry") if available else None


def clip_units(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], units: Sequence[int], limit: float, eps: float
) -> None:
    """``clipping.clip_units``; tensors must be contiguous, float32 or float64."""
    _module.clip_units(list(map(capsule, weights)), list(map(capsule, gradients)), units, limit, eps)
