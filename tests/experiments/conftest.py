"""The experiments lie outside of the package, at the top of the repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder in which all files are there whose names decide; they are not read."""
    path = tmp_path_factory.mktemp("data")
    for name in (
        "modelnet10_small.npz",
        "modelnet40_small.npz",
        "modelnet40_256.npz",
        "ahn3_delft.npz",
    ):
        (path / name).touch()
    return path
