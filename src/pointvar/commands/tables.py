"""Measures z by method and depth on a plain network, for `transfer_init`, and writes it as JSON.

The clouds are ModelNet40's, where they are, or the built-in shapes, thinned by Poisson disk sampling.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pointvar import __version__
from pointvar.experiments.options import data_folder


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", type=Path, help="the table to write, a .json file")
    parser.add_argument(
        "--source", choices=("modelnet40", "shapes"), default="shapes", help="clouds (shapes)"
    )
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder with real data")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all ten")
    parser.add_argument("--depth", type=int, default=25, help="layers (25)")
    parser.add_argument("--channels", type=int, default=64, help="of every layer (64)")
    parser.add_argument("--num-basis", type=int, help="K, where it is not the method's own")
    parser.add_argument("--max-neighbors", type=int, default=16, help="random cap (16)")
    parser.add_argument("--radius", type=float, default=0.1, help="of the Poisson disks (0.1)")
    parser.add_argument("--reach", type=float, default=3.0, help="receptive field in radii (3)")
    parser.add_argument("--slope", type=float, default=0.2, help="of the leaky ReLU between layers (0.2)")
    parser.add_argument("--clouds", type=int, default=24, help="how many (24)")
    parser.add_argument("--repeats", type=int, default=4, help="networks to average over (4)")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> None:
    from torch import nn

    from pointvar.experiments.clouds import surface_clouds, thinned
    from pointvar.init import compute_table
    from pointvar.methods import METHODS
    from pointvar.progress import track

    if arguments.output.suffix != ".json":
        raise ValueError(f"a table is a .json file, got {arguments.output}")
    clouds = surface_clouds(arguments.data, arguments.clouds, arguments.source)
    batch = thinned(
        clouds.samples, arguments.seed, arguments.radius, arguments.reach, arguments.max_neighbors
    )
    table = compute_table(
        arguments.output.stem,
        [batch],
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
            "data": clouds.name,
            "clouds": len(clouds.samples),
            "points": batch[1].queries.num_points,
            "neighbours": round(batch[1].num_edges / max(batch[1].queries.num_points, 1), 2),
            "radius": f"Poisson disk {arguments.radius}, receptive field {arguments.reach} times that",
            "features": "normals",
            "version": __version__,
        },
    )
    table.save(arguments.output)
    print(table)
