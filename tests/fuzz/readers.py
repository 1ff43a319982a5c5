"""Damaged files for every reader: none may end the process, hang, or take memory out of proportion.

    python tests/fuzz/readers.py [--count 10000] [--seed 0] [--format laz h5] [--workers 2] [--keep FOLDER]

Small valid files are mutated and read in worker processes, one mutant at a time, under a limit of address
space and a timer. A mutant may be read, or be refused by a ValueError that names the file. Everything else is
a finding: the process died, it took more than 5 s, it took more memory than `pointvar.limits` allows for a
file of its size, or another exception came out. The summary is JSON on the last lines, findings are kept in
a folder, and the exit code is 1 if there is one. The same seed and count give the same mutants.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import h5py
import laspy
import numpy as np
import plyfile  # noqa: F401  # imported once, before the workers are forked
import torch
import trimesh  # noqa: F401
from writers import scene, write_mesh, write_scene

from pointvar.data import Folder, read_points
from pointvar.data.modelnet import ModelNet
from pointvar.data.scanobjectnn import ScanObjectNN
from pointvar.init import Table
from pointvar.limits import EXPANSION
from pointvar.limits import SLACK as LIMIT
from pointvar.models import Classifier, PlainNet, load, save
from pointvar.models.storage import read_notes
from pointvar.train.config import Config, load_config

SECONDS = 5.0
FACTOR, SLACK = EXPANSION, 4 * LIMIT  # bytes per byte of the file, and besides: copies, caches, modules
SPACE = 2**29  # of addresses, beyond those of a fresh worker
EXTREMES = [0, 1, 2, 127, 128, 255, 32767, 65535, 10**8, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
WORDS = ["-1", "0", "1", "999999999", str(10**18), "1e308", "nan", "inf", "-inf", "", "x", "9" * 5000]


class Outcome(NamedTuple):
    kind: str  # "read" or "refused", else a finding
    text: str = ""
    taken: int = 0  # bytes of memory


# Files that are whole


def _las(path: Path, point_format: int = 2, version: str = "1.2") -> None:
    data = scene(60)
    header = laspy.LasHeader(point_format=point_format, version=version)
    header.scales, header.offsets = [0.125] * 3, [0] * 3
    if version == "1.4":
        header.add_extra_dim(laspy.ExtraBytesParams(name="height", type="f4"))
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = data["points"].T
    cloud.red, cloud.green, cloud.blue = data["colors"].T.astype(np.uint16) * 257
    if version == "1.4":
        cloud.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("fuzz", 7, "more", b"0123456789" * 4)])
    cloud.write(str(path))


def _h5(path: Path) -> None:
    data = scene(60)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data["points"], chunks=(16, 3), compression="gzip", shuffle=True)
        file.create_dataset("color", data=data["colors"])
        file.create_dataset("label", data=data["label"], chunks=(32,))
        file.create_group("more").attrs["note"] = "of no use"


def _clouds(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=np.ones((4, 20, 3), np.float32), compression="gzip")
        file.create_dataset("label", data=np.zeros((4, 1), np.uint8))


def _modelnet(path: Path) -> None:
    parts = {"points": np.ones((4, 20, 3), np.float32), "label": np.arange(4) % 2, "name": list("abcd")}
    np.savez_compressed(path, classes=["one", "two"], **{f"train_{name}": p for name, p in parts.items()})


def _squeezed(path: Path) -> None:
    data = scene(60)
    np.savez_compressed(path, points=data["points"], label=data["label"], classes=["a", "b", "c", "d"])


def _model(path: Path) -> None:
    save(PlainNet(2, 3, method="KPConvN"), path, classes=["one", "two"])


def _classifier(path: Path) -> None:
    save(Classifier(1, 2, "MCConv", channels=[4, 4], radii=[0.1, 0.2], head=4), path, epoch=1)


class Format(NamedTuple):
    """How whole files are written, by name, and how a damaged one is read."""

    read: Callable[[Path], Any]
    write: dict[str, Callable[[Path], Any]]


def _scenes(*names: str) -> dict[str, Callable[[Path], Any]]:
    return {name: lambda path: write_scene(path, scene(60)) for name in names}


FORMATS = {
    "las": Format(read_points, {"a.las": _las, "b.las": lambda path: _las(path, 7, "1.4")}),
    "laz": Format(read_points, {"a.laz": _las, "b.laz": lambda path: _las(path, 7, "1.4")}),
    "ply": Format(read_points, {**_scenes("a.ply", "ascii.ply"), "b.ply": write_mesh}),
    "off": Format(read_points, {"a.off": write_mesh}),
    "obj": Format(read_points, {"a.obj": write_mesh}),
    "stl": Format(read_points, {"a.stl": write_mesh}),
    "npy": Format(read_points, _scenes("a.npy")),
    "npz": Format(read_points, {**_scenes("a.npz"), "b.npz": _squeezed}),
    "h5": Format(read_points, {**_scenes("a.h5"), "b.h5": _h5}),
    "text": Format(read_points, _scenes("a.csv", "a.txt")),
    "folder": Format(
        lambda path: Folder(path, "segmentation", cache=False)[0],
        {**_scenes("a.npz", "a.h5", "a.ply", "a.csv", "a.las"), "b.npz": _squeezed, "b.h5": _h5},
    ),
    "clouds": Format(lambda path: ScanObjectNN(path)[0], {"c.h5": _clouds}),
    "modelnet": Format(lambda path: ModelNet(path)[0], {"c.npz": _modelnet}),
    "config": Format(load_config, {"a.yaml": lambda path: path.write_text(Config().to_yaml())}),
    "model": Format(
        lambda path: (read_notes(path), load(path)), {"a.safetensors": _model, "b.safetensors": _classifier}
    ),
    "table": Format(Table.load, {"a.json": lambda path: Table.load("modelnet40").save(path)}),
}


# Damage


def _flip(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        content[_place(content, chance)] ^= 1 << chance.randrange(8)


def _truncate(content: bytearray, chance: random.Random) -> None:
    del content[_place(content, chance) :]


def _splice(content: bytearray, chance: random.Random) -> None:
    start, length = _place(content, chance), chance.choice([1, 4, 16, 200])
    piece = content[start : start + length]
    place = _place(content, chance)
    content[place : place + chance.choice([0, len(piece)])] = piece * chance.choice([1, 1, 2, 50])


def _remove(content: bytearray, chance: random.Random) -> None:
    start = _place(content, chance)
    del content[start : start + chance.choice([1, 4, 16, 200])]


def _integer(content: bytearray, chance: random.Random) -> None:
    """An integer field that is set to an extreme, as counts, sizes and offsets are."""
    width = chance.choice([1, 2, 4, 8])
    place = _place(content, chance)
    value = chance.choice(EXTREMES) % (1 << 8 * width)
    content[place : place + width] = value.to_bytes(width, chance.choice(["little", "little", "big"]))


def _word(content: bytearray, chance: random.Random) -> None:
    """A number in text that is set to an extreme."""
    found = list(re.finditer(rb"-?[0-9][0-9.e+-]*", bytes(content[:100_000])))
    if found:
        match = chance.choice(found[:12]) if chance.random() < 0.5 else chance.choice(found)
        content[match.start() : match.end()] = chance.choice(WORDS).encode()


def _nest(content: bytearray, chance: random.Random) -> None:
    """Brackets, far too deep."""
    mark = chance.choice([b"[", b'{"a":', b"(", b"- ", b"&a [*a,"])
    place = _place(content, chance)
    content[place:place] = mark * chance.choice([3, 100, 20_000])


DAMAGES = [_flip, _flip, _truncate, _splice, _remove, _integer, _integer, _integer, _word, _word, _nest]


def _place(content: bytearray, chance: random.Random) -> int:
    """Headers are hit as often as all the rest."""
    end = len(content) if chance.random() < 0.5 else min(len(content), 512)
    return chance.randrange(max(end, 1)) if len(content) else 0


def _damaged(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
        if changed:
            chance.choice(DAMAGES)(changed, chance)
    return bytes(changed)


def mutant(content: bytes, chance: random.Random) -> bytes:
    """A damaged copy. Half of those of a zip file are damaged inside, where no checksum tells."""
    if not content.startswith(b"PK") or chance.random() < 0.5:
        return _damaged(content, chance)
    whole, result = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    victim = chance.choice(whole.namelist())
    with zipfile.ZipFile(result, "w", chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as changed:
        for name in whole.namelist():
            part = whole.read(name)
            changed.writestr(name, _damaged(part, chance) if name == victim else part)
    return result.getvalue()


# Reading, in a process of its own


def _peak() -> int:
    """The largest resident size of this process since it was reset, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def _attempt(read: Callable[[Path], Any], path: Path) -> Outcome:
    size = path.stat().st_size
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _peak()
    try:
        read(path)
        outcome = Outcome("read")
    except ValueError as error:
        named = path.name in str(error)
        outcome = Outcome("refused", str(error)) if named else Outcome("unnamed", traceback.format_exc())
    except BaseException as error:  # a panic of a Rust library is no Exception
        kind = "memory" if isinstance(error, MemoryError) else "exception"
        outcome = Outcome(kind, traceback.format_exc())
    if (taken := _peak() - before) > FACTOR * size + SLACK:
        outcome = Outcome("memory", f"{taken / 2**20:.0f} MiB for a file of {size} bytes")
    return outcome._replace(taken=taken)


def _work(pipe: Connection) -> None:
    """Reads what is named in the pipe and answers with an outcome, for ever."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic prints its own report
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        kind, path = pipe.recv()
        pipe.send(_attempt(FORMATS[kind].read, path))


class Worker:
    """A process that reads one file at a time; it is replaced when it dies or hangs."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=_work, args=(end,), daemon=True)
        self.process.start()
        end.close()

    def give(self, kind: str, path: Path) -> None:
        self.kind, self.path = kind, path
        self.deadline = time.monotonic() + SECONDS
        self.pipe.send((kind, path))

    def result(self) -> Outcome | None:
        """What became of the job, or None as long as it is under way."""
        try:
            if self.pipe.poll():
                return self.pipe.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode or 0
            self.start()
            return Outcome("abort", signal.Signals(-code).name if code < 0 else f"exit code {code}")
        if time.monotonic() < self.deadline:
            return None
        self.process.kill()
        self.process.join()
        self.start()
        return Outcome("hang", f"more than {SECONDS:g} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="mutants in all (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutants (0)")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS), help="default: all")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="folder of findings")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in options.format}
    findings: list[dict[str, Any]] = []
    slowest, largest, begin = 0.0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["POINTVAR_CACHE"] = str(folder / "cache")
        whole: dict[str, list[tuple[str, bytes]]] = {}
        for kind in options.format:
            for name, write in FORMATS[kind].write.items():
                write(folder / name)
                FORMATS[kind].read(folder / name)  # a whole file is read
                whole.setdefault(kind, []).append((name, (folder / name).read_bytes()))
        workers = [Worker() for _ in range(options.workers)]
        jobs = iter(range(options.count))
        idle, busy = list(workers), []
        done = 0
        while done < options.count:
            while idle and (job := next(jobs, None)) is not None:
                kind = options.format[job % len(options.format)]
                chance = random.Random(f"{options.seed} {kind} {job}")
                name, content = chance.choice(whole[kind])
                path = folder / f"mutant{job}{Path(name).suffix}"
                path.write_bytes(mutant(content, chance))
                worker = idle.pop()
                worker.give(kind, path)
                busy.append((worker, time.monotonic()))
            wait([worker.pipe for worker, _ in busy], timeout=0.2)
            for entry in list(busy):
                worker, started = entry
                if (outcome := worker.result()) is None:
                    continue
                busy.remove(entry)
                idle.append(worker)
                done += 1
                slowest = max(slowest, time.monotonic() - started)
                largest = max(largest, outcome.taken)
                counts[worker.kind][outcome.kind] += 1
                if outcome.kind not in ("read", "refused"):
                    options.keep.mkdir(parents=True, exist_ok=True)
                    kept = (
                        options.keep / f"{worker.kind}-{outcome.kind}-seed{options.seed}-{worker.path.name}"
                    )
                    kept.write_bytes(worker.path.read_bytes())
                    findings.append({"file": str(kept), "kind": outcome.kind, "text": outcome.text})
                    print(f"{outcome.kind}: {kept}: {outcome.text.strip().splitlines()[-1]}", flush=True)
                worker.path.unlink()
                if done % 1000 == 0:
                    print(f"{done} of {options.count}, {time.monotonic() - begin:.0f} s", flush=True)
        for worker in workers:
            worker.process.kill()  # idle; closing its pipe is not enough, for later ones have a copy
            worker.process.join()
    summary = {
        "mutants": options.count,
        "seed": options.seed,
        "seconds": round(time.monotonic() - begin, 1),
        "slowest": round(slowest, 2),
        "largest MiB": round(largest / 2**20, 1),
        "formats": {kind: dict(count) for kind, count in counts.items()},
        "findings": findings,
    }
    print(json.dumps(summary, indent=1))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
