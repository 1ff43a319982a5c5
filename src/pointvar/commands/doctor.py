"""Checks this installation, and says what to do where something is missing or slow."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

import pointvar as pv
from pointvar.ops import native, reference, reference_convolve

GOOD, ADVICE, BAD = "ok", "!", "FAIL"


class Finding(NamedTuple):
    """One line of the examination."""

    state: str
    name: str
    found: str
    advice: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    """Prints all findings; 1 if something does not work."""
    findings = list(examine())
    width = max(len(finding.name) for finding in findings)
    for state, name, found, advice in findings:
        print(f"{state:<4}  {name:<{width}}  {found}")
        if advice:
            print(f"{'':<{width + 8}}-> {advice}")
    failed = sum(finding.state == BAD for finding in findings)
    hints = sum(finding.state == ADVICE for finding in findings)
    print(
        f"\n{'all works' if not failed else f'{failed} failed'}" + (f", {hints} to look at" if hints else "")
    )
    return 1 if failed else 0


def examine() -> Iterator[Finding]:
    """All that is checked, in order."""
    yield Finding(
        GOOD, "pointvar", f"{pv.__version__}, Python {platform.python_version()}, {platform.platform()}"
    )
    yield _torch()
    yield _native()
    yield _threads()
    yield _openmp()
    yield _convolution()
    yield from _extras()


def _torch() -> Finding:
    devices = "CPU only"
    if torch.cuda.is_available():
        devices = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    version = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if version < (2, 6):
        return Finding(BAD, "torch", torch.__version__, "pointvar needs 2.6 or newer: pip install -U torch")
    return Finding(GOOD, "torch", f"{torch.__version__}, {devices}")


def _native() -> Finding:
    if native.available:
        return Finding(GOOD, "native core", f"C++ kernels for {native.native_info()['instruction_set']}")
    if os.environ.get("POINTVAR_BACKEND") == "reference":
        advice = "POINTVAR_BACKEND=reference is set; unset it for the fast kernels"
        return Finding(ADVICE, "native core", "plain torch, as asked for", advice)
    advice = "install again with a C++17 compiler at hand: pip install --force-reinstall --no-deps pointvar"
    return Finding(ADVICE, "native core", "missing; plain torch serves, much slower", advice)


def _threads() -> Finding:
    used, cores = torch.get_num_threads(), _cores()
    kernels = native.native_info()["threads"]
    found = f"{used} of {cores} cores"
    if kernels != used:
        advice = "torch.set_num_threads does not rule the kernels: see OpenMP below"
        return Finding(BAD, "threads", f"torch {used}, kernels {kernels}", advice)
    if used < cores // 2:
        named = [f"{n}={os.environ[n]}" for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if n in os.environ]
        advice = f"{' and '.join(named) or 'something'} limits the threads"
        return Finding(ADVICE, "threads", found, f"{advice}; for more: torch.set_num_threads({cores})")
    return Finding(GOOD, "threads", found)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _openmp() -> Finding:
    runtime = native.native_info()["openmp"]
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return Finding(GOOD, "OpenMP", str(runtime or "that of torch"))
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    loaded = sorted(path for path in paths if re.search(r"/lib(gomp|omp|iomp)[^/]*\.so", path))
    if runtime is not None and len(loaded) > 1:
        advice = (
            "two runtimes compete for the cores; import torch before other libraries that bring their own"
        )
        return Finding(ADVICE, "OpenMP", f"{len(loaded)} runtimes: {', '.join(loaded)}", advice)
    return Finding(GOOD, "OpenMP", f"one runtime, {Path(loaded[0] if loaded else str(runtime)).name}")


def _convolution() -> Finding:
    """A small convolution as it runs here, against the definition in plain torch, step by step."""
    generator = torch.Generator().manual_seed(0)
    cloud = pv.PointCloud(torch.rand(300, 3, generator=generator), [200, 100])
    features = torch.randn(300, 8, generator=generator)
    layer = pv.KPConvN(8, 16, generator=generator)
    torch.nn.init.normal_(layer.weight, generator=generator)
    try:
        with torch.no_grad():
            hood = pv.ball_query(cloud, cloud, 0.3)
            radius = torch.full((2,), 0.3)
            parts = (cloud.points, cloud.offsets, cloud.points, cloud.offsets, radius)
            row_offsets, indices, _ = reference.ball_query(*parts, -1, 0)
            if not (torch.equal(hood.row_offsets, row_offsets) and torch.equal(hood.indices, indices)):
                return Finding(BAD, "convolution", "neighbours differ from the definition", REPORT)
            values = (
                layer.basis(hood.relative_positions(), hood.edge_radius()) * layer.estimator(hood)[:, None]
            )
            expected, _ = reference_convolve.convolve(features, values, layer.weight, row_offsets, indices)
            off = float((layer(features, hood) - expected).abs().max() / expected.abs().max())
    except Exception as error:  # whatever it is, the rest of the examination is worth reading
        return Finding(BAD, "convolution", f"{type(error).__name__}: {error}", REPORT)
    found = (
        f"{hood.num_edges:,} neighbours, {'native' if native.available else 'plain torch'} against definition"
    )
    if not off < 1e-4:
        return Finding(BAD, "convolution", f"{found}: off by {off:.1e}", REPORT)
    return Finding(GOOD, "convolution", f"{found}: equal to {off:.0e}")


REPORT = "try POINTVAR_ISA=baseline or POINTVAR_BACKEND=reference, and report this with all of this output"


def _extras() -> Iterator[Finding]:
    """The optional parts, as the package itself lists them."""
    needs: dict[str, list[str]] = {}
    for line in metadata.requires("pointvar") or []:
        found = re.match(r"""([\w.-]+).*extra == ['"](\w+)['"]""", line)
        if found:
            needs.setdefault(found[2], []).append(found[1])
    for extra in ("train", "data", "lidar", "report"):
        versions = {name: _version(name) for name in needs.get(extra, [])}
        missing = [name for name, version in versions.items() if version is None]
        if versions and not missing:
            yield Finding(GOOD, f"extra {extra}", ", ".join(f"{n} {v}" for n, v in versions.items()))
        else:
            text = f"missing: {', '.join(missing)}" if missing else "not known to the installed package"
            yield Finding(ADVICE, f"extra {extra}", text, f"pip install 'pointvar[{extra}]'")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
