"""What the operators demand of their tensors, before a kernel reads memory by what they say.

Shapes, dtypes and devices only, which cost no look at the numbers. The numbers that a kernel indexes or
allocates by (offsets, indices, orders) are checked by the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from pointvar.ops.edges import Edges, Values

FLOATS = (torch.float32, torch.float64)


def on_one_device(fake: Callable[..., Any]) -> Callable[..., Any]:
    """A fake kernel that refuses tensors of several devices.

    torch calls it as soon as one tensor is on the meta device: what it gives must not look like a result.
    """

    @wraps(fake)
    def checked(*arguments: Any) -> Any:
        devices = {str(a.device) for a in arguments if isinstance(a, Tensor)}
        if len(devices) > 1:
            raise ValueError(f"all tensors must be on one device, got {', '.join(sorted(devices))}")
        return fake(*arguments)

    return checked


def check_edges(edges: Edges, features: Tensor) -> None:
    """The edges fit together, and the features are rows of numbers on the same device."""
    functions, count, device = edges.functions, edges.indices.shape[:1], features.device
    if features.dim() != 2 or not features.is_floating_point():
        raise ValueError(f"features must be [N, C] floating point numbers, got {_told(features)}")
    _integers("row_offsets", edges.row_offsets, device)
    _integers("indices", edges.indices, device)
    if not len(edges.row_offsets):
        raise ValueError("row_offsets must have M + 1 entries, got none")
    size, mixing = functions.size, edges.mixing
    if size < 1:
        raise ValueError(f"a basis needs at least one function, got {size}")
    if mixing is not None:
        _shaped("mixing", mixing, (size, size), edges.operands[0].dtype, device)
    if isinstance(functions, Values):
        values = functions.values
        if values.dim() != 2 or values.dtype not in FLOATS:
            raise ValueError(f"values must be [E, K], float32 or float64, got {_told(values)}")
        _shaped("values", values, (*count, functions.size), values.dtype, device)
        return
    offsets, parameters = functions.basis.offsets, functions.basis.parameters
    if offsets.dim() != 2 or offsets.shape[1] not in (1, 2, 3) or offsets.dtype not in FLOATS:
        raise ValueError(f"offsets must be [E, D], D = 1, 2 or 3, float32 or float64, got {_told(offsets)}")
    _shaped("offsets", offsets, (*count, offsets.shape[1]), offsets.dtype, device)
    if functions.scale is None:
        raise ValueError("a known basis needs scale, one number per edge")
    _shaped("scale", functions.scale, count, offsets.dtype, device)
    if parameters is not None and (parameters.dim() != 1 or parameters.device != device):
        raise ValueError(f"parameters must be a flat tensor on {device}, got {_told(parameters)}")


def check_weight(weight: Tensor, bias: Tensor | None, features: Tensor, edges: Edges) -> None:
    if weight.dim() != 3 or not weight.is_floating_point():
        raise ValueError(f"weight must be [K, C, O] floating point numbers, got {_told(weight)}")
    wanted = (edges.functions.size, features.shape[1], weight.shape[2])
    _shaped("weight", weight, wanted, weight.dtype, features.device)
    if bias is not None:
        _shaped("bias", bias, weight.shape[2:], weight.dtype, features.device)


def check_visits(
    columns: list[Tensor | None], orders: list[Tensor | None], features: Tensor, edges: Edges
) -> None:
    """The transposed edges and the orders of visits: all of a kind or none, and as long as what they name."""
    count, support, device = edges.indices.shape[0], features.shape[0], features.device
    for what, given, lengths in (
        ("column", columns, (support + 1, count, count)),
        ("order", orders, (edges.num_queries, support)),
    ):
        if all(part is None for part in given):
            continue
        for part, length in zip(given, lengths, strict=True):
            if part is None:
                raise ValueError(f"{what} tensors must all be given, or none")
            _integers(what, part, device)
            _shaped(what, part, (length,), torch.int64, device)


def check_gradient(name: str, grad: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    _shaped(name, grad, shape, like.dtype, like.device)


def check_wanted(wanted: list[bool], operands: list[Tensor | None]) -> None:
    if len(wanted) != len(operands):
        raise ValueError(f"wanted must have {len(operands)} entries, got {len(wanted)}")
    if any(want and operand is None for want, operand in zip(wanted, operands, strict=True)):
        raise ValueError("a gradient is wanted of an operand that is not given")


def _integers(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.dim() != 1 or tensor.dtype != torch.int64 or tensor.device != device:
        raise ValueError(f"{name} must be a flat int64 tensor on {device}, got {_told(tensor)}")


def _shaped(name: str, tensor: Tensor, shape: Any, dtype: torch.dtype, device: torch.device) -> None:
    if tensor.shape != torch.Size(shape) or tensor.dtype != dtype or tensor.device != device:
        raise ValueError(f"{name} must be {list(shape)}, {dtype}, on {device}, got {_told(tensor)}")


def _told(tensor: Tensor) -> str:
    return f"{list(tensor.shape)}, {tensor.dtype}, on {tensor.device}"
