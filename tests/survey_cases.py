"""A small survey as LAS and LAZ files, and a network that segments it."""

import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import torch
from laspy.vlrs.vlrlist import VLRList

import pointvar as pv
from pointvar.train import DataConfig

ORIGIN = np.array([85_000.0, 447_000.0, 0.0])
CODES = [2, 6, 9]
CRS = b'LOCAL_CS["a map of the tests"]\0'


def landscape(count: int = 2000, long: float = 40.0, wide: float = 12.0) -> dict[str, np.ndarray]:
    """Ground with a few boxes on it, on coordinates of a map, with intensities."""
    random = np.random.default_rng(0)
    points = random.random((count, 3)) * [long, wide, 0.5]
    high = (np.floor(points[:, :2] / 5).sum(1) % 3 == 0) & (random.random(count) < 0.7)
    points[high, 2] += 4
    points = ORIGIN + np.round(points, 3)
    return {"points": points, "intensity": (1000 * high + random.integers(0, 500, count)).astype(np.uint16)}


def chosen(arrays: dict[str, np.ndarray], keep: Any) -> dict[str, np.ndarray]:
    return {name: values[keep] for name, values in arrays.items()}


def write_las(
    path: Path, arrays: dict[str, np.ndarray], version: str = "1.4", kind: int = 6, offset: float = 0.0
) -> None:
    """A file with records before and behind the points, extra dimensions, and values in all dimensions."""
    header = laspy.LasHeader(point_format=kind, version=version)
    header.scales, header.offsets = [0.001] * 3, ORIGIN + offset
    header.system_identifier, header.generating_software = "a test", "by hand"
    header.add_extra_dim(laspy.ExtraBytesParams("reflectance", "f4", "of the surface"))
    header.vlrs.append(laspy.VLR("LASF_Projection", 2112, "WKT", CRS))
    las = laspy.LasData(header)
    las.x, las.y, las.z = arrays["points"].T
    las.intensity = arrays["intensity"]
    count = len(las.points)
    las.classification = np.arange(count) % 2 + 1
    las.gps_time = np.arange(count) / 7
    las.return_number, las.number_of_returns = np.full(count, 1), np.arange(count) % 3 + 1
    las.reflectance = np.arange(count) / 3
    las.point_source_id = np.arange(count) % 9
    if version == "1.4":
        las.evlrs = VLRList([laspy.VLR("someone", 7, "behind the points", b"kept")])
    las.write(str(path))


def write_copc(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A COPC file of one node: LAZ 1.4 of one chunk, with the two records that index it."""
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales, header.offsets = [0.001] * 3, ORIGIN
    header.vlrs.append(laspy.VLR("copc", 1, "copc info", bytes(160)))
    las = laspy.LasData(header)
    las.x, las.y, las.z = arrays["points"].T
    las.intensity = arrays["intensity"]
    las.evlrs = VLRList([laspy.VLR("copc", 1000, "EPT Hierarchy", bytes(32))])
    las.write(str(path))
    content = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", content, 96)
    (table,) = struct.unpack_from("<q", content, start)
    (extended,) = struct.unpack_from("<Q", content, 235)
    low, high = arrays["points"].min(0), arrays["points"].max(0)
    half = float((high - low).max())
    info = struct.pack("<5d2Q2d", *((low + high) / 2), half, half / 10, extended + 60, 32, 0.0, 1.0)
    content[375 + 54 : 375 + 54 + len(info)] = info
    entry = struct.pack("<4iQ2i", 0, 0, 0, 0, start + 8, table - start - 8, len(las.points))
    content[extended + 60 : extended + 92] = entry
    path.write_bytes(content)


def write_network(path: Path, names: tuple[str, ...] = ("intensity",), **data: Any) -> Path:
    """A network for three classes that nobody has trained, with spheres of 4 in 6."""
    random = torch.Generator().manual_seed(3)
    model = pv.models.SegmentationUNet(
        max(len(names), 1), 3, channels=[8, 8], radii=[0.6, 1.2], generator=random, dropout=0.0
    )
    config = DataConfig(**{"name": "folder", "task": "segmentation", "radius": 4.0, "context": 6.0, **data})
    features = {"names": list(names), "shift": [500.0] * len(names), "scale": [300.0] * len(names)}
    notes: dict[str, Any] = {"classes": ["ground", "building", "water"], "codes": CODES, "features": features}
    pv.models.save(model, path, task="segmentation", data=asdict(config), **notes)
    return path
