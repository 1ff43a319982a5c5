"""Networks in files: weights as safetensors, and how to make the network as JSON beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pointvar import methods
from pointvar.atomic import write_atomically
from pointvar.models.names import NETWORKS
from pointvar.models.network import Network
from pointvar.models.plain import PlainNet


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


def load(path: str | Path) -> nn.Module:
    """The network in a file that ``save`` has written, in evaluation mode.

    Nothing in the file is executed: it names a network and a method, which must be those of this library.
    """
    description, tensors = _read(Path(path))
    name, known = description["network"], _known()
    if name not in known:
        raise ValueError(f"{path} holds a network {name!r}; known are {', '.join(known)}")
    try:
        model = known[name](**{k: _restored(v) for k, v in description["arguments"].items()})
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
    path.open("rb").close()  # safetensors says of a file that may not be read that there is none
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


def _restored(value: Any) -> Any:
    return tuple(_restored(part) for part in value) if isinstance(value, list) else value
