"""Cuts the aerial survey of the data folder into LAZ tiles, with the classification of the LAS standard.

    python tests/aerial.py ahn3_delft.npz scans

Coordinates become those of a map, as surveys have them. docs/own-data.md shows what comes of these tiles.
"""

import sys
from pathlib import Path

import laspy
import numpy as np

CODES = np.array([1, 2, 6, 9, 26], np.uint8)
"""Of vegetation and all else, ground, buildings, water, bridges."""
ORIGIN = np.array([85_000.0, 447_000.0, 0.0])


def cut_tiles(source: Path, folder: Path, side: int = 3, every: int = 1) -> list[Path]:
    """Writes ``side`` by ``side`` tiles, of every n-th point, and gives their paths."""
    with np.load(source) as arrays:
        points, intensity, label = (arrays[name][::every] for name in ("xyz", "intensity", "label"))
    folder.mkdir(parents=True, exist_ok=True)
    low, high = points.min(0), points.max(0)
    place = np.minimum((points - low)[:, :2] / (high - low)[:2] * side, side - 1).astype(int)
    paths = []
    for row, column in np.ndindex(side, side):
        inside = (place == (row, column)).all(1)
        header = laspy.LasHeader(point_format=6, version="1.4")
        header.scales, header.offsets = [0.001] * 3, ORIGIN
        tile = laspy.LasData(header)
        tile.x, tile.y, tile.z = (points[inside] + ORIGIN).T
        tile.intensity, tile.classification = intensity[inside], CODES[label[inside]]
        paths.append(folder / f"tile_{row}{column}.laz")
        tile.write(str(paths[-1]))
    return paths


if __name__ == "__main__":
    for path in cut_tiles(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
