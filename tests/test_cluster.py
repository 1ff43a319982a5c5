"""pointvar predict on a Ray cluster of this machine, of which a worker is killed in the middle."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest
from survey_cases import chosen, landscape, write_las, write_network

from pointvar.commands import cluster

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pointvar[cluster]'")


class Dying(cluster.Actor):
    """Ends its process the first time that any of them gets the second file; writes down what it did."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        file = Path(row["file"])
        marker = file.with_suffix(".met")
        if file.stem == "1" and not marker.exists():
            marker.touch()
            self.worker(file)  # also after it has written the file, and before it could say so
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(row)


@pytest.fixture
def _machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("_machines")
@pytest.mark.filterwarnings("ignore")  # of ray itself
def test_a_cluster_that_loses_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost, nothing is there twice, and all is as one process has it."""
    from pointvar.cli import main

    whole = landscape(400, 24.0, 6.0)
    strip = np.floor((whole["points"][:, 0] - whole["points"][:, 0].min()) / 6).astype(int).clip(0, 3)
    files = [tmp_path / f"{number}.laz" for number in range(4)]
    for number, file in enumerate(files):
        write_las(file, chosen(whole, strip == number))
    broken = tmp_path / "broken.laz"
    broken.write_bytes(b"LASF")
    network = write_network(tmp_path / "net.safetensors")
    monkeypatch.setattr(cluster, "Actor", Dying)
    arguments = ["predict", "--device=cpu", str(network), *map(str, files)]
    assert (
        main([*arguments, str(broken), f"--output={tmp_path / 'out'}", "--cluster=auto", "--workers=2"]) == 2
    )
    shown = capsys.readouterr()
    assert files[1].with_suffix(".met").exists(), shown
    assert "broken.laz" in shown.err
    lines = [line for line in shown.out.splitlines() if line.startswith(str(tmp_path))]  # others are Ray's
    written = [line.split(":")[0] for line in lines]
    assert sorted(written) == [str(tmp_path / f"out/{number}.laz") for number in range(4)]
    assert main([*arguments, f"--output={tmp_path / 'alone'}"]) == 0
    for file in files:
        found, alone = (laspy.read(tmp_path / name / file.name) for name in ("out", "alone"))
        np.testing.assert_array_equal(found.classification, alone.classification)
    assert not (tmp_path / "out/.predicting").exists()
    # What is finished is not given to the cluster again.
    monkeypatch.setattr(cluster, "on_cluster", None)
    assert main([*arguments, f"--output={tmp_path / 'out'}", "--cluster=auto"]) == 0


def test_a_machine_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'pointvar\[cluster\]'"):
        next(cluster.on_cluster(None, [Path("x")], "auto"))  # type: ignore[arg-type]
