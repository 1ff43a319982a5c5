"""Networks in files: weights as safetensors, and how to make the network as JSON beside them."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from pointvar import methods

T = TypeVar("T", bound=type[nn.Module])

_NETWORKS: dict[str, type[nn.Module]] = {}


def savable(network: T) -> T:
    """Class decorator: a network that remembers its arguments, so that ``save`` can write them.

    Arguments must be numbers, strings, lists of such, or a named method; a generator is not remembered.
    """
    _NETWORKS[network.__name__] = network
    signature, build = inspect.signature(network), network.__init__

    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        bound = dict(signature.bind(*args, **kwargs).arguments)
        bound.pop("generator", None)
        self.__dict__["arguments"] = bound

    __init__.__doc__, __init__.__wrapped__ = build.__doc__, build  # type: ignore[attr-defined]
    network.__init__ = __init__  # type: ignore[method-assign]
    return network


def can_save(model: nn.Module) -> bool:
    """Whether ``save`` knows the network."""
    return type(model) in _NETWORKS.values()


def save(model: nn.Module, path: str | Path, **notes: Any) -> None:
    """Writes a network to one file, from which ``load`` makes it again.

    Args:
        model: a network of ``pointvar.models``.
        path: of the file, by custom ``*.safetensors``. It is whole, or not there.
        notes: what else is to be known, such as the names of the classes; anything that JSON can hold.
    """
    if not can_save(model):
        raise TypeError(f"{type(model).__name__} cannot be saved: known networks are {', '.join(_NETWORKS)}")
    arguments = {name: _plain(name, value) for name, value in model.__dict__["arguments"].items()}
    description = {"network": type(model).__name__, "arguments": arguments, "notes": notes}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing")
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, temporary, {"pointvar": json.dumps(description)})
    os.replace(temporary, path)


def load(path: str | Path) -> nn.Module:
    """The network in a file that ``save`` has written, in evaluation mode.

    Nothing in the file is executed: it names a network and a method, which must be those of this library.
    """
    description, tensors = _read(Path(path))
    name = description["network"]
    if name not in _NETWORKS:
        raise ValueError(f"{path} holds a network {name!r}; known are {', '.join(_NETWORKS)}")
    try:
        model = _NETWORKS[name](**{k: _restored(v) for k, v in description["arguments"].items()})
        model.load_state_dict(tensors)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit the network {name}: {error}") from error
    return model.eval()


def read_notes(path: str | Path) -> dict[str, Any]:
    """The notes that were given to ``save``."""
    return _read(Path(path), weights=False)[0]["notes"]


def _read(path: Path, weights: bool = True) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, "pt") as content:
            description = json.loads((content.metadata() or {})["pointvar"])
            if not {"network", "arguments", "notes"} <= description.keys():
                raise KeyError("network")
            names = content.keys() if weights else []
            return description, {name: content.get_tensor(name) for name in names}
    except (SafetensorError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a network that pointvar has saved: {error}") from error


def _plain(name: str, value: Any) -> Any:
    """An argument as JSON has it."""
    known: dict[Callable[..., Any], str] = {function: key for key, function in methods.METHODS.items()}
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, part) for part in value]
    if inspect.isfunction(value) and value in known:
        return known[value]
    raise ValueError(
        f"{name}={value!r} cannot be saved: a network is saved by names; keep how it is made in your code, "
        "and its state_dict in a file"
    )


def _restored(value: Any) -> Any:
    return tuple(_restored(part) for part in value) if isinstance(value, list) else value
