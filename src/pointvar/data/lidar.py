"""LAS and LAZ: what the header declares is checked against the file before a decoder sees it.

The decoder of LAZ ends the process when it cannot allocate what a forged file declares, and laspy reads as
many records as the header says. So the sizes in the header, in the VLRs and in the chunks come first.
LAZ is decompressed by one thread: threads of a decoder do not survive a fork, and data loaders fork.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pointvar.limits import EXPANSION, check_size

POINTS_AT_ONCE = 100_000
LAYERED = 3  # the compressor of LAZ 1.4
LAYERS = {
    10: 9,
    11: 1,
    12: 2,
    13: 1,
}  # of point, colour, colour with infrared, wave packet; extra bytes: each
VARIABLE = 2**32 - 1  # in the place of a number of points per chunk


class Header(NamedTuple):
    """What the header of a LAS file says about sizes."""

    start: int  # of the points
    num_records: int  # VLRs
    size: int  # of the header
    compressed: bool
    point_size: int
    num_points: int


def read_las(path: Path, laspy: Any) -> dict[str, Any]:
    """The columns of a LAS or LAZ file under laspy's names, and ``points``."""
    logging.getLogger("laspy").setLevel(logging.CRITICAL)  # what is wrong is said by the exception
    with path.open("rb") as file:
        header = _header(file)
        factor = EXPANSION if header.compressed else 1
        check_size(path, header.num_points * header.point_size, "points", factor)
        _check_records(file, header, path.stat().st_size)
    backend = laspy.LazBackend.Lazrs  # one thread
    with laspy.open(str(path), laz_backend=backend, read_evlrs=False) as reader:
        parts = list(reader.chunk_iterator(POINTS_AT_ONCE))
        count = sum(map(len, parts))
        if count != header.num_points:
            raise ValueError(f"expected {header.num_points} points, the file has {count}")
        names = [name for name in reader.header.point_format.dimension_names if name not in ("X", "Y", "Z")]
        columns = {name: _joined([part[name] for part in parts]) for name in names}
        return columns | {"points": _joined([np.stack([part.x, part.y, part.z], 1) for part in parts])}


def _joined(parts: Sequence[Any]) -> Any:
    return np.concatenate([np.asarray(part) for part in parts]) if parts else np.empty((0, 3))


def _header(file: BinaryIO) -> Header:
    begin = file.read(375)
    if begin[:4] != b"LASF" or len(begin) < 227:
        raise ValueError("a LAS file begins with LASF and a header of at least 227 bytes")
    size, start, records = struct.unpack_from("<HII", begin, 94)
    kind, point_size, count = struct.unpack_from("<BHI", begin, 104)
    if begin[25] >= 4:  # the minor version
        if len(begin) < 375:
            raise ValueError("the header of LAS 1.4 has 375 bytes")
        (count,) = struct.unpack_from("<Q", begin, 247)
    if not point_size:
        raise ValueError("the header says that a point has no bytes")
    return Header(start, records, size, bool(kind & 0xC0), point_size, count)


def _check_records(file: BinaryIO, header: Header, file_size: int) -> None:
    """That the VLRs lie before the points, and that those of LAZ ask for no more than there is."""
    if not header.size <= header.start <= file_size:
        raise ValueError(f"the points begin at byte {header.start}, the file has {file_size}")
    place, scheme = header.size, None
    for index in range(header.num_records):
        if place + 54 > header.start:
            raise ValueError(f"expected {header.num_records} VLRs, there is room for {index}")
        file.seek(place)
        record = file.read(54)
        (length,) = struct.unpack_from("<H", record, 20)
        if place + 54 + length > header.start:
            raise ValueError(f"VLR {index} declares {length} bytes, which do not lie before the points")
        if record[2:18].rstrip(b"\0") == b"laszip encoded":
            scheme = file.read(length)
        place += 54 + length
    if header.compressed:
        if scheme is None:
            raise ValueError("there is no VLR that says how the points are compressed")
        _check_chunks(file, header, scheme, file_size)


def _check_chunks(file: BinaryIO, header: Header, scheme: bytes, file_size: int) -> None:
    """That the table of chunks, and the layers in each chunk, fit into the file."""
    if len(scheme) < 34:
        raise ValueError("the VLR that says how the points are compressed is too short")
    compressor, chunk_size, num_items = struct.unpack_from("<H10xI16xH", scheme)
    items = list(struct.iter_unpack("<HHH", scheme[34 : len(scheme) - (len(scheme) - 34) % 6]))[:num_items]
    if len(items) != num_items or sum(size for _, size, _ in items) != header.point_size:
        raise ValueError(f"the compressed items do not make up a point of {header.point_size} bytes")
    if not chunk_size:
        raise ValueError("chunks of no points")
    file.seek(header.start)
    table = _number(file.read(8), "<q")
    if table <= header.start:  # written at the end by a writer that could not go back
        file.seek(file_size - 8)
        table = _number(file.read(8), "<q")
    end = file_size
    if header.start < table <= file_size - 8:
        file.seek(table + 4)
        if _number(file.read(4), "<I") > file_size:
            raise ValueError("the table of chunks has more entries than the file has bytes")
        end = table
    elif table > header.start:
        raise ValueError(f"the table of chunks is said to be at byte {table} of {file_size}")
    if compressor == LAYERED:
        layers = sum(size if kind == 14 else LAYERS.get(kind, 0) for kind, size, _ in items)
        left = header.num_points
        for count in _layered(file, header.start + 8, end, header.point_size, layers):
            if chunk_size != VARIABLE and count != min(chunk_size, left):
                raise ValueError(f"a chunk has {count} points in place of {min(chunk_size, left)}")
            left -= count
            if left <= 0:
                break
        if left:
            raise ValueError(f"the chunks do not hold {header.num_points} points, by {left}")


def _layered(file: BinaryIO, place: int, end: int, point_size: int, layers: int) -> Iterator[int]:
    """Points per chunk. A chunk is its first point, their number, the sizes of its layers, and the layers."""
    while place + point_size + 4 * (layers + 1) <= end:
        file.seek(place + point_size)
        count, *sizes = struct.unpack(f"<{layers + 1}I", file.read(4 * (layers + 1)))
        place += point_size + 4 * (layers + 1) + sum(sizes)
        if place > end:
            raise ValueError(f"a chunk declares layers of {sum(sizes)} bytes, which end behind the file's")
        yield count


def _number(content: bytes, kind: str) -> int:
    if len(content) < struct.calcsize(kind):
        raise ValueError("the file ends too early")
    return int(struct.unpack(kind, content)[0])
