"""`pointvar doctor`: it says that all is well when it is, and what is wrong when it is not."""

import os
import re
import subprocess
import sys

import pytest
import torch

from pointvar.cli import main
from pointvar.commands import doctor
from pointvar.ops import native, reference_convolve


def test_this_installation_works(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (
        "torch",
        torch.__version__,
        "native core",
        "threads",
        "OpenMP",
        "convolution",
        "extra train",
        "extra lidar",
    ):
        assert part in text
    assert "FAIL" not in text
    assert "all works" in text


def test_a_wrong_convolution_is_found(monkeypatch, capsys):
    right = reference_convolve.convolve

    def wrong(*arguments):
        out, norm = right(*arguments)
        return out + 0.01 * out.abs().max(), norm

    monkeypatch.setattr("pointvar.ops.reference_convolve.convolve", wrong)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "FAIL  convolution" in text
    assert "-> try POINTVAR_ISA=baseline" in text


def test_a_check_that_breaks_does_not_end_the_examination(monkeypatch, capsys):
    monkeypatch.setitem(doctor.CHECKS, "threads", lambda: 1 // 0)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert re.search("^FAIL  threads +ZeroDivisionError", text, re.MULTILINE)
    assert "ok    convolution" in text
    assert "1 failed" in text


def test_a_missing_extra_is_named_with_its_cure(monkeypatch, capsys):
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: ['no-such-package>=1; extra == "train"', "torch>=2.6"]
    )
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "missing: no-such-package" in text
    assert "-> pip install 'pointvar[train]'" in text


@pytest.mark.skipif(not native.available, reason="the native kernels are not in use")
def test_threads_that_are_left_idle(threads, monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 64)
    torch.set_num_threads(1)
    finding = doctor._threads()
    assert finding.state == doctor.ADVICE
    assert "set_num_threads(64)" in finding.advice


def test_plain_torch_is_told():
    result = subprocess.run(
        [sys.executable, "-m", "pointvar.cli", "doctor"],
        env={**os.environ, "POINTVAR_BACKEND": "reference"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "unset it for the fast kernels" in result.stdout
    assert "plain torch against definition: equal" in result.stdout
