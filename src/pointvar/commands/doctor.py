"""Check this installation, and say what to do where something is missing or slow."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pointvar as pv
from pointvar.commands import usable_cores

GOOD, ADVICE, BAD = "ok", "!", "FAIL"
REPORT = "try POINTVAR_ISA=baseline or POINTVAR_BACKEND=reference, and report this with all of this output"


class Finding(NamedTuple):
    """One line of the examination."""

    state: str
    found: str
    advice: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    """Prints all findings; 1 if something does not work."""
    findings = {name: _examined(check) for name, check in CHECKS.items()}
    width = max(map(len, findings))
    for name, (state, found, advice) in findings.items():
        print(f"{state:<4}  {name:<{width}}  {found}")
        if advice:
            print(f"{'':<{width + 8}}-> {advice}")
    states = [finding.state for finding in findings.values()]
    failed, hints = states.count(BAD), states.count(ADVICE)
    print(f"\n{f'{failed} failed' if failed else 'all works'}" + (f", {hints} to look at" if hints else ""))
    return 1 if failed else 0


def _examined(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # whatever it is, the rest of the examination is worth reading
        return Finding(BAD, f"{type(error).__name__}: {error}", REPORT)


def _pointvar() -> Finding:
    return Finding(GOOD, f"{pv.__version__}, Python {platform.python_version()}, {platform.platform()}")


def _torch() -> Finding:
    import torch

    devices = "CPU only"
    if torch.cuda.is_available():
        devices = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    version = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if version < (2, 6):
        return Finding(BAD, torch.__version__, "pointvar needs 2.6 or newer: pip install -U torch")
    return Finding(GOOD, f"{torch.__version__}, {devices}")


def _native() -> Finding:
    from pointvar.ops import native

    if native.available:
        return Finding(GOOD, f"C++ kernels for {pv.native_info()['instruction_set']}")
    if native.WISH == "reference":
        advice = "POINTVAR_BACKEND=reference is set; unset it for the fast kernels"
        return Finding(ADVICE, "plain torch, as asked for", advice)
    advice = "install again with a C++17 compiler at hand: pip install --force-reinstall --no-deps pointvar"
    return Finding(ADVICE, "missing; plain torch serves, much slower", advice)


def _gpu() -> Finding:
    """What runs on the devices beside the CPU, or would, if there was one."""
    from pointvar.ops import backends

    devices = {name: what for name, what in pv.native_info()["devices"].items() if name != "cpu"}
    found = "; ".join(f"{name}: {what}" for name, what in devices.items())
    if not devices:
        return Finding(GOOD, f"none here; on a GPU: {backends.describe('cuda')}")
    if devices.get("cuda", "").endswith("not installed"):
        return Finding(ADVICE, found, "pip install triton (it comes with torch for Linux and a GPU)")
    return Finding(GOOD, found)


def _threads() -> Finding:
    import torch

    used, cores = torch.get_num_threads(), usable_cores()
    kernels = pv.native_info()["threads"]
    found = f"{used} of {cores} cores"
    if kernels != used:
        advice = "torch.set_num_threads does not rule the kernels: see OpenMP below"
        return Finding(BAD, f"torch {used}, kernels {kernels}", advice)
    if used < cores // 2:
        named = [f"{n}={os.environ[n]}" for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if n in os.environ]
        advice = f"{' and '.join(named) or 'something'} limits the threads"
        return Finding(ADVICE, found, f"{advice}; for more: torch.set_num_threads({cores})")
    return Finding(GOOD, found)


def _openmp() -> Finding:
    runtime = pv.native_info()["openmp"]
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return Finding(GOOD, str(runtime or "that of torch"))
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    loaded = sorted(path for path in paths if re.search(r"/lib(gomp|omp|iomp)[^/]*\.so", path))
    if runtime is not None and len(loaded) > 1:
        advice = (
            "two runtimes compete for the cores; import torch before other libraries that bring their own"
        )
        return Finding(ADVICE, f"{len(loaded)} runtimes: {', '.join(loaded)}", advice)
    return Finding(GOOD, f"one runtime, {Path(loaded[0] if loaded else str(runtime)).name}")


def _convolution() -> Finding:
    """A small convolution as it runs here, against the definition in plain torch, step by step."""
    import torch

    from pointvar.ops import Edges, Values, reference, reference_convolve

    generator = torch.Generator().manual_seed(0)
    cloud = pv.PointCloud(torch.rand(300, 3, generator=generator), [200, 100])
    features = torch.randn(300, 8, generator=generator)
    layer = pv.KPConvN(8, 16, generator=generator)
    torch.nn.init.normal_(layer.weight, generator=generator)
    with torch.no_grad():
        hood = pv.ball_query(cloud, cloud, 0.3)
        radius = torch.full((2,), 0.3)
        parts = (cloud.points, cloud.offsets, cloud.points, cloud.offsets, radius)
        row_offsets, indices, _ = reference.ball_query(*parts, -1, 0)
        if not (torch.equal(hood.row_offsets, row_offsets) and torch.equal(hood.indices, indices)):
            return Finding(BAD, "neighbours differ from the definition", REPORT)
        values = layer.basis(hood.relative_positions(), hood.edge_radius()) * layer.estimator(hood)[:, None]
        edges = Edges(row_offsets, indices, Values(values))
        expected, _ = reference_convolve.convolve(features, layer.weight, None, edges)
        off = float((layer(features, hood) - expected).abs().max() / expected.abs().max())
    kernels = pv.native_info()["backend"].replace("reference", "plain torch")
    found = f"{hood.num_edges:,} neighbours, {kernels} against definition"
    if not off < 1e-4:
        return Finding(BAD, f"{found}: off by {off:.1e}", REPORT)
    return Finding(GOOD, f"{found}: equal to {off:.0e}")


def _extra(extra: str) -> Finding:
    """An optional part, as the package itself lists it."""
    named = rf"""([\w.-]+).*extra == ['"]{extra}['"]"""
    needs = [found[1] for line in metadata.requires("pointvar") or [] if (found := re.match(named, line))]
    versions = {name: _version(name) for name in needs}
    missing = [name for name, version in versions.items() if version is None]
    if versions and not missing:
        return Finding(GOOD, ", ".join(f"{name} {version}" for name, version in versions.items()))
    text = f"missing: {', '.join(missing)}" if missing else "not known to the installed package"
    return Finding(ADVICE, text, f"pip install 'pointvar[{extra}]'")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


CHECKS: dict[str, Callable[[], Finding]] = {
    "pointvar": _pointvar,
    "torch": _torch,
    "native core": _native,
    "GPU": _gpu,
    "threads": _threads,
    "OpenMP": _openmp,
    "convolution": _convolution,
    **{f"extra {name}": partial(_extra, name) for name in ("train", "data", "lidar", "report")},
}
