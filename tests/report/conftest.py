"""Results are made once for all tests of the report, and one browser shows them."""

import shutil
from pathlib import Path

import pytest
from report_demo import write_all

from pointvar.report import gather

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb"]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_all(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def page(results: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gather(results, "Shapes <& more>").save(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for path in map(shutil.which, names) if path), None)
    if chromium is None:
        pytest.skip("needs Chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens a file in a fresh profile; what it writes to the console or asks of the network is an error."""
    contexts, complaints = [], []

    def opened(path, width=1280, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        window = context.new_page()
        window.on("console", lambda message: complaints.append(message.text))
        window.on("pageerror", lambda error: complaints.append(str(error)))
        window.on("request", lambda r: r.url.startswith(("file:", "data:")) or complaints.append(r.url))
        window.goto(path.resolve().as_uri())
        return window

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
