"""Small files of every format, written by the libraries that users write them with."""

from pathlib import Path

import h5py
import laspy
import numpy as np
import trimesh
from plyfile import PlyData, PlyElement


def scene(count: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """Points on a grid of 1/8 (exact in float32 and in a LAS file of that scale), with colours and labels."""
    random = np.random.default_rng(seed)
    return {
        "points": random.integers(-80, 80, (count, 3)) / 8,
        "colors": random.integers(0, 256, (count, 3)).astype(np.uint8),
        "label": random.integers(0, 4, count),
    }


def write_scene(path: Path, data: dict[str, np.ndarray]) -> None:
    points, colors, label = data["points"], data["colors"], data["label"]
    table = np.column_stack([points, colors, label])
    names = ["x", "y", "z", "red", "green", "blue", "label"]
    kind = path.suffix
    if kind == ".ply":
        types = ["f8"] * 3 + ["u1"] * 3 + ["i4"]
        rows = np.array([tuple(row) for row in table], dtype=list(zip(names, types, strict=True)))
        PlyData([PlyElement.describe(rows, "vertex")], text=path.stem.startswith("ascii")).write(str(path))
    elif kind == ".npy":
        np.save(path, table)
    elif kind == ".npz":
        np.savez(path, xyz=points, rgb=colors, labels=label)
    elif kind in (".h5", ".hdf5"):
        with h5py.File(path, "w") as file:
            file.update({"data": points, "color": colors, "label": label})
    elif kind == ".csv":
        np.savetxt(path, table, delimiter=",", header=",".join(names), comments="")
    elif kind in (".txt", ".xyz"):
        np.savetxt(path, table)
    elif kind in (".las", ".laz"):
        header = laspy.LasHeader(point_format=2, version="1.2")
        header.scales, header.offsets = [0.125] * 3, [0] * 3
        cloud = laspy.LasData(header)
        cloud.x, cloud.y, cloud.z = points.T
        cloud.red, cloud.green, cloud.blue = colors.T.astype(np.uint16) * 257
        cloud.classification = label.astype(np.uint8)
        cloud.write(str(path))
    else:
        raise AssertionError(kind)


def write_mesh(path: Path, size: tuple[float, float, float] = (1, 2, 3)) -> None:
    trimesh.creation.box(size).export(path)
