"""The page in a real browser: it loads in silence, clouds turn, tables sort, curves speak, light and dark."""

import pytest
import torch
from browser import CHROMIUM, DRIVER, browser

from pointvar.data import Shapes
from pointvar.report import Report

pytestmark = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="needs Debian's chromium and chromium-driver"
)

CANVAS = "figure.cloud canvas"
COLORS = """
    const canvas = document.querySelector(arguments[0]);
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const colors = new Map();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3]) {
        const name = [data[i], data[i + 1], data[i + 2]].map((v) => v >> 5).join();
        colors.set(name, (colors.get(name) ?? 0) + 1);
    }
    return Object.fromEntries(colors);
"""


@pytest.fixture(scope="module")
def window():
    with browser() as opened:
        yield opened


@pytest.fixture
def desk(window, page):
    """The page, freshly loaded on a desk, with its cloud in view."""
    window.open(page)
    window.run(
        "localStorage.clear(); document.querySelector('figure.cloud').scrollIntoView({block: 'center'})"
    )
    window.settle()
    window.complaints()
    return window


def picture(window):
    return window.run("return document.querySelector(arguments[0]).toDataURL()", CANVAS)


def filled(window):
    """Pixels that show a point, and how many colours they have."""
    colors = window.run(COLORS, CANVAS)
    return sum(colors.values()), len(colors)


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desk", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_loads_in_silence_and_fits(window, page, width, height, dark):
    window.complaints()
    window.open(page, width, height, dark)
    for selector in ("table", ".chart svg path", CANVAS):
        window.show(selector)
        box = window.run(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [box.width, box.height]",
            selector,
        )
        assert max(box) > 40
    assert window.complaints() == []
    loaded = window.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []
    # Wide tables scroll within themselves, so that the page does not.
    assert window.run("return document.documentElement.scrollWidth") <= width
    assert filled(window)[0] > 1000


def test_a_drag_turns_the_cloud_and_a_double_click_turns_it_back(desk):
    before = picture(desk)
    desk.point(CANVAS, (0, 0), (60, 10), (120, 30), press=True)
    turned = picture(desk)
    assert turned != before
    pixels, colors = filled(desk)
    assert pixels > 1000
    assert colors > 5
    desk.run("document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('dblclick'))", CANVAS)
    desk.settle()
    assert picture(desk) == before
    assert desk.complaints() == []


def test_the_wheel_zooms_a_cloud_that_was_touched_and_scrolls_the_page_before(desk):
    before, _ = filled(desk)
    place = desk.run("return scrollY")
    desk.wheel(CANVAS, -40)
    assert desk.run("return scrollY") < place
    assert filled(desk)[0] == before
    desk.point(CANVAS, (0, 0), press=True)
    place = desk.run("return scrollY")
    desk.wheel(CANVAS, -40)
    assert desk.run("return scrollY") == place
    assert filled(desk)[0] > before


def test_two_fingers_zoom(window, page):
    window.open(page, 390, 844)
    window.show("figure.cloud")
    before, _ = filled(window)
    x, y = window.run(
        "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]",
        CANVAS,
    )
    for kind, gap in (("touchStart", 30), ("touchMove", 45), ("touchMove", 60)):
        fingers = [{"x": x - gap, "y": y, "id": 0}, {"x": x + gap, "y": y, "id": 1}]
        window.developer("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)
    window.developer("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    window.settle()
    assert filled(window)[0] > 1.2 * before


@pytest.mark.parametrize("key", ["ArrowLeft", "ArrowUp", "+"])
def test_keys_turn_and_zoom_it_too(desk, key):
    before = picture(desk)
    event = "new KeyboardEvent('keydown', {key: arguments[1]})"
    press = f"document.querySelector(arguments[0]).dispatchEvent({event})"
    desk.run(press, CANVAS, key)
    desk.settle()
    assert picture(desk) != before


def test_colours_by_labels_predictions_and_errors(desk):
    names = desk.run("return [...document.querySelectorAll('.modes button')].map((b) => b.textContent)")
    assert names == ["labels", "predictions", "errors", "colour"]
    pictures = set()
    for number, name in enumerate(names, 1):
        desk.click(f".modes button:nth-child({number})")
        desk.settle()
        pictures.add(picture(desk))
        legend = desk.run("return document.querySelector('.cloud .legend').textContent")
        assert {"labels": "ceiling", "predictions": "floor", "errors": "wrong", "colour": ""}[name] in legend
    assert len(pictures) == 4


def test_a_class_can_be_hidden(desk):
    before, _ = filled(desk)
    names = desk.run(
        "return [...document.querySelectorAll('.cloud .legend button')].map((b) => b.firstChild.data)"
    )
    desk.click(f".cloud .legend button:nth-child({names.index('ceiling') + 1})")
    desk.settle()
    assert filled(desk)[0] != before
    assert desk.run("return document.querySelectorAll('.cloud .legend [aria-pressed=false]').length") == 1


def test_the_point_under_the_mouse_is_told(desk):
    desk.point(CANVAS, (3, 3), (0, 0))
    tip = desk.run("const t = document.querySelector('.stage .tip'); return t.hidden ? '' : t.textContent")
    assert "labels" in tip
    assert "predictions" in tip


def test_one_point_is_where_it_should_be(window, tmp_path):
    """Of three points, red, green and blue along the axes, each is drawn on its own side."""
    report = Report("Axes")
    points = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]])
    report.cloud(points, colors=torch.eye(3))
    window.open(report.save(tmp_path / "axes.html"))
    centres = window.run(
        """
        const canvas = document.querySelector("canvas"), sums = [[0, 0, 0], [0, 0, 0], [0, 0, 0]];
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4) for (let c = 0; c < 3; c++) if (data[i + c] > 60) {
            const at = i / 4;
            sums[c][0] += at % canvas.width; sums[c][1] += Math.floor(at / canvas.width); sums[c][2] += 1;
        }
        return sums.map(([x, y, n]) => [x / n / canvas.width, y / n / canvas.height]);
        """
    )
    (red_x, red_y), (green_x, green_y), (blue_x, blue_y) = centres
    assert blue_x < green_x < red_x
    assert green_y < min(red_y, blue_y)


def test_many_points_are_drawn(window, tmp_path):
    report = Report("Many")
    report.cloud(torch.rand(200_000, 3, generator=torch.Generator().manual_seed(0)))
    window.complaints()
    window.open(report.save(tmp_path / "many.html"))
    before = picture(window)
    window.point(CANVAS, (0, 0), (40, 0), (80, 0), press=True)
    assert picture(window) != before
    assert window.complaints() == []


def test_shapes_with_made_up_predictions(window, tmp_path):
    report = Report("Shapes")
    shapes = Shapes(4)
    for index in range(4):
        sample = shapes[index]
        predictions = (sample.points[:, 2] > 0).long()
        report.cloud(
            sample.points, torch.zeros(1024), predictions, classes=["low", "high"], title=sample.name
        )
    window.open(report.save(tmp_path / "shapes.html"))
    for index in range(1, 5):
        canvas = f"figure.cloud:nth-of-type({index}) canvas"
        window.show(canvas)
        assert sum(window.run(COLORS, canvas).values()) > 500
    assert window.complaints() == []


def test_curves_tell_their_values(desk):
    desk.point(".chart .plot", (-3, 0), (0, 0))
    tip = desk.run("const t = document.querySelector('.chart .tip'); return t.hidden ? '' : t.textContent")
    assert tip.startswith("epoch ")
    assert "direct" in tip


def test_a_legend_hides_curves_of_all_its_panels(desk):
    desk.click(".panels > .legend button:first-child")
    hidden = "return document.querySelector('.panels').querySelectorAll('svg [display=none]').length"
    panels = desk.run("return document.querySelector('.panels').querySelectorAll('svg').length")
    assert desk.run(hidden) == panels > 1
    desk.click(".panels > .legend button:first-child")
    assert desk.run(hidden) == 0


def test_tables_sort(desk):
    column = """
        const tables = [...document.querySelectorAll("figure.table")];
        const table = tables.find((figure) => figure.textContent.includes("by class"));
        if (arguments[0]) table.querySelector("th:nth-child(2) button").click();
        return [...table.querySelectorAll("td:nth-child(2)")].map((cell) => cell.textContent);
    """
    first = desk.run(column, False)
    assert first[-1] == "–"
    down, up = desk.run(column, True), desk.run(column, True)
    assert down == [*sorted(first[:-1], reverse=True), "–"]
    assert up == [*sorted(first[:-1]), "–"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(window, page, dark):
    window.open(page, dark=dark)
    window.run("localStorage.clear()")
    window.open(page, dark=dark)
    brightness = "return parseInt(getComputedStyle(document.body).backgroundColor.slice(4))"
    before = window.run(brightness)
    assert (before < 60) == dark
    window.click("#theme")
    assert (window.run(brightness) < 60) != dark
    window.open(page, dark=dark)  # it is remembered
    assert (window.run(brightness) < 60) != dark
    window.click("#theme")
    assert window.run(brightness) == before


@pytest.mark.parametrize(("width", "beside"), [(1500, True), (900, False)], ids=["wide", "narrow"])
def test_long_contents_stand_at_the_side_where_there_is_room(window, tmp_path, width, beside):
    report = Report("many")
    for number in range(40):
        report.section(f"section {number}")
        report.text("some words\n\n" * 12)
    window.open(report.save(tmp_path / "many.html"), width)
    edges = "return ['nav', 'main'].map((s) => document.querySelector(s).getBoundingClientRect())"
    contents, text = window.run(edges)
    assert (contents["right"] <= text["left"]) is beside
    assert (contents["bottom"] <= text["top"]) is not beside
    window.run("document.querySelector('#s38').scrollIntoView()")
    window.settle()
    here = "return document.querySelector('nav a.here').textContent"
    assert window.run(here) == "section 37"
