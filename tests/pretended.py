"""A device that is not there: as strict as a GPU, with its numbers in the memory of the host.

``with Pretended() as device: ...``: tensors that are moved to ``DEVICE``, or made there, live on it. An
operator that gets tensors of the CPU among them fails, but for single numbers. What the host must wait for is
counted: numbers that it asks for, results as large as the numbers say, copies from and to the host.

torch lets only one such device be registered in a process, for good.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("privateuseone:0")
UNKNOWN = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


backend_registration._setup_privateuseone_for_python_backend(backend_module=_Module())


class Far(Tensor):
    """A tensor on the device."""

    near: Tensor
    """Its numbers."""

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        like = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        made = Tensor._make_wrapper_subclass(cls, near.shape, device=DEVICE, **like)
        made.near = near
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: the device is there within Pretended() only")

    def tolist(self) -> Any:  # torch has it for tensors of its own only
        return self.cpu().tolist()


class Pretended(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.waits.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "pointvar":  # not known to torch: what it is made of is looked at
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        with self:  # such as item(), where nothing has taken it apart before
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        far = [tensor for tensor in given if isinstance(tensor, Far)]
        name, asked = func._schema.name.split("::")[1], kwargs.get("device")
        to = None if asked is None else torch.device(asked).type
        stays = bool(far) if to is None else to == DEVICE.type
        copies = name in ("_to_copy", "copy_")
        others = [tensor for tensor in given if not isinstance(tensor, Far)]
        if far and not copies and any(tensor.dim() for tensor in others):
            raise RuntimeError(f"{func}: tensors of the device and of the CPU")
        moves = copies and bool(others or not stays) and bool(far or stays)
        if moves or (far and _is_unknown(func, name, args, kwargs)):
            self.waits[name] += 1
        assert not far or torch.Tag.inplace_view not in func.tags, func  # would not change the tensor here
        args, kwargs = tree_map_only(Far, lambda tensor: tensor.near, (args, kwargs))
        result = func(*args, **({**kwargs, "device": torch.device("cpu")} if to else kwargs))
        known = {id(tensor.near): tensor for tensor in far}
        if not stays:
            return result
        return tree_map_only(Tensor, lambda t: known[id(t)] if id(t) in known else Far(t), result)


def _is_unknown(func: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Whether numbers must be known before the host can go on."""
    if name.startswith(("index", "_index")) and isinstance(args[1], (list, tuple)):
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return bool(UNKNOWN & set(func.tags)) and kwargs.get("output_size") is None
