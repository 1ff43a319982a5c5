"""Arrays by name from npy, npz and h5, of which no more is read than is needed and than is there."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pointvar.limits import check_size

Array = NDArray[Any]
Arrays = dict[str, Array]


def read_npy(path: Path) -> Array:
    """The array of an ``npy`` file, in which no pickle is opened."""
    with path.open("rb") as file:
        return _array(file, path.stat().st_size)


def read_npz(path: Path, names: Collection[str] | None = None) -> Arrays:
    """The arrays of an ``npz`` file, in which no pickle is opened.

    Args:
        path: of the file.
        names: of the arrays to read, as far as they are there; default all.
    """
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        members = {info.filename.removesuffix(".npy"): info for info in infos}
        if len(members) != len(infos):
            raise ValueError("two arrays have the same name")
        wanted = {name: info for name, info in members.items() if names is None or name in names}
        check_size(path, sum(info.file_size for info in wanted.values()), "arrays")
        for name, info in wanted.items():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise ValueError(f"{name} is packed in a way that numpy does not write")
        arrays = {}
        for name, info in wanted.items():
            with archive.open(info) as member:
                arrays[name] = _array(member, info.file_size)
        return arrays


def _array(file: IO[bytes], size: int) -> Array:
    """One array in the npy format that takes ``size`` bytes with its header."""
    major, _ = npy.read_magic(file)
    length, start = int.from_bytes(file.read(2 if major == 1 else 4), "little"), file.tell()
    if major not in (1, 2, 3) or start + length > size:
        raise ValueError(f"an npy header of version {major} and {length} bytes, there are {size}")
    file.seek(npy.MAGIC_LEN)
    header = (
        npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
    )  # 3 differs in names alone
    shape, _, dtype = header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not opened")
    there = size - file.tell()
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not dtype.itemsize or declared != there:
        raise ValueError(f"an array {list(shape)} of {dtype} takes {declared} bytes, there are {there}")
    file.seek(0)
    array = npy.read_array(file, allow_pickle=False)
    if (
        dtype.kind == "U"
        and array.size
        and np.ascontiguousarray(array).view(dtype.byteorder + "u4").max() > 0x10FFFF
    ):
        raise ValueError("it holds text that is no Unicode")
    return array


def read_hdf5(
    path: Path, h5py: Any, choose: Callable[[dict[str, tuple[int, ...]]], Collection[str]]
) -> Arrays:
    """Data sets of numbers at the root of an HDF5 file.

    Whatever leads out of the file is refused: links, external storage and virtual data sets. So is a data set
    that is not stored in full.

    Args:
        path: of the file.
        h5py: the module.
        choose: gets the shapes of the data sets of numbers by name, gives the names of those to read.
    """
    with h5py.File(path, "r") as content:
        found = {}
        for name in content:
            if not isinstance(content.get(name, getlink=True), h5py.HardLink):
                raise ValueError(
                    f"{name!r} is a link, which may lead to another file; links are not followed"
                )
            item = content.get(name)
            if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "fiub":
                found[name] = item
        names = choose({name: item.shape for name, item in found.items()})
        if missing := [name for name in names if name not in found]:
            raise ValueError(f"no numbers named {', '.join(missing)}; found {', '.join(found) or 'nothing'}")
        chosen = [found[name] for name in names]
        check_size(path, sum(item.size * item.dtype.itemsize for item in chosen), "data sets")
        for item in chosen:
            _check_stored(path, item)
        return {item.name.lstrip("/"): item[()] for item in chosen}


def _check_stored(path: Path, item: Any) -> None:
    if item.external or item.is_virtual:
        raise ValueError(f"{item.name} is stored in other files, which are not opened")
    size = item.size * item.dtype.itemsize
    if item.chunks is None:
        missing = item.id.get_storage_size() < size
    else:
        check_size(path, math.prod(item.chunks) * item.dtype.itemsize, f"one chunk of {item.name}")
        chunks = math.prod(-(-length // chunk) for length, chunk in zip(item.shape, item.chunks, strict=True))
        missing = item.id.get_num_chunks() < chunks
    if missing:
        stored = item.id.get_storage_size()
        raise ValueError(f"{item.name} declares {size:,} bytes and is not stored in full ({stored:,} bytes)")
