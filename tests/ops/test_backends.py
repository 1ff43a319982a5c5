"""Which kernels run on which device, and what a user is told about it."""

import os
import subprocess
import sys
from importlib import util

import pytest

import pointvar as pv
from pointvar.commands import doctor
from pointvar.ops import backends, native

TRITON = util.find_spec("triton") is not None
PLAIN = "reference (plain torch): "


@pytest.fixture
def machine(monkeypatch):
    """As if the backends were chosen with these wishes, on a machine with or without triton."""

    def make(wish="", triton=True, interpreted=False):
        monkeypatch.setattr(native, "WISH", wish)
        monkeypatch.setattr(native, "available", wish != "reference")
        monkeypatch.setattr(native, "facts", lambda: {"instruction_set": "avx2"})
        monkeypatch.setattr(backends, "INTERPRETED", interpreted)
        monkeypatch.setattr(backends.util, "find_spec", lambda name: object() if triton else None)
        monkeypatch.setattr(backends.metadata, "version", lambda name: "9.9")
        monkeypatch.setattr(backends, "BACKENDS", backends._chosen())
        return [backends.of(device).name for device in ("cpu", "cuda", "mps")]

    return make


@pytest.mark.parametrize(
    ("wish", "cpu", "cuda"),
    [
        ("", "native", "triton"),
        ("native", "native", "reference"),
        ("triton", "native", "triton"),
        ("reference", "reference", "reference"),
    ],
)
def test_wishes(wish, cpu, cuda, machine):
    """The table of docs/gpu.md."""
    assert machine(wish) == [cpu, cuda, "reference"]


def test_without_triton_nothing_changes(machine):
    assert machine(triton=False) == ["native", "reference", "reference"]
    assert backends.describe("cuda") == PLAIN + "triton is not installed"
    with pytest.raises(ValueError, match="there is no triton here: pip install triton"):
        machine("triton", triton=False)


def test_interpreted_kernels_run_on_the_cpu_where_they_are_asked_for(machine):
    assert machine("triton", interpreted=True) == ["triton", "reference", "reference"]
    assert backends.describe("cpu") == "triton 9.9, interpreted: for tests"
    assert machine(interpreted=True)[0] == "native"
    assert "with TRITON_INTERPRET=1 kernels run on the CPU alone" in backends.describe("cuda")


def test_each_device_is_described_with_the_reason(machine):
    machine()
    assert backends.describe("cuda") == "triton 9.9"
    assert backends.describe("mps") == PLAIN + "there are no kernels for it"
    machine("native")
    assert backends.describe("cuda") == PLAIN + "POINTVAR_BACKEND=native speaks of the CPU"
    machine("reference")
    assert backends.describe("cpu") == backends.describe("cuda") == PLAIN + "POINTVAR_BACKEND asks for it"


def test_devices_that_are_here_are_told(machine, monkeypatch):
    machine()
    monkeypatch.setattr(backends, "_is_here", lambda name: False)
    assert list(pv.native_info()["devices"]) == ["cpu"]
    assert doctor._gpu() == doctor.Finding(doctor.GOOD, "none here; on a GPU: triton 9.9")
    monkeypatch.setattr(backends, "_is_here", lambda name: name == "cuda")
    assert pv.native_info()["devices"]["cuda"] == "triton 9.9"
    assert doctor._gpu() == doctor.Finding(doctor.GOOD, "cuda: triton 9.9")
    machine(triton=False)
    finding = doctor._gpu()
    assert finding.state == doctor.ADVICE
    assert "pip install triton" in finding.advice


@pytest.mark.skipif(not TRITON, reason="triton is not installed")
def test_triton_is_imported_when_a_kernel_starts_and_not_before():
    code = """
import sys, torch, pointvar as pv
cloud = pv.PointCloud(torch.rand(30, 3))
pv.KPConvN(2, 2)(torch.rand(30, 2), pv.ball_query(cloud, cloud, 0.3))
print("pointvar.ops.triton_kernels" in sys.modules, "triton" in sys.modules)
"""
    unset = ("POINTVAR_BACKEND", "TRITON_INTERPRET")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr
