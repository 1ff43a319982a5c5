"""Results are made once for all tests of the report."""

from pathlib import Path

import pytest
from report_demo import write_all

from pointvar.report import gather


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_all(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def page(results: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gather(results, "Shapes <& more>").save(tmp_path_factory.mktemp("page") / "report.html")
