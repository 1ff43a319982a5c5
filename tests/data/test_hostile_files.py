"""Small files that declare much, lead elsewhere or make no sense are refused by name, and take no memory."""

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import laspy
import numpy as np
import pytest
import safetensors.torch
from writers import scene, write_mesh, write_scene

from pointvar.data import BadFileError, Folder, ModelNet, ScanObjectNN, read_points
from pointvar.init import Table
from pointvar.limits import EXPANSION, SLACK, check_size, check_yaml, parse_json
from pointvar.models import Classifier, load, save
from pointvar.train import load_config


def refused(path: Path, message: str, read: Callable[[Path], Any] = read_points) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(path.name)}(?s:.*){message}"):
        read(path)


def patched(path: Path, kind: str, place: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into(kind, content, place, value)
    path.write_bytes(content)


def test_what_a_file_may_declare(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    check_size(path, 100, "points", 1)
    check_size(path, 100 * EXPANSION + SLACK, "points")
    for declared, factor in ((101, 1), (100 * EXPANSION + SLACK + 1, EXPANSION), (-1, 1)):
        with pytest.raises(ValueError, match=rf"{declared:,} bytes of points, but has 100 bytes"):
            check_size(path, declared, "points", factor)


# LAS and LAZ


def write_layered(path: Path) -> None:
    """LAS 1.4, whose points LAZ compresses in layers, with a VLR and an EVLR."""
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.add_extra_dim(laspy.ExtraBytesParams(name="height", type="f4"))
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = scene()["points"].T
    cloud.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("more", 7, "more", b"0123456789")])
    cloud.write(str(path))


@pytest.mark.parametrize("name", ["a.las", "a.laz"])
def test_a_las_file_that_declares_a_hundred_million_points(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_scene(path, scene())
    patched(path, "<I", 107, 10**8)
    refused(path, "declares 2,600,000,000 bytes of points")
    write_layered(path)
    assert len(read_points(path)["height"]) == 40
    patched(path, "<Q", 247, 10**8)
    refused(path, "declares 4,000,000,000 bytes of points")


def test_las_records_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.las"
    write_layered(path)
    whole = path.read_bytes()
    patched(path, "<I", 100, 2**32 - 1)  # number of VLRs
    refused(path, "expected 4294967295 VLRs, there is room for 1")
    path.write_bytes(whole)
    patched(path, "<H", 375 + 20, 65535)  # length of the first
    refused(path, "VLR 0 declares 65535 bytes")
    path.write_bytes(whole)
    patched(path, "<I", 243, 2**32 - 1)  # EVLRs are not needed, hence not read
    assert len(read_points(path)["points"]) == 40


def test_laz_chunks_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.laz"
    write_layered(path)
    whole = path.read_bytes()
    (start,) = struct.unpack_from("<I", whole, 96)
    (table,) = struct.unpack_from("<q", whole, start)
    patched(path, "<I", table + 4, 2**32 - 1)  # 64 GB of entries
    refused(path, "table of chunks has more entries")
    path.write_bytes(whole)
    patched(path, "<q", start, 2**62)
    refused(path, "table of chunks is said to be")
    path.write_bytes(whole)
    patched(path, "<I", start + 8 + 40 + 4, 2**32 - 1)  # the first layer of the first chunk
    refused(path, "layers of 429496")
    path.write_bytes(whole)
    patched(path, "<I", start + 8 + 40, 10**9)  # its points
    refused(path, "a chunk has 1000000000 points in place of 40")
    path.write_bytes(whole[:table] + bytes(8))
    patched(path, "<q", start, start + 8)  # no chunk before the table
    refused(path, "expected 40 points, the chunks hold 0")


def test_a_panic_of_the_decoder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As pyo3 makes it."""

    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("index out of bounds")

    write_scene(tmp_path / "a.laz", scene())
    monkeypatch.setattr(laspy, "open", panic)
    refused(tmp_path / "a.laz", "index out of bounds")


# HDF5


def test_hdf5_that_leads_to_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    write_scene(secret, scene())
    (tmp_path / "secret").write_bytes(bytes(24))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["data"] = h5py.ExternalLink(str(secret), "data")
    refused(path, "'data' is a link")
    refused(path, "'data' is a link", ScanObjectNN)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (1, 3), "f8", external=[(str(tmp_path / "secret"), 0, 24)])
    refused(path, "/data is stored in other files")
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((40, 3), "f8")
        layout[:] = h5py.VirtualSource(str(secret), "data", (40, 3))
        file.create_virtual_dataset("data", layout)
    refused(path, "/data is stored in other files")


@pytest.mark.parametrize("chunks", [None, (10**5, 3)])
def test_hdf5_that_is_not_stored(chunks: tuple[int, int] | None, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    for rows, message in ((10**9, "declares 24,000,000,000 bytes"), (10**5, "not stored in full")):
        with h5py.File(path, "w") as file:
            file.create_dataset("data", (rows, 3), "f8", chunks=chunks)
        refused(path, message)


def test_hdf5_reads_what_is_needed_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_scene(path, scene())
    with h5py.File(path, "a") as file:
        file.create_dataset("scans", (10**9, 1000), "f8", chunks=True)
        file.create_dataset("note", data="some text")
    assert set(read_points(path)) == {"points", "colors", "label"}


# npy and npz


def test_arrays_that_declare_more_than_they_hold(tmp_path: Path) -> None:
    path, alone = tmp_path / "a.npz", tmp_path / "a.npy"
    np.savez(path, points=np.zeros((2, 3)))
    content = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 3)}
    np.lib.format.write_array_header_1_0(content, header)
    alone.write_bytes(content.getvalue() + bytes(48))
    refused(alone, r"\[1000000000, 3\] of float64 takes 24000000000 bytes, there are 48")
    forged = tmp_path / "b.npy"
    forged.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(100))
    refused(forged, "an npy header of version 2 and 4294967295 bytes, there are 112")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(alone, "points.npy")
    refused(path, "takes 24000000000 bytes, there are 48")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("points.npy", bytes(2 * SLACK))
    refused(path, "declares 33,554,432 bytes of arrays")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.write(alone, "points.npy")
    refused(path, "packed in a way that numpy does not write")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_are_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("points.npy", b"")
    refused(path, "two arrays have the same name")
    np.savez(path, points=np.zeros((2, 3)), Points=np.ones((2, 3)))
    refused(path, "two columns have the same name")
    path = tmp_path / "a.csv"
    path.write_text("x,y,z,x\n1,2,3,4\n")
    refused(path, "column x is there twice")


def test_a_modelnet_file_whose_parts_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    parts = {"points": np.zeros((3, 5, 3)), "label": np.arange(3), "name": np.array(list("abc"))}
    for change in ({"label": np.arange(2)}, {"name": np.array(["a"])}, {"label": np.full(3, 7)}):
        np.savez(path, classes=list("xyz"), **{f"train_{k}": v for k, v in {**parts, **change}.items()})
        refused(path, "Expected layout", ModelNet)


# Text and meshes


def test_negative_and_huge_numbers_of_elements(tmp_path: Path) -> None:
    off, ply = tmp_path / "a.off", tmp_path / "a.ply"
    off.write_text("OFF\n-1 5 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n")
    refused(off, "must not be negative, got -1 and 5")
    for form in ("ascii", "binary_little_endian"):
        head = f"ply\nformat {form} 1.0\nelement vertex %d\n%send_header\n0 0 0\n"
        xyz = "".join(f"property float {axis}\n" for axis in "xyz")
        ply.write_text(head % (10**9, xyz))
        refused(ply, r"declares (5,999,999,999|12,000,000,000) bytes of elements")
        ply.write_text(head % (10**9, "property list uchar int x\n"))
        refused(ply, "bytes of elements")
        ply.write_text(head % (10**9, ""))
        refused(ply, "negative number of rows, or no properties")
        ply.write_text(head % (-1, xyz))
        refused(ply, "negative number of rows, or no properties")


def test_a_mesh_opens_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mesh(tmp_path / "a.obj")
    content = (tmp_path / "a.obj").read_text()
    (tmp_path / "a.obj").write_text(f"mtllib secret.mtl\n{content}")
    (tmp_path / "secret.mtl").write_text("newmtl x\n")
    opened = []
    original = open
    monkeypatch.setattr(
        "builtins.open", lambda name, *a, **k: opened.append(str(name)) or original(name, *a, **k)
    )
    read_points(tmp_path / "a.obj")
    assert not any("secret" in name for name in opened)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": np.array(["a"] * 3)}, "labels in 'label' are not whole numbers"),
        ({"label": np.full(3, np.inf)}, "labels in 'label' are not whole numbers"),
        ({"points": np.array([[0, 0, 0], [1, 1, 1], [1e300, 0, 0]])}, "points hold .* float32"),
        ({"height": np.array(["a"] * 3)}, "height must be numbers for 3 points"),
        ({"height": np.zeros(2)}, "height must be numbers for 3 points"),
    ],
)
def test_columns_that_make_no_sense(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = {"points": np.zeros((3, 3)), "label": np.zeros(3), "height": np.zeros(3)}
    np.savez(tmp_path / "a.npz", **{**whole, **change})
    refused(tmp_path / "a.npz", message, lambda path: Folder(path, "segmentation", ["height"], ["one"])[0])


# Settings, networks and tables


def test_text_that_is_nested_or_refers_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    lines = ["a0: &a0 [x]", *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9))]
    path.write_text("\n".join(lines))
    refused(path, r"line 2: aliases \(\*a0\) are not allowed", load_config)
    path.write_text("data: " + "[" * 100_000)
    refused(path, "nested deeper", load_config)
    path.write_bytes(b"\xff\xff")
    refused(path, "decode", load_config)
    check_yaml("a: {b: [1]}\nc: 2\n")
    table = tmp_path / "a.json"
    for depth in (40, 100_000):
        table.write_text("[" * depth + "]" * depth)
        refused(table, "nested deeper", Table.load)
    table.write_bytes(b"\xff\xff")
    refused(table, "decode", Table.load)
    assert parse_json('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("network", ["Classifier"], "no network"),
        ("arguments", None, "no arguments"),
        ("notes", [], "no notes"),
        ("arguments", {"radii": [float("nan")]}, "radii must be finite"),
        ("arguments", {"radii": {"a": 1}}, "radii must be finite"),
        ("arguments", {"radii": None}, "does not fit the network Classifier"),
        ("arguments", {"method": ["KPConv"]}, "does not fit the network Classifier"),
        ("arguments", {"channels": [10**9]}, "channels=1000000000 is more"),
        ("arguments", {"channels": [4000], "head": 4000}, "far larger than its weights"),
        ("notes", json.loads("[" * 200 + "]" * 200), "nested deeper"),
    ],
)
def test_a_network_whose_description_is_forged(part: str, value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(Classifier(1, 2, "MCConv", channels=[4], radii=[0.1], head=4), path, epoch=1)
    load(path)
    with safetensors.safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["pointvar"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    merged = {**description[part], **value} if part == "arguments" and value else value
    safetensors.torch.save_file(tensors, path, {"pointvar": json.dumps({**description, part: merged})})
    refused(path, message, load)


def test_bad_files_are_of_one_kind(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK")
    with pytest.raises(BadFileError, match=r"a\.npz: cannot be read as npz"):
        read_points(tmp_path / "a.npz")
