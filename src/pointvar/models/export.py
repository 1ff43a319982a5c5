"""Networks as graphs: ``torch.export``, for clouds of any number and size."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from pointvar.atomic import write_atomically
from pointvar.geometry import Hierarchy, Neighborhood

if TYPE_CHECKING:
    from torch.export import ExportedProgram

NOTES = "pointvar.json"
"""The extra file of a ``.pt2``: what is to be known beside the graph."""


def export(model: nn.Module, features: Tensor, levels: Hierarchy | Neighborhood) -> ExportedProgram:
    """The network in evaluation as a graph of ``torch.export``, which takes other clouds, too.

    Numbers of points, neighbours and clouds are free, also 0 and 1; channels and dimension are those of the
    example. ``program.module()(features, levels)`` gives what ``model(features, levels)`` does, for levels
    that are made alike: ``Hierarchy(cloud, **levels.settings)``.

    Args:
        model: any network on a hierarchy or a neighbourhood; it stays as it is.
        features: an example, ``[N, C]``.
        levels: its geometry.
    """
    symbols: Any = import_module("torch.fx.experimental._config")
    shapes: Any = torch.export.ShapesCollection()
    for tensor in _pytree.tree_leaves((features, levels)):
        if tensor.dim():
            shapes[tensor] = {0: torch.export.Dim.DYNAMIC}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        # As they are: a graph for two points or more would not serve a cloud of one.
        with torch.no_grad(), symbols.patch(backed_size_oblivious=True):
            program = torch.export.export(model, (features, levels), dynamic_shapes=shapes, strict=False)
    finally:
        for module, mode in modes.items():
            module.training = mode
    program._example_inputs = None  # a file that is loaded should hold no pickled objects
    return program


def save_exported(program: ExportedProgram, file: str | Path | io.BytesIO, **notes: Any) -> None:
    """Writes a graph to a ``.pt2`` file, whole or not at all, with notes as its extra file ``pointvar.json``.

    ``torch.export.load`` reads it wherever ``import pointvar`` has made the operators known.
    """
    content = file if isinstance(file, io.BytesIO) else io.BytesIO()
    torch.export.save(program, content, extra_files={NOTES: json.dumps(notes)})
    if not isinstance(file, io.BytesIO):
        write_atomically(file, content.getvalue())
