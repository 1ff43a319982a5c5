"""What the benchmarks promise beside their numbers: that two versions are two versions."""

import os
import subprocess
import sys
from pathlib import Path

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
