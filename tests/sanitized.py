"""The native module of a sanitizer build, in place of the installed one.

POINTVAR_SANITIZED=FILE pytest -p sanitized
"""

import importlib.util
import os
import sys

import torch  # noqa: F401  (its OpenMP runtime comes first)

FILE = os.environ.get("POINTVAR_SANITIZED")
if FILE:
    os.environ["POINTVAR_ISA"] = "baseline"
    spec = importlib.util.spec_from_file_location("pointvar._native_baseline", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
