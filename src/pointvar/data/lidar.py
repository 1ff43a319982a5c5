"""LAS and LAZ: what the header declares is checked against the file before a decoder sees it.

The decoder of LAZ ends the process when it cannot allocate what a forged file declares, and laspy reads as
many records as the header says. So the sizes in the header, in the VLRs and in the chunks come first.
LAZ is decompressed by one thread: threads of a decoder do not survive a fork, and data loaders fork.
"""

from __future__ import annotations

import logging
import math
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pointvar.limits import EXPANSION, check_size

POINTS_AT_ONCE = 100_000
SQUARE = 50_000  # points in a square of a map, about
CONFIDENCE = "confidence"
LAYERED = 3  # the compressor of LAZ 1.4
LAYERS = {
    10: 9,
    11: 1,
    12: 2,
    13: 1,
}  # of point, colour, colour with infrared, wave packet; extra bytes: each
WKT, GEO_KEYS = 2112, 34735  # records of coordinate systems
MODEL, LENGTH = 1024, 3076  # keys of GeoTIFF: projected or not, and the unit if so
UNITS = {9001: "metre", 9002: "foot", 9003: "US survey foot"}
VARIABLE = 2**32 - 1  # in the place of a number of points per chunk


class Header(NamedTuple):
    """What the header of a LAS file says about sizes."""

    start: int  # of the points
    num_records: int  # VLRs
    size: int  # of the header
    compressed: bool
    point_size: int
    num_points: int


def read_las(path: Path, laspy: Any, most: int | None = None) -> dict[str, Any]:
    """The columns of a LAS or LAZ file under laspy's names, and ``points``.

    With ``most``, of about so many points: those in squares of a map that are spread evenly over the file.
    """
    with open_las(path, laspy) as reader:
        parts = list(parts_of(reader) if most is None else _spread(reader, most))
        names = [name for name in reader.header.point_format.dimension_names if name not in ("X", "Y", "Z")]
        columns = {name: _joined([part[name] for part in parts]) for name in names}
        return columns | {"points": _joined([coordinates(part) for part in parts])}


@contextmanager
def open_las(path: Path, laspy: Any, extended: bool = False) -> Iterator[Any]:
    """laspy's reader of a file whose declared sizes fit it.

    Args:
        path: of the file.
        laspy: the module.
        extended: reads the records behind the points (EVLRs), too.
    """
    logging.getLogger("laspy").setLevel(logging.CRITICAL)  # what is wrong is said by the exception
    with path.open("rb") as file:
        header = _header(file)
        factor = EXPANSION if header.compressed else 1
        check_size(path, header.num_points * header.point_size, "points", factor)
        _check_records(file, header, path.stat().st_size)
        if extended:
            _check_extended(file, path.stat().st_size)
    backend = laspy.LazBackend.Lazrs  # one thread
    with laspy.open(str(path), laz_backend=backend, read_evlrs=extended) as reader:
        yield reader


def parts_of(reader: Any) -> Iterator[Any]:
    """The points of an open file, so many at once, and all that its header declares."""
    count = 0
    for part in reader.chunk_iterator(POINTS_AT_ONCE):
        count += len(part)
        yield part
    if count != reader.header.point_count:
        raise ValueError(f"expected {reader.header.point_count} points, the file has {count}")


def _spread(reader: Any, most: int) -> Iterator[Any]:
    """All points in every n-th square of a map in each direction."""
    header = reader.header
    every = math.ceil(math.sqrt(header.point_count / most))
    area = np.prod(np.ptp([header.mins[:2], header.maxs[:2]], axis=0))
    side = float(np.sqrt(area * SQUARE / max(header.point_count, 1))) or 1.0
    for part in parts_of(reader):
        places = np.floor((np.stack([part.x, part.y], 1) - header.mins[:2]) / side)
        yield part[(places % every == every // 2).all(1)]


def coordinates(part: Any) -> Any:
    """``[N, 3]``, float64."""
    return np.stack([part.x, part.y, part.z], 1)


def relabel_las(
    source: Path, target: BinaryIO, laspy: Any, codes: Any, confidence: Any = None, compress: bool = True
) -> None:
    """Writes a copy of a LAS or LAZ file with other classes; all else stays, record by record.

    The index of a COPC file, which lists places in the file, is left out: the copy is LAZ.

    Args:
        source: the file.
        target: to write to.
        laspy: the module.
        codes: the classes in the order of the file, ``[N]``.
        confidence: ``[N]``, to be added as a dimension of that name; default none.
        compress: LAZ and not LAS.
    """
    with open_las(source, laspy, extended=True) as reader:
        header = reader.header.copy()
        header.vlrs = [record for record in header.vlrs if record.user_id != "copc"]
        extended = [record for record in reader.evlrs or () if record.user_id != "copc"]
        header.evlrs = None
        old = reader.header.point_format
        if confidence is not None and CONFIDENCE not in old.dimension_names:
            header.add_extra_dim(laspy.ExtraBytesParams(CONFIDENCE, "f4", "probability of the class"))
        options = {"laz_backend": laspy.LazBackend.Lazrs} if compress else {}
        with laspy.LasWriter(target, header, compress, closefd=False, **options) as writer:
            done = 0
            for part in parts_of(reader):
                place = slice(done, done + len(part))
                if header.point_format != old:
                    copy = laspy.ScaleAwarePointRecord.zeros(len(part), header=header)
                    for name in part.array.dtype.names:
                        copy.array[name] = part.array[name]
                    part = copy
                part.classification = codes[place]
                if confidence is not None:
                    part[CONFIDENCE] = confidence[place]
                writer.write_points(part)
                done += len(part)
            if extended:
                writer.write_evlrs(laspy.vlrs.vlrlist.VLRList(extended))


def largest_code(header: Any) -> int:
    """The largest class that a point of a file can have."""
    return 31 if header.point_format.id < 6 else 255


def count_points(path: Path) -> int:
    """Number of points that the header of a LAS or LAZ file declares."""
    with path.open("rb") as file:
        return _header(file).num_points


def length_unit(path: Path, laspy: Any) -> str | None:
    """The unit of x and y, where the coordinate system in the header says it: metre, foot, degree, ..."""
    with open_las(path, laspy) as reader:
        records = {record.record_id: record for record in reader.header.vlrs}
    if WKT in records:
        text = records[WKT].string
        units = re.findall(r'UNIT\["([^"]+)"', text)
        projected = text.startswith(("PROJC", "COMPD_CS[", "COMPOUNDCRS[")) and "PROJC" in text
        return next((unit for unit in units if not projected or unit != "degree"), None)
    if GEO_KEYS in records:
        keys = {key.id: key.value_offset for key in records[GEO_KEYS].geo_keys}
        return "degree" if keys.get(MODEL) == 2 else UNITS.get(keys.get(LENGTH, 0))
    return None


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


def _check_extended(file: BinaryIO, file_size: int) -> None:
    """That the records behind the points lie in the file."""
    file.seek(0)
    begin = file.read(375)
    if begin[25] < 4:
        return
    place, count = struct.unpack_from("<QI", begin, 235)
    for index in range(count):
        file.seek(place)
        record = file.read(60)
        length = struct.unpack_from("<Q", record, 20)[0] if len(record) == 60 else file_size
        place += 60 + length
        if place > file_size:
            raise ValueError(f"EVLR {index} of {count} does not end in the file")


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
            raise ValueError(
                f"expected {header.num_points} points, the chunks hold {header.num_points - left}"
            )


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
