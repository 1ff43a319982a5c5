"""The page in a real browser: it loads in silence, clouds turn, tables sort, curves speak, light and dark."""

import math

import pytest
import torch
from test_page import PAYLOADS, everything

from pointvar.report import Report

CANVAS = "figure.cloud canvas"
RESTS = (
    "() => new Promise((r) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(r)), 180))"
)
COUNT = """(canvas) => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
    return count;
}"""
inf, nan = math.inf, math.nan


def picture(window):
    window.evaluate(RESTS)
    return window.locator(CANVAS).evaluate("(canvas) => canvas.toDataURL()")


def filled(window, selector=CANVAS):
    """How many pixels show a point."""
    window.evaluate(RESTS)
    return window.locator(selector).evaluate(COUNT)


@pytest.fixture
def desk(open_page, page):
    """The page on a desk, with its cloud in view, and the middle of that."""
    window = open_page(page)
    window.locator(CANVAS).evaluate("(c) => c.scrollIntoView({block: 'center'})")
    box = window.locator(CANVAS).bounding_box()
    window.middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    return window


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_loads_and_fits(open_page, page, width, height, scheme):
    window = open_page(page, width, height, color_scheme=scheme)
    for selector in ("table", ".chart svg", CANVAS):
        part = window.locator(selector).first
        part.scroll_into_view_if_needed()
        assert part.bounding_box()["height"] > 40
    # Wide tables scroll within themselves, so that the page does not.
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    assert filled(window) > 1000
    color = "getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"
    dark = scheme == "dark"
    assert (int(window.evaluate(color)) < 60) == dark
    window.click("#theme")
    assert (int(window.evaluate(color)) < 60) != dark
    # It is remembered. The browser stores it beside the page: one that loads at once can miss it.
    for _ in range(5):
        window.wait_for_timeout(100)
        window.reload()
        if remembered := (int(window.evaluate(color)) < 60) != dark:
            break
    assert remembered


def test_a_drag_turns_the_cloud_and_a_double_click_turns_it_back(desk):
    before = picture(desk)
    x, y = desk.middle
    desk.mouse.move(x, y)
    desk.mouse.down()
    desk.mouse.move(x + 120, y + 30, steps=3)
    desk.mouse.up()
    assert picture(desk) != before
    desk.mouse.dblclick(x, y)
    assert picture(desk) == before
    for key in ("ArrowLeft", "ArrowUp", "+"):
        desk.locator(CANVAS).press(key)
        assert picture(desk) != before
        desk.locator(CANVAS).press("0")
        assert picture(desk) == before


def test_the_wheel_scrolls_the_page_until_the_cloud_was_touched(desk):
    before, place = filled(desk), desk.evaluate("scrollY")
    desk.mouse.move(*desk.middle)
    desk.mouse.wheel(0, -40)
    assert filled(desk) == before
    assert desk.evaluate("scrollY") < place
    place = desk.evaluate("scrollY")
    desk.mouse.click(*desk.middle)
    desk.mouse.wheel(0, -40)
    assert filled(desk) > before
    assert desk.evaluate("scrollY") == place


def test_two_fingers_zoom(open_page, page):
    window = open_page(page, 390, 844, has_touch=True)
    window.locator(CANVAS).evaluate("(c) => c.scrollIntoView({block: 'center'})")
    before, box = filled(window), window.locator(CANVAS).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    developer = window.context.new_cdp_session(window)
    for kind, gap in (("touchStart", 30), ("touchMove", 45), ("touchMove", 60)):
        fingers = [{"x": x - gap, "y": y, "id": 0}, {"x": x + gap, "y": y, "id": 1}]
        developer.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    developer.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert filled(window) > 1.2 * before


def test_colours_hidden_classes_and_the_point_under_the_mouse(desk):
    modes = desk.locator(".modes button")
    assert modes.all_text_contents() == ["labels", "predictions", "errors", "colour"]
    pictures = set()
    for number, word in enumerate(("ceiling", "floor", "wrong", "")):
        modes.nth(number).click()
        pictures.add(picture(desk))
        assert word in (desk.locator(".cloud .legend:not([hidden])").text_content())
    assert len(pictures) == 4
    modes.first.click()
    before = filled(desk)
    desk.locator(".cloud .legend:not([hidden]) button", has_text="ceiling").click()
    assert filled(desk) != before
    assert desk.locator(".cloud .legend [aria-pressed=false]").count() == 1
    desk.locator(CANVAS).hover()
    tip = desk.locator(".stage .tip")
    assert tip.is_visible()
    assert all(word in tip.text_content() for word in ("labels", "predictions", "errors"))


def test_each_point_is_where_it_should_be(open_page, tmp_path):
    """Of three points, red, green and blue along the axes, each is drawn on its own side."""
    report = Report("Axes")
    points = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]])
    report.cloud(points, colors=torch.eye(3))
    window = open_page(report.save(tmp_path / "axes.html"))
    window.evaluate(RESTS)
    (red_x, red_y), (green_x, green_y), (blue_x, blue_y) = window.locator(CANVAS).evaluate(
        """(canvas) => {
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const sums = [[0, 0, 0], [0, 0, 0], [0, 0, 0]];
            for (let i = 0; i < data.length; i += 4) for (let c = 0; c < 3; c++) if (data[i + c] > 60) {
                const at = i / 4;
                sums[c][0] += at % canvas.width; sums[c][1] += Math.floor(at / canvas.width); sums[c][2] += 1;
            }
            return sums.map(([x, y, n]) => [x / n / canvas.width, y / n / canvas.height]);
        }"""
    )
    assert blue_x < green_x < red_x
    assert green_y < min(red_y, blue_y)


def test_many_points_turn_and_a_page_holds_several_clouds(open_page, tmp_path):
    generator = torch.Generator().manual_seed(0)
    report = Report("Many")
    for number in (200_000, 500):
        report.cloud(torch.rand(number, 3, generator=generator), title=str(number))
    window = open_page(report.save(tmp_path / "many.html"))
    canvases = window.locator(CANVAS)
    canvases.nth(1).scroll_into_view_if_needed()
    window.evaluate(RESTS)
    assert canvases.nth(1).evaluate(COUNT) > 500
    before = canvases.first.evaluate(COUNT)
    canvases.first.press("+")
    window.evaluate(RESTS)
    assert canvases.first.evaluate(COUNT) > before


def test_tables_sort_also_those_of_markdown(open_page, tmp_path):
    report = Report("Tables")
    report.table(
        [{"name": n, "value": v} for n, v in (("b10", 1e-9), ("a", None), ("b9", 20000.0), ("c", -3.0))]
    )
    report.markdown(
        "| name | value |\n|---|---:|\n| x | 9.5 ± 0.3 |\n| y | - |\n| z | 1,200 |\n| w | −11 |\n"
    )
    window = open_page(report.save(tmp_path / "tables.html"))
    expected = [
        (["b9", "b10", "c", "a"], ["a", "b9", "b10", "c"]),
        (["z", "x", "w", "y"], ["w", "x", "y", "z"]),
    ]
    for table, (by_value, by_name) in zip(window.locator("table").all(), expected, strict=True):
        first, names = table.locator("td:first-child"), table.locator("th button")
        names.nth(1).click()
        assert first.all_text_contents() == by_value
        names.nth(1).click()
        assert first.all_text_contents() == [*by_value[:3][::-1], by_value[3]]  # what is empty stays last
        names.nth(0).click()
        assert first.all_text_contents() == by_name
        assert table.locator("th[aria-sort=ascending]").count() == 1


class TestCurves:
    @pytest.fixture
    def drawn(self, open_page, tmp_path):
        def draw(*charts):
            """Per chart: pieces of lines as places in 0..1000, and labels of both axes."""
            report = Report("Curves")
            for series, options in charts:
                report.curves(series, **options)
            window = open_page(report.save(tmp_path / "curves.html"))
            found = window.locator(".plot").evaluate_all(
                """(plots) => plots.map((plot) => [
                    [...plot.querySelectorAll("g")].map((g) => g.lastChild.getAttribute("d")),
                    ...[".x", ".y"].map((s) => [...plot.querySelectorAll(s)].map((e) => e.innerText)),
                    plot.querySelectorAll(".band").length])"""
            )
            return [([_pieces(path) for path in paths], *rest) for paths, *rest in found]

        return draw

    def test_lines_go_through_their_values(self, drawn):
        charts = drawn(
            ({"a": [0.0, 1.0, 4.0]}, {"x": [0, 5, 10], "limits": (0, 5)}),
            ({"a": [1e-2, 1.0, 1e2]}, {"log": True, "limits": (1e-2, 1e2)}),
            ({"a": [0.0, None, 2.0, nan, 4.0]}, {"x": [0, 1, 2, 3, 4], "limits": (0, 4)}),
            ({"a": [1.0, inf, 0.0]}, {"log": True, "limits": (0.1, 10)}),
            ({"a": [1.0, inf, 0.0]}, {"limits": (0, 1)}),
            ({"a": [[1.0, 1.0], [100.0, 1.0]]}, {"log": True, "limits": (1, 100)}),
            ({"a": [[1.0, 1.0], [100.0, 1.0]]}, {"limits": (1, 100)}),
        )
        lines = [paths[0] for paths, *_ in charts]
        assert lines[0] == [[(0, 1000), (500, 800), (1000, 200)]]
        assert lines[1] == [[(0, 1000), (500, 500), (1000, 0)]]
        assert charts[1][2] == ["0.01", "0.1", "1", "10", "100"]
        assert lines[2] == [[(0, 1000), (500, 500)], [(1000, 0)]]  # passed over, and broken
        assert lines[3] == [[(0, 500), (500, 0), (1000, 1000)]]  # at the edge
        assert lines[4] == [[(0, 0)], [(1000, 1000)]]
        assert lines[5] == [[(0, 500), (1000, 1000)]]  # the geometric mean
        assert lines[6] == [[(0, 500), (1000, 1000)]]
        assert [bands for *_, bands in charts] == [0, 0, 0, 0, 0, 1, 1]

    def test_axes_have_some_round_labels(self, drawn):
        values = [[1, 2, 3], [1e-4, 90.0], [5, 5], [-3, 3], [0], [1e9, 3e9], [0.97, 0.99], list(range(25))]
        empty = [{}, {"a": []}, {"a": [None, None]}, {"a": [nan]}]
        charts = drawn(
            *[({"a": v}, {"log": log}) for log in (False, True) for v in values],
            ({"a": [1e-8, 1.0]}, {"log": None}),
            *[(series, {}) for series in empty],
        )
        for _, across, up, _ in charts[: 2 * len(values)]:
            assert 1 <= len(across) == len(set(across)) <= 9
            assert 2 <= len(up) == len(set(up)) <= 9
        assert charts[0][1] == ["1", "2", "3"]
        assert charts[7][1] == ["1", "5", "10", "15", "20", "25"]
        assert "10⁻⁶" in charts[2 * len(values)][2]
        assert [paths for paths, *_ in charts[-4:]] == [[], [[]], [[]], [[]]]

    def test_values_are_told_and_a_legend_hides_curves_of_all_its_panels(self, desk):
        panels = desk.locator(".panels").first
        plot, legend = panels.locator(".plot").first, panels.locator(".legend button")
        plot.hover()
        tip = plot.locator(".tip")
        assert tip.text_content().startswith("epoch ")
        assert "direct" in tip.text_content()
        legend.first.click()
        assert panels.locator("g[data-curve='0']:visible").count() == 0
        assert panels.locator("g[data-curve='1']:visible").count() == panels.locator("svg").count() > 1
        plot.hover()
        assert "direct" not in tip.text_content()
        legend.first.click()
        assert panels.locator("g[data-curve='0']:visible").count() > 1


def _pieces(path):
    pieces = path.replace("h0", "").split("M")[1:]
    return [[tuple(map(float, point.split())) for point in piece.split("L")] for piece in pieces]


@pytest.mark.parametrize(("width", "beside"), [(1500, True), (900, False)], ids=["wide", "narrow"])
def test_long_contents_stand_at_the_side_where_there_is_room(open_page, tmp_path, width, beside):
    report = Report("many")
    for number in range(40):
        report.section(f"section {number}")
        report.text("some words\n\n" * 12)
    window = open_page(report.save(tmp_path / "many.html"), width)
    contents, text = (window.locator(name).bounding_box() for name in ("nav", "main"))
    assert (contents["x"] + contents["width"] <= text["x"]) is beside
    assert (contents["y"] + contents["height"] <= text["y"]) is not beside
    window.locator("#s38").evaluate("(heading) => heading.scrollIntoView()")
    window.locator("nav a.here", has_text="section 37").wait_for()


def test_hostile_text_does_nothing(open_page, tmp_path):
    report = Report("hostile")
    for payload in PAYLOADS:
        everything(report, payload, tmp_path)
    window = open_page(report.save(tmp_path / "hostile.html"))
    for plot in window.locator(".plot").all()[:3]:
        plot.hover()
    assert not window.evaluate("'hacked' in window")
    assert (
        window.locator("main img:not(.image img), main iframe, main a, main [onerror], main [onload]").count()
        == 0
    )


@pytest.mark.parametrize("width", [1600, 390], ids=["desk", "phone"])
def test_versions_of_a_cloud_turn_and_change_together(open_page, tmp_path, width):
    points = torch.rand(300, 3, generator=torch.Generator().manual_seed(0))
    labels = (points[:, 2] > 0.5).long()
    report = Report("Versions")
    report.versions(points, labels, {"good": labels, "bad": 1 - labels}, ["low", "high"], {"bad": "0 %"})
    window = open_page(report.save(tmp_path / "versions.html"), width, 1100)
    assert window.evaluate("document.documentElement.scrollWidth") <= width

    def pictures():
        window.evaluate(RESTS)
        return window.locator(CANVAS).evaluate_all("all => all.map(canvas => canvas.toDataURL())")

    start = pictures()
    assert start[0] == start[1] != start[2]  # the same view, in other colours
    middle = window.locator(CANVAS).nth(1).bounding_box()
    x, y = middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2
    window.mouse.move(x, y)
    window.mouse.down()
    window.mouse.move(x + 60, y + 10, steps=3)
    window.mouse.up()
    turned = pictures()
    assert all(now != before for now, before in zip(turned, start, strict=True))
    assert turned[0] == turned[1]
    window.mouse.dblclick(x, y)
    assert pictures() == start
    legend = ".versions .legend:not([hidden]) button:visible"
    assert window.locator(legend).all_text_contents() == ["low", "high", "wrong"]
    window.locator(".versions .modes button", has_text="classes").click()
    assert window.locator(legend).all_text_contents() == ["low", "high"]
    shown = pictures()
    assert all(now != before for now, before in zip(shown, start, strict=True))
    window.locator(legend, has_text="low").click()
    assert all(now != before for now, before in zip(pictures(), shown, strict=True))
    window.locator(legend, has_text="low").click()
    assert pictures() == shown


def test_a_map_is_seen_from_above_and_shows_errors(open_page, tmp_path):
    """North is up, east is right, and what is wrong hides what is right above it."""
    east, north = torch.tensor([9.0, 0, 0]), torch.tensor([0, 9.0, 0])
    square = torch.cartesian_prod(*[torch.linspace(0, 1, 20)] * 2)
    flat = torch.nn.functional.pad(square, (0, 1))
    roof = flat + torch.tensor([0, 0, 5.0])
    points = torch.cat([flat, roof, flat + east, flat + north, flat + east + north])
    labels = torch.zeros(len(points), dtype=torch.int64)
    predictions = labels.clone()
    predictions[:400] = 1  # below the roof
    report = Report("Map")
    report.map(points, labels, predictions, ["a", "b"])
    window = open_page(report.save(tmp_path / "map.html"))
    window.evaluate(RESTS)
    assert window.locator(".modes [aria-pressed=true]").inner_text() == "Errors"
    red, all_points = window.locator(CANVAS).evaluate(
        """(canvas) => {
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const corners = [[0, 0, 0, 0], [0, 0, 0, 0]];
            for (let i = 0; i < data.length; i += 4) if (data[i + 3]) {
                const at = i / 4, x = at % canvas.width, y = Math.floor(at / canvas.width);
                const corner = (x > canvas.width / 2) + 2 * (y > canvas.height / 2);
                corners[0][corner] += data[i] > 1.5 * data[i + 2];
                corners[1][corner] += 1;
            }
            return corners;
        }"""
    )
    assert min(all_points) > 100
    assert red[2] > 0.9 * all_points[2]  # south-west: bottom left
    assert red[0] == red[1] == red[3] == 0
