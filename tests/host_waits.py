"""What a call would cost the host on a device: how often it waits for numbers, how many operators it starts.

Counted on CPU tensors, by what torch is asked for: each of these waits for the device, as it must know how
many there are, or what a number is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "__contains__", "cpu", "equal"}
COUNTS = {"nonzero", "masked_select", "bincount", "unique_dim", "_unique2", "unique_consecutive"}
VIEWS = {"view", "_unsafe_view", "detach", "alias", "slice", "select", "unsqueeze", "squeeze", "expand", "t"}
VIEWS |= {"transpose", "permute", "unbind", "split", "split_with_sizes", "as_strided"}


class HostWaits:
    """``with HostWaits() as seen: ...``; then ``seen.waits`` (by name) and ``seen.calls``."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.calls = 0

    @property
    def total(self) -> int:
        return sum(self.waits.values())

    def __enter__(self) -> HostWaits:
        self._modes = (_Functions(self), _Operators(self))
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Functions(TorchFunctionMode):
    """Methods that read numbers of a tensor; on the CPU some of them start no operator."""

    def __init__(self, seen: HostWaits) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and args and isinstance(args[0], Tensor):
            self.seen.waits[name] += 1
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Operators whose result is as large as the numbers say."""

    def __init__(self, seen: HostWaits) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "pointvar":
            raise RuntimeError(f"{func}: what it waits for is not seen; call the function that it stands for")
        name = func._schema.name.split("::")[1]
        self.seen.calls += name not in VIEWS
        if name in COUNTS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.seen.waits[name] += 1
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            self.seen.waits["mask"] += bool(masks)
        return func(*args, **kwargs)
