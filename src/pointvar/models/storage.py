"""Networks in files: weights as safetensors, and how to make the network as JSON beside them."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pointvar import methods
from pointvar.atomic import write_atomically
from pointvar.limits import parse_json
from pointvar.models.names import NETWORKS
from pointvar.models.network import Network
from pointvar.models.plain import PlainNet
from pointvar.registry import Registry

_ONCE_OFF = ("unit_response", "precondition")
"""Options that were off by default when files did not name what was left at its default."""


def _known() -> dict[str, type[Network]]:
    """The networks that a file may hold, by the names of their classes."""
    return {network.__name__: network for network in (*NETWORKS.values(), PlainNet)}


def can_save(model: nn.Module) -> bool:
    """Whether ``save`` knows the network."""
    return isinstance(model, Network) and type(model) in _known().values()


def save(model: nn.Module, path: str | Path, **notes: Any) -> None:
    """Writes a network to one file, from which ``load`` makes it again.

    Args:
        model: a network of ``pointvar.models``, or a `Network` of your own that is listed in ``NETWORKS``.
        path: of the file, by custom ``*.safetensors``. It is whole, or not there.
        notes: what else is to be known, such as the names of the classes; anything that JSON can hold.
    """
    if not isinstance(model, Network) or not can_save(model):
        raise TypeError(f"{type(model).__name__} cannot be saved: known networks are {', '.join(_known())}")
    arguments = {name: _plain(name, value) for name, value in model.arguments.items()}
    description = {"network": type(model).__name__, "arguments": arguments, "notes": notes}
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    content = safetensors.torch.save(tensors, {"pointvar": json.dumps(description)})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def trained() -> list[str]:
    """The names of the trained networks that come with the library: ``load("pointvar/NAME")`` gives one."""
    return list(_shipped())


def locate(path: str | Path) -> Path:
    """The file of a network: a name such as ``pointvar/NAME`` is one of `trained`, all else a path."""
    path = Path(path)
    if path.exists() or len(path.parts) != 2 or path.parts[0] != "pointvar":
        return path
    return Registry("trained network", _shipped()).resolve(path.as_posix())


def _shipped() -> dict[str, Path]:
    files = sorted(Path(__file__).with_name("trained").glob("*.safetensors"))
    return {f"pointvar/{file.stem}": file for file in files}


def load(path: str | Path) -> nn.Module:
    """The network in a file that ``save`` has written, or one of those that are `trained`, by its name.

    It is in evaluation mode. Nothing in the file is executed: it names a network and a method, which must be
    those of this library.
    """
    description, tensors = _read(locate(path))
    name, known = description["network"], _known()
    if name not in known:
        raise ValueError(f"{path} holds a network {name!r}; known are {', '.join(known)}")
    try:
        arguments = {k: _restored(k, v, _largest(tensors)) for k, v in description["arguments"].items()}
        parameters = inspect.signature(known[name]).parameters
        arguments = {option: False for option in _ONCE_OFF if option in parameters} | arguments
        with _Budget(sum(tensor.nbytes for tensor in tensors.values())):
            model = known[name](**arguments)
        model.load_state_dict(tensors)
    except Exception as error:  # what arguments make no sense is known to the networks alone
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} does not fit the network {name}: {reason}") from error
    return model.eval()


def read_notes(path: str | Path) -> dict[str, Any]:
    """The notes that were given to ``save``."""
    return _read(locate(path), weights=False)[0]["notes"]


def _read(path: Path, weights: bool = True) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    path.open("rb").close()  # safetensors says of a file that may not be read that there is none
    try:
        with safe_open(path, "pt") as content:
            description = parse_json((content.metadata() or {}).get("pointvar", "null"))
            for part, kind in {"network": str, "arguments": dict, "notes": dict}.items():
                if not isinstance(description, dict) or not isinstance(description.get(part), kind):
                    raise ValueError(f"the description of a network has no {part} ({kind.__name__})")
            names = content.keys() if weights else []
            return description, {name: content.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is not a network that pointvar has saved: {error}") from error


def _plain(name: str, value: Any) -> Any:
    """An argument as JSON has it."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, part) for part in value]
    for known, method in methods.METHODS.items():
        if value is method:
            return known
    raise ValueError(
        f"{name}={value!r} cannot be saved: a network is saved by names; keep how it is made in your code, "
        "and its state_dict in a file"
    )


def _restored(name: str, value: Any, largest: int) -> Any:
    """An argument from JSON, or a ValueError if it cannot belong to a network with such weights."""
    if isinstance(value, list):
        return tuple(_restored(name, part, largest) for part in value)
    if isinstance(value, dict) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name} must be finite numbers, texts or lists of such, got {value}")
    if isinstance(value, int) and not -largest <= value <= largest:
        raise ValueError(f"{name}={value} is more than the weights in the file have in any direction")
    return value


def _largest(tensors: Mapping[str, Tensor]) -> int:
    """What no argument exceeds: widths are those of weights, and layers have weights each."""
    return max(4096, len(tensors), *(size for tensor in tensors.values() for size in tensor.shape))


class _Budget(TorchDispatchMode):
    """Refuses to make tensors that take much more than the weights in a file.

    A forged file describes a network of any size in a few letters.
    """

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.left = 4 * weights + 2**20  # a network is made of its weights, once

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], (list, tuple)) and all(isinstance(size, int) for size in args[0]):
            self.left -= 4 * math.prod(args[0])  # a function that makes a tensor from a shape
            if self.left < 0:
                raise ValueError("it describes a network that is far larger than its weights")
        return func(*args, **(kwargs or {}))
