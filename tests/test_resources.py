"""The kernels for GPUs, compiled ahead of time: they fit, and the documentation says how well."""

import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import resources

pytestmark = pytest.mark.skipif(
    resources.triton.knobs.runtime.interpret, reason="kernels are interpreted here"
)

STACK, REGISTERS, SHARED, WARPS = 32, 128, 32 << 10, 16


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("target", resources.TARGETS)
def test_every_kernel_fits(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few registers and little memory for each program: enough of them run at a time to hide memory."""
    monkeypatch.setattr(resources, "TARGETS", {target: resources.TARGETS[target]})
    rows = resources.measure()
    for row in rows:
        assert row["stack"] <= STACK, row
        assert row["registers"] <= REGISTERS, row
        assert row["shared"] <= SHARED, row
        assert row["warps"] >= WARPS, row
    stored = json.loads(resources.RESULTS.read_text())
    if stored["triton"] == metadata.version("triton"):
        told = [row for row in stored["rows"] if row["target"] == target]
        assert told == rows, "run benchmarks/resources.py, then again with --markdown docs/performance.md"


def test_kernels_are_compiled_as_asked_for() -> None:
    """Nothing is left to what a version of Triton thinks best."""
    for _, _, launch in resources.cases():
        assert launch.options.keys() >= {"num_warps", "num_stages", "enable_fp_fusion"}
        compiled = resources.built(launch, "sm_80").metadata
        assert (compiled.num_stages, compiled.enable_fp_fusion) == (1, False)
        assert compiled.num_warps == launch.options["num_warps"]


def test_places_in_memory_are_counted_in_int64() -> None:
    """Programs, which are as many as rows, and products of numbers that are not fixed."""
    for _, _, launch in resources.cases():
        code = resources.built(launch, "sm_80").asm["ttir"]
        (program,) = re.findall(r"(%\w+) = tt.get_program_id x", code)
        uses = re.findall(rf"= (\S+) .*{program}\b", code)
        assert set(uses) <= {"arith.extsi", "tt.get_program_id"}, launch.kernel.__name__
        products = re.findall(r"arith\.muli (\S+), (\S+) : (?:tensor<[x\d]*x)?i32", code)
        fixed = r"%(c\d+_i32|cst)(_\d+)?"
        assert all(re.fullmatch(fixed, a) or re.fullmatch(fixed, b) for a, b in products), products


def test_parts_of_a_buffer_need_no_kernels_of_their_own() -> None:
    """Edges and points of a hierarchy begin anywhere in one buffer, elsewhere in each batch."""
    edges = {"operand", "scale", "row_offsets", "points", "edges"}
    for _, _, launch in resources.cases():
        convolves = launch.kernel.__name__ in ("project", "unproject")
        batched = edges if convolves else {"queries", "points", "offsets"}
        named = zip(launch.kernel.arg_names, launch.arguments, strict=False)
        shifted = tuple(_shifted(a) if name in batched and a is not None else a for name, a in named)
        assert any(a is not b for a, b in zip(shifted, launch.arguments, strict=True))
        elsewhere = resources.bound(launch._replace(arguments=shifted), "sm_80")
        assert elsewhere[1] == resources.bound(launch, "sm_80")[1], launch.kernel.__name__


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same, not at a multiple of 16 bytes."""
    room = tensor.new_empty(tensor.numel() + 1)
    return room[1:].copy_(tensor.flatten()).view(tensor.shape)


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_a_basis_of_many_functions_fits_into_shared_memory(target: str) -> None:
    """Any GPU gives a program 48 KB."""
    for launch in resources.convolution("values", size=512):
        assert resources.built(launch, target).metadata.shared <= 48 << 10


def test_distances_of_farthest_points_are_seen_by_all_threads() -> None:
    """One pick writes what the next one reads, perhaps in another thread."""
    (launch,) = resources.geometry()["farthest points"]
    for target in resources.TARGETS:
        assert "ttg.barrier all" in resources.built(launch, target).asm["ttgir"]


def test_squared_distances_are_rounded_at_each_step() -> None:
    """A fused multiply-add would put points exactly at the radius on the other side."""
    launches = [launch for launches in resources.geometry().values() for launch in launches]
    choosing = [launch for launch in launches if launch.kernel.__name__ != "density"]
    assert {launch.kernel.__name__ for launch in choosing} == {"neighbours", "nearest", "disks", "farthest"}
    for launch in choosing:
        assert not re.search(r"\bfma\.rn\.f32", resources.built(launch, "sm_80").asm["ptx"])
        assert not re.search(r"v_(pk_)?fmac?_f32", resources.built(launch, "gfx942").asm["amdgcn"])
