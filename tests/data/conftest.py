"""Nothing of these tests is kept in the user's own cache folder."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("POINTVAR_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("POINTVAR_CACHE", str(folder))
    return folder


@pytest.fixture
def real_data() -> Path:
    """The folder of real data, which is not part of the project."""
    if not DATA.is_dir():
        pytest.skip(f"there is no real data in {DATA}; set POINTVAR_DATA")
    return DATA
