"""Measure z by method and depth on a plain network, and write it as a table for `transfer_init`.

The clouds are the built-in shapes, or those of ModelNet40, thinned by Poisson disk sampling.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from pointvar import Neighborhood

SOURCES = {"modelnet40": "ModelNet40", "shapes": "synthetic shapes"}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("output", type=Path, help="JSON file to write")
    add("--source", choices=SOURCES, default="shapes", help="clouds to measure on (shapes)")
    add(
        "--data",
        type=Path,
        default=os.environ.get("POINTVAR_DATA") or None,
        help="folder with modelnet40_small.npz ($POINTVAR_DATA)",
    )
    add("--methods", nargs="+", metavar="NAME", help="methods to measure (all ten)")
    add("--depth", type=int, default=25, help="number of layers (25)")
    add("--channels", type=int, default=64, help="channels of each layer (64)")
    add("--num-basis", type=int, help="number of basis functions (that of the method)")
    add("--max-neighbors", type=int, default=16, help="largest number of neighbours, drawn at random (16)")
    add("--radius", type=float, default=0.1, help="radius of the Poisson disks (0.1)")
    add("--reach", type=float, default=3.0, help="receptive field, as a multiple of the radius (3)")
    add("--slope", type=float, default=0.2, help="slope of the leaky ReLU between layers (0.2)")
    add("--clouds", type=int, default=24, help="number of clouds (24)")
    add("--repeats", type=int, default=4, help="number of networks to average over (4)")
    add("--seed", type=int, default=0, help="seed of everything random (0)")


def run(arguments: argparse.Namespace) -> None:
    from torch import nn

    from pointvar import __version__
    from pointvar.atomic import writable
    from pointvar.init import compute_table
    from pointvar.methods import METHODS
    from pointvar.progress import track

    if arguments.output.suffix != ".json":
        raise ValueError(f"a table is a .json file, got {arguments.output}")
    writable(arguments.output.parent)
    if arguments.output.is_dir():
        raise ValueError(f"{arguments.output} is a folder; give the name of a file")
    file = None if arguments.source == "shapes" else Path(arguments.data or ".", "modelnet40_small.npz")
    features, hood = surface_batch(
        arguments.clouds, file, arguments.radius, arguments.reach, arguments.max_neighbors, arguments.seed
    )
    table = compute_table(
        arguments.output.stem,
        [(features, hood)],
        arguments.methods or list(METHODS),
        depth=arguments.depth,
        channels=arguments.channels,
        num_basis=arguments.num_basis,
        activation=nn.LeakyReLU(arguments.slope),
        max_neighbors=arguments.max_neighbors,
        repeats=arguments.repeats,
        seed=arguments.seed,
        progress=lambda rows: track(rows, "tables"),
        provenance={
            "data": SOURCES[arguments.source],
            "clouds": arguments.clouds,
            "points": hood.queries.num_points,
            "neighbours": round(hood.num_edges / max(hood.queries.num_points, 1), 2),
            "radius": f"Poisson disk {arguments.radius}, receptive field {arguments.reach} times that",
            "features": "normals",
            "version": __version__,
        },
    )
    table.save(arguments.output)
    print(table)


def surface_batch(
    count: int,
    modelnet: Path | None = None,
    radius: float = 0.1,
    reach: float = 3.0,
    max_neighbors: int | None = 16,
    seed: int = 0,
) -> tuple[Tensor, Neighborhood]:
    """Normals and the neighbourhood of clouds of many classes: built-in shapes, or those of an npz file."""
    import numpy as np
    import torch

    from pointvar import Hierarchy, PointCloud
    from pointvar.data import Shapes
    from pointvar.data.formats import read_arrays

    if modelnet is None:
        shapes = Shapes(count, normals=True)
        samples = [shapes[index] for index in range(count)]
        pairs = [(sample.points, sample.features) for sample in samples]
    else:
        if not modelnet.is_file():
            raise ValueError(
                f"ModelNet40 is not there: {modelnet}; give the folder of {modelnet.name} by --data"
            )
        names = ("train_points", "train_normals_i8")
        arrays = read_arrays(modelnet, names)
        if missing := [name for name in names if name not in arrays]:
            raise ValueError(f"{modelnet} has no array {', '.join(missing)}")
        order = np.random.default_rng(0).permutation(len(arrays["train_points"]))[:count]
        points = torch.from_numpy(arrays["train_points"][order].astype(np.float32))
        normals = torch.from_numpy(arrays["train_normals_i8"][order].astype(np.float32) / 127)
        pairs = list(zip(points, normals, strict=True))
    cloud = PointCloud.from_list([points for points, _ in pairs])
    levels = Hierarchy(cloud, [radius], reach, max_neighbors, torch.Generator().manual_seed(seed))
    return torch.cat([features for _, features in pairs])[levels.kept[0]], levels.within(0)
