"""What the kernels for GPUs need of a GPU: registers, stack, shared memory. It is found without a GPU.

    python benchmarks/resources.py                                  # stores results/resources.json
    python benchmarks/resources.py --markdown docs/performance.md   # puts the stored table into the page

Operators are called on CPU tensors; what they would launch is recorded with all arguments, not run, and
compiled ahead of time by Triton for each target.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import jit

from pointvar.ops import Edges, Known, Native, Values, triton_convolve, triton_geometry

RESULTS = Path(__file__).resolve().parent / "results" / "resources.json"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
BASES = ("values", "gaussian", "linear", "nearest", "mlp", "dot")
# Of a multiprocessor, or of a compute unit: warps, registers of 4 bytes, bytes of shared memory.
ROOM = {
    "sm_80": (64, 1 << 16, 164 << 10),
    "sm_90": (64, 1 << 16, 228 << 10),
    "gfx942": (32, 1 << 17, 64 << 10),
}
PROGRAMS = 32  # that a multiprocessor runs at a time, at most


class Launch(NamedTuple):
    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class _Endless(Exception):
    """Kernels that are repeated until they report that all is done, and here never do."""


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Launches, which do not take place."""
    launches: list[Launch] = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launches.append(Launch(kernel, arguments, options))
        if kernel.__name__ in ("nearest", "disks"):
            raise _Endless

    launch, jit.JITFunction.run = jit.JITFunction.run, run
    try:
        with suppress(_Endless):
            yield launches
    finally:
        jit.JITFunction.run = launch


def convolution(
    basis: str,
    size: int = 16,
    channels: int = 64,
    dtype: torch.dtype = torch.float32,
    unit: bool = False,
    back: bool = False,
) -> list[Launch]:
    """Projection, and the gradient along the edges, of a layer with as many channels out as in.

    Back: the projection onto the support points, for the gradient of the features.
    """
    rows, count, dim = 64, 64 * 24, 3
    size = dim + 1 if basis == "dot" else size
    row_offsets = torch.arange(0, count + 1, 24)
    indices = torch.arange(count) % rows
    if basis == "values":
        functions: Values | Known = Values(torch.zeros(count, size, dtype=dtype))
    else:
        parameters = torch.zeros(size * (dim + (basis == "mlp")), dtype=dtype)
        offsets, scale = torch.zeros(count, dim, dtype=dtype), torch.zeros(count, dtype=dtype)
        functions = Known(Native(basis, offsets, None if basis == "dot" else parameters, (0.5,)), size, scale)
    edges = Edges(row_offsets, indices, functions, unit)
    features = torch.zeros(rows, channels, dtype=dtype)
    weight = torch.zeros(size, channels, channels, dtype=dtype)
    learned = basis in ("gaussian", "linear", "mlp")
    wanted = [back, False, not back, not back and basis != "values", not back and learned]
    with recorded() as launches:
        out, norm = triton_convolve.convolve(features, weight, None, edges)
        triton_convolve.convolve_backward(out, norm, features, weight, edges, wanted)
    return list({launch.kernel.__name__: launch for launch in launches}.values())


def geometry() -> dict[str, list[Launch]]:
    """Of clouds of three dimensions."""
    pair = torch.zeros(64, 3), torch.tensor([0, 64])
    radius, one = torch.ones(1), torch.ones(1, dtype=torch.int64)
    calls: dict[str, Callable[[], Any]] = {
        "ball query": lambda: triton_geometry.ball_query(*pair, *pair, radius, -1, 0),
        "nearest points": lambda: triton_geometry.knn(*pair, *pair, 8),
        "Poisson disks": lambda: triton_geometry.poisson_disk(*pair, radius, 0),
        "farthest points": lambda: triton_geometry.farthest_points(*pair, one, 0 * one, 1),
        "density": lambda: triton_geometry.kernel_density(*pair, radius),
        "its gradient": lambda: triton_geometry.kernel_density_backward(torch.zeros(64), *pair, radius),
    }
    found = {}
    for name, call in calls.items():
        with recorded() as launches:
            call()
        found[name] = launches
    return found


def bound(launch: Launch, target: str) -> tuple[Any, Any, Any]:
    """Arguments by name, what the kernel is specialised for, and options, as Triton binds them."""
    kernel, arguments, options = launch
    backend = make_backend(TARGETS[target])
    bind = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    found: tuple[Any, Any, Any] = bind(*arguments, **options)
    return found


def built(launch: Launch, target: str) -> Any:
    """The kernel as Triton would compile it for this launch."""
    backend = make_backend(TARGETS[target])
    options, signature, constants, attributes = launch.kernel._pack_args(
        backend, launch.options, *bound(launch, target)
    )
    source = ASTSource(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS[target], options=options.__dict__)


def compiled(launch: Launch, target: str) -> dict[str, int]:
    """Registers of a thread, bytes on its stack, bytes of shared memory, and how many warps run at a time."""
    result, size = built(launch, target), launch.options["num_warps"]
    found = _of_amd(result) if target.startswith("gfx") else _of_nvidia(result)
    warps, registers, shared = ROOM[target]
    threads = size * TARGETS[target].warp_size
    in_eights = -(-found["registers"] // 8) * 8
    programs = min(
        *(PROGRAMS, warps // size),
        *(registers // (in_eights * threads), shared // (found["shared"] + 1024)),
    )
    return {**found, "warps": programs * size}


def _of_nvidia(result: Any) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [str(tool), "--dump-resource-usage", file.name]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told))
    stack = int(numbers["STACK"]) + int(numbers["LOCAL"])
    return {"registers": int(numbers["REG"]), "stack": stack, "shared": result.metadata.shared}


def _of_amd(result: Any) -> dict[str, int]:
    told = result.asm["amdgcn"]
    registers, stack = (
        int(re.findall(rf"\.{name}:\s*(\d+)", told)[-1])
        for name in ("vgpr_count", "private_segment_fixed_size")
    )
    return {"registers": registers, "stack": stack, "shared": result.metadata.shared}


def cases() -> Iterator[tuple[str, str, Launch]]:
    """Operator, what is special, and the launch: every kernel in every kind that a user can meet."""
    for basis in BASES:
        for launch in convolution(basis):
            yield launch.kernel.__name__, basis, launch
    for what, options in {
        "linear, back": {"back": True},
        "linear, unit response": {"unit": True},
        "linear, float64": {"dtype": torch.float64},
        "linear, 1 channel": {"channels": 1},
        "linear, 64 functions, 256 channels": {"size": 64, "channels": 256},
    }.items():
        for launch in convolution("linear", **options):
            yield launch.kernel.__name__, what, launch
    for name, launches in geometry().items():
        for number, launch in enumerate(launches):
            yield launch.kernel.__name__, name + (", second pass" if number else ""), launch


def measure() -> list[dict[str, Any]]:
    rows = []
    for kernel, what, launch in cases():
        harness.say(f"{kernel}: {what}")
        for target in TARGETS:
            rows.append({"kernel": kernel, "of": what, "target": target, **compiled(launch, target)})
    return rows


def page(stored: dict[str, Any]) -> str:
    """One line for each kernel; for each target registers / bytes on the stack / KB shared / warps."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in stored["rows"]:
        told = f"{row['registers']} / {row['stack']} / {row['shared'] / 1024:.1f} / {row['warps']}"
        line = lines.setdefault((row["kernel"], row["of"]), {"kernel": f"`{row['kernel']}`", "of": row["of"]})
        line[row["target"]] = told
    columns = {"kernel": "kernel", "of": "of", **{target: target for target in TARGETS}}
    return f"Triton {stored['triton']}.\n\n" + harness.table(list(lines.values()), columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="only put the stored table into this page")
    arguments = parser.parse_args()
    if arguments.markdown is None:
        harness.save({"triton": metadata.version("triton"), "rows": measure()}, RESULTS)
    else:
        harness.fill(arguments.markdown, "resources", page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
