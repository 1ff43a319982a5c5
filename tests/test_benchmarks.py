"""What the benchmarks promise beside their numbers: that two versions are two versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
# As an editable install does it: a finder before all others, which knows where its pointvar is.
INSTALLED = """
import importlib.util, sys
class Installed:
    def find_spec(self, name, path=None, target=None):
        if name == "pointvar":
            return importlib.util.spec_from_file_location(name, sys.argv[1] + "/pointvar/__init__.py")
sys.meta_path.insert(0, Installed())
sys.path.insert(0, sys.argv[2])
import harness, pointvar
print(pointvar.__file__)
"""


def imported(installed: Path, source: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "POINTVAR_BENCHMARK_SOURCE"}
    if source is not None:
        environment["POINTVAR_BENCHMARK_SOURCE"] = str(source)
    command = [sys.executable, "-c", INSTALLED, str(installed), str(BENCHMARKS)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_other_pointvar_is_imported_whatever_is_installed(tmp_path: Path) -> None:
    for name in ("installed", "other"):
        (tmp_path / name / "pointvar").mkdir(parents=True)
        (tmp_path / name / "pointvar" / "__init__.py").touch()
    installed, other = tmp_path / "installed", tmp_path / "other"
    assert imported(installed, None).stdout.strip() == str(installed / "pointvar" / "__init__.py")
    assert imported(installed, other).stdout.strip() == str(other / "pointvar" / "__init__.py")
    (other / "pointvar" / "__init__.py").unlink()
    (other / "pointvar").rmdir()
    assert imported(installed, other).returncode != 0  # not there: no other is taken in its place


def test_a_step_that_is_measured_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few points and one channel, as without work."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import steps

    assert list(steps.Step("small", empty=True).parts(0)) == steps.PARTS


def test_the_cost_of_a_convolution_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One point with two neighbours, three channels to five, sixteen functions."""
    pytest.importorskip("scipy", reason="the benchmarks need scipy")
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu

    projection, product = gpu.steps(1, 2, 3, 5, "float32", backward=False)
    assert projection == (2 * (3 * 4 + 12 + 4 + 8) + 16 * 3 * 4, 2 * 2 * 16 * 3, False)
    assert product == (16 * 3 * 4 + 16 * 3 * 5 * 4 + 5 * 4, 2 * 16 * 3 * 5, True)
    back, *products = gpu.steps(1, 2, 3, 5, "bfloat16", backward=True)
    assert back == (2 * (5 * 2 + 12 + 4 + 16) + 16 * 5 * 2, 2 * 2 * 16 * 5, False)
    assert products == [(16 * 5 * 2 + 16 * 3 * 5 * 2 + 3 * 2, 2 * 16 * 3 * 5, True)] * 2
    device = gpu.Device(bandwidth=10.0, float32=100.0, bfloat16=1000.0)
    work = [gpu.Step(20, 100), gpu.Step(1, 3000, True)]
    assert gpu.least_time(work, device, "float32") == 32_000
    assert gpu.least_time(work, device, "bfloat16") == 5_000
    told = gpu.page({"modelled": gpu.modelled(), "counted": [{"operator": "a", "waits": 1, "operators": 2}]})
    assert "A100, modelled (ms)" in told
    assert told.endswith("Nothing is measured yet.")
