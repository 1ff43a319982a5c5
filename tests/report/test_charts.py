"""Curves: where lines go, what axes show, what is said of values that have no place."""

import json
import re

import numpy as np
import pytest

from pointvar.report.charts import chart, plain, sparkline

inf, nan = float("inf"), float("nan")


def lines(html):
    """The points of each line (not of bands), as pieces between gaps."""
    paths = re.findall(r'<path d="([^"]*)"', html)
    return [
        [
            [tuple(map(float, p.replace("h0", "").split())) for p in piece.split("L")]
            for piece in path.split("M")[1:]
        ]
        for path in paths
    ]


def labels(html, axis):
    return re.findall(rf'<span class="{axis}"[^>]*>([^<]*)</span>', html)


def test_a_line_goes_through_its_values():
    html = chart({"a": [0.0, 1.0, 4.0]}, x=[0, 5, 10], limits=(0, 5))
    assert lines(html) == [[[(0, 1000), (500, 800), (1000, 200)]]]


def test_a_logarithmic_line_goes_through_its_values():
    html = chart({"a": [1e-2, 1.0, 1e2]}, log=True, limits=(1e-2, 1e2))
    assert lines(html) == [[[(0, 1000), (500, 500), (1000, 0)]]]
    assert labels(html, "y") == ["0.01", "0.1", "1", "10", "100"]


def test_missing_values_are_passed_over_and_nan_breaks_the_line():
    html = chart({"a": [0.0, None, 2.0, nan, 4.0]}, x=[0, 1, 2, 3, 4], limits=(0, 4))
    assert lines(html) == [[[(0, 1000), (500, 500)], [(1000, 0)]]]


@pytest.mark.parametrize("log", [False, True])
def test_values_without_a_place(log):
    html = chart({"a": [1.0, inf, 0.0, nan, 1e300, 2.0]}, log=log)
    data = json.loads(re.search(r"<script[^>]*>(.*)</script>", html)[1])
    assert data["curves"][0]["values"] == [1.0, "∞", 0.0, "NaN", 1e300, 2.0]
    assert all(0 <= value <= 1000 for piece in lines(html)[0] for point in piece for value in point)


@pytest.mark.parametrize(("log", "middle"), [(False, 50.5), (True, 10.0)])
def test_draws_become_their_mean_and_range(log, middle):
    html = chart({"a": [[1.0, 1.0, 5.0], [100.0, 1.0, 5.0]]}, log=log)
    values = json.loads(re.search(r"<script[^>]*>(.*)</script>", html)[1])["curves"][0]["values"]
    assert values == pytest.approx([middle, 1.0, 5.0])
    assert html.count('class="band"') == 1


@pytest.mark.parametrize(
    "values", [[1, 2, 3], [0.0001, 90.0], [5, 5], [-3, 3], [0], [1e9, 3e9], [0.97, 0.99]]
)
@pytest.mark.parametrize("log", [False, True])
def test_axes_have_some_labels(values, log):
    for axis in "xy":
        found = labels(chart({"a": values}, log=log), axis)
        assert (2 if axis == "y" else 1) <= len(found) <= 9
        assert len(set(found)) == len(found)


def test_counts_have_whole_labels_and_begin_at_the_beginning():
    assert labels(chart({"a": [1, 2, 3]}), "x") == ["1", "2", "3"]
    assert labels(chart({"a": list(range(25))}), "x") == ["1", "5", "10", "15", "20", "25"]


def test_empty_and_unmeasured_curves():
    for series in ({}, {"a": []}, {"a": [None, None]}, {"a": [nan]}):
        assert lines(chart(series)) == [[]] * len(series)


def test_an_axis_becomes_logarithmic_when_it_suits():
    assert "10⁻" in str(labels(chart({"a": [1e-8, 1.0]}, log=None), "y"))
    assert "10⁻" not in str(labels(chart({"a": [0.0, 1.0]}, log=None), "y"))


def test_many_curves_can_be_told_apart():
    styles = re.findall(r'<g class="([^"]*)"', chart({str(i): [1, 2] for i in range(20)}))
    assert len(set(styles)) == 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[
            (None, "–"),
            (3, "3"),
            (1234567, "1,234,567"),
            (0.123456, "0.1235"),
            (12345.6, "12,346"),
            (0.0, "0"),
        ],
        *[(-1.5e-7, "−1.5×10⁻⁷"), (2.5e30, "2.5×10³⁰"), (nan, "NaN"), (inf, "∞"), (-inf, "−∞"), (-4, "−4")],
    ],
)
def test_numbers_as_people_write_them(value, text):
    assert plain(value) == text


def test_a_small_curve_in_a_cell():
    assert sparkline([1.0, None, 3.0]).count("<path") == 1
    assert sparkline([None, None, 7.0]) == "7"
    assert "<path" in sparkline(np.linspace(0, 1, 5).tolist())
