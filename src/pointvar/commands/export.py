"""Write the network of a run as a graph for `torch.export.load`: a .pt2 file.

It takes clouds of any number and size: features [N, C] and the levels of their points. What these must be and
the names of the classes are in the file too, as pointvar.json. To load it, `import pointvar` first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="directory of a run, or a saved network")
    parser.add_argument("--output", type=Path, default=Path("model.pt2"), help="the file (model.pt2)")


def run(arguments: argparse.Namespace) -> int:
    """Exports, and compares with the network on clouds of other sizes before anything is written."""
    import torch

    from pointvar import PointCloud
    from pointvar.atomic import writable
    from pointvar.commands.evaluate import network_of
    from pointvar.models import export, save_exported

    output = arguments.output
    if output.suffix != ".pt2":
        raise ValueError(f"an exported network is a .pt2 file, got {output}")
    writable(output.parent)
    if output.is_dir():
        raise ValueError(f"{output} is a folder; give the name of a file")
    model, notes = network_of(arguments.model)
    channels, dim = model.arguments["in_channels"], model.arguments.get("dim", 3)
    generator = torch.Generator().manual_seed(0)

    def example(*lengths: int) -> tuple[torch.Tensor, Any]:
        """Clouds that reach over some receptive fields of the coarsest level."""
        points = torch.rand(sum(lengths), dim, generator=generator) * 4 * max(model.radii)
        levels = model.hierarchy(PointCloud(points, lengths), generator=generator)
        return torch.rand(len(points), channels, generator=generator), levels

    features, levels = example(300, 200)
    program = export(model, features, levels)
    with torch.no_grad():
        inputs = example(400, 50, 100)
        expected, found = model(*inputs), program.module()(*inputs)
    scale = float(expected.abs().max())  # of the logits: sums in another order differ by a share of it
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)
    save_exported(program, output, **notes, hierarchy=levels.settings)
    difference = float((found - expected).abs().max())
    print(
        f"{output}: {output.stat().st_size / 1e6:.1f} MB; takes features [N, {channels}] and their levels, "
        f"gives what the network does (largest difference on other clouds: {difference:.1g})"
    )
    return 0
