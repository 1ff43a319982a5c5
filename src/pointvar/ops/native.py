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
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_LEVELS = ("avx512", "avx2", "baseline")


def _load() -> ModuleType | None:
    backend = os.environ.get("POINTVAR_BACKEND", "native")
    if backend not in ("native", "reference"):
        raise ValueError(f"POINTVAR_BACKEND must be 'native' or 'reference', got {backend!r}")
    if backend == "reference":
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


def native_info() -> dict[str, Any]:
    """Which kernels run and how: backend, instruction set, threads, OpenMP runtime."""
    facts: dict[str, Any] = {"backend": "native" if available else "reference"}
    facts["instruction_set"] = _module.level if available else None
    facts["threads"] = _module.max_threads() if available else torch.get_num_threads()
    facts["openmp"] = _module.openmp_runtime() if available else None
    return facts


def empty_cache() -> None:
    """Gives back the memory that the native kernels keep for their next call (1/32 of all at most)."""
    if available:
        _module.empty_cache()


def ball_query(
    support: Tensor,
    support_offsets: Tensor,
    queries: Tensor,
    query_offsets: Tensor,
    radius: Tensor,
    max_neighbors: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _module.ball_query(
        *_plain(support, support_offsets, queries, query_offsets, radius), max_neighbors, seed
    )
    return result


def knn(
    support: Tensor, support_offsets: Tensor, queries: Tensor, query_offsets: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _module.knn(
        *_plain(support, support_offsets, queries, query_offsets), k
    )
    return result


def poisson_disk(points: Tensor, offsets: Tensor, radius: Tensor, seed: int) -> Tensor:
    result: Tensor = _module.poisson_disk(*_plain(points, offsets, radius), seed)
    return result


def farthest_points(points: Tensor, offsets: Tensor, counts: Tensor, start: Tensor, total: int) -> Tensor:
    result: Tensor = _module.farthest_points(*_plain(points, offsets, counts, start), total)
    return result


def kernel_density(points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    result: Tensor = _module.kernel_density(*_plain(points, offsets, bandwidth))
    return result


def kernel_density_backward(grad: Tensor, points: Tensor, offsets: Tensor, bandwidth: Tensor) -> Tensor:
    result: Tensor = _module.kernel_density_backward(*_plain(grad, points, offsets, bandwidth))
    return result


def transpose(row_offsets: Tensor, indices: Tensor, num_support: int) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _module.transpose(*_plain(row_offsets, indices), num_support)
    return result


def _plain(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().contiguous() for tensor in tensors]
