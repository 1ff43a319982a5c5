"""The page as text: every part is there, what is written stays text, and nothing is asked of the network."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from pointvar.report import Report

PAYLOADS = [
    "</script><script>window.hacked = 1</script>",
    "</script><img src=x onerror=window.hacked=1>&\"'",
    "<svg/onload=window.hacked=1>",
    '" onmouseover="window.hacked=1" x="',
    "' onfocus='window.hacked=1' autofocus='",
    "<!--<script>window.hacked=1</script>",
    "</title></style></textarea><script>window.hacked=1</script>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "javascript:window.hacked=1",
    "[link](javascript:window.hacked=1) ![x](x onerror=window.hacked=1) <javascript:window.hacked=1>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "red; background: url(https://example.org/x)",
    "</figure></main><base href=https://example.org/>",
    "\u2028<math><mtext><img src onerror=window.hacked=1></mtext></math>",
]
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Elements with their attributes, and the visible text; checks that they are nested properly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data: list = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open[-1:] == ["script"] and self.elements[-1][1].get("type") == "application/json":
            self.data.append(json.loads(text))
        elif self.open[-1:] not in (["script"], ["style"]):
            self.words.append(text)

    def count(self, tag: str, name: str | None = None) -> int:
        return sum(
            t == tag and (name is None or name in (a.get("class") or "").split()) for t, a in self.elements
        )


def read(report: Report) -> Page:
    return Page(report.html())


def test_every_part_is_on_the_page(tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"not looked at")
    report = Report("The title", "and what it is about")
    report.section("First")
    report.text("One.\n\nTwo.")
    report.text("It went wrong.", kind="bad")
    report.facts({"seed": 3, "versions": {"torch": "2.13"}, "fast": True})
    report.code("epochs: 3\n", "Configuration")
    report.section("Second")
    report.heading("Within")
    report.table([{"class": "cone", "iou": 0.5}], title="By class")
    report.curves({"loss": [3.0, 2.0, 1.0]}, title="Loss")
    report.panels({"a": {"x": [1, 2, 3]}, "b": {"x": [1, 2, 3]}})
    report.cloud(torch.rand(5, 3), title="Five")
    report.image(picture, "A picture")
    page = read(report)
    text = " ".join(page.words)
    expected = [
        "The title",
        "and what it is about",
        "First",
        "Second",
        "One.",
        "Two.",
        "It went wrong.",
        "torch",
    ]
    expected += ["epochs: 3", "Within", "By class", "cone", "0.5000", "Loss", "Five", "5 points", "A picture"]
    assert [words for words in expected if words not in text] == []
    assert page.count("h2") == 2
    counts = [page.count("figure", kind) for kind in ("chart", "cloud", "table", "image")]
    assert counts == [3, 1, 1, 1]
    links = {a["href"] for t, a in page.elements if t == "a"}
    assert links == {f"#{a['id']}" for t, a in page.elements if t == "h2"}


def everything(report, text, folder):
    """Every part of a page, with one text wherever text can be."""
    report.section(text)
    report.heading(text)
    report.text(text)
    report.items([text])
    report.facts({text: text})
    report.code(text, text)
    report.markdown(
        f"# {text}\n\n{text}\n\n| {text} |\n|---|\n| {text} |\n\n```{text}\n{text}\n```\n\n- {text}\n"
    )
    report.table([{text: text, "list": [text], "dict": {text: text}}], title=text)
    report.curves({text: [1, 2, 3], "b": [1, 2, 3]}, title=text, xlabel=text, ylabel=text)
    report.panels({text: {text: [1, 2, 3], "b": [1, 2, 3]}})
    report.cloud(np.zeros((2, 3)), [0, 0], classes=[text], values={text: [1, 2]}, title=text)
    report.versions(np.zeros((2, 3)), [0, 0], {text: [0, 0]}, [text], {text: text})
    report.map(np.zeros((2, 3)), [0, 0], [0, 0], [text], title=text)
    report.matrix({text: {text: 1}}, text)
    picture = folder / "picture.svg"
    picture.write_text(text)
    report.image(picture, text)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_is_written_stays_text(tmp_path, payload):
    """The same elements with the same attributes as with a harmless text: nothing is made by the payload."""
    pages = []
    for text in ("words", payload):
        report = Report(text, text)
        everything(report, text, tmp_path)
        everything(report, text, tmp_path)
        pages.append(read(report))
    harmless, hostile = ([(tag, set(found)) for tag, found in page.elements] for page in pages)
    plain = {"p", "h3", "code", "div", "table", "thead", "tbody", "tr", "th", "td", "pre", "ul", "li", "h2"}
    assert {tag for tag, _ in hostile} - {tag for tag, _ in harmless} <= plain
    assert {name for _, names in hostile for name in names} <= {
        name for _, names in harmless for name in names
    }
    for tag in ("script", "img", "a", "style", "meta", "link", "button", "svg"):
        assert [e for e in hostile if e[0] == tag] == [e for e in harmless if e[0] == tag]
    assert pages[1].data[0]["curves"][0]["name"] == payload
    assert pages[1].data[2]["layers"][0]["names"] == [payload]


def test_nothing_is_asked_of_the_network(page):
    text = page.read_text(encoding="utf8")
    parsed = Page(text)
    addresses = [
        a[name] for _, a in parsed.elements for name in ("src", "href", "action", "data") if name in a
    ]
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"https?:|@import|url\(|//cdn|fetch\(|XMLHttpRequest|WebSocket", text)
    policy = next(a["content"] for t, a in parsed.elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_facts_that_are_lists_are_written_out():
    report = Report("page")
    report.facts({"channels": [16, 32, 64], "radii": torch.tensor([0.5, 1.0]), "none": []})
    page = read(report)
    assert "16, 32, 64" in page.words
    assert "0.5, 1" in page.words
    assert page.count("svg") == 0


def test_numbers_of_a_column_are_aligned():
    report = Report("t")
    report.table(
        [
            {"a": 0.91234567, "b": 12, "c": 1e-9, "d": None},
            {"a": -0.5, "b": 1234567, "c": 2.0, "d": float("nan")},
        ]
    )
    cells = re.findall(r"<td([^>]*)>(.*?)</td>", report.html())
    assert [text for _, text in cells] == ["0.9123", "12", "1×10⁻⁹", "–", "−0.5000", "1,234,567", "2", "NaN"]
    assert all('class="n"' in attributes for attributes, _ in cells)
    keys = [re.search('data-key="(.*)"', attributes) for attributes, _ in cells]
    expected = ["0.91234567", "12", "1e-09", None, "-0.5", "1234567", "2.0", "nan"]
    assert [key and key[1] for key in keys] == expected


def test_tables_of_sequences_and_of_tensors():
    report = Report("t")
    report.table([["a", torch.tensor(2)], ["b", np.float32(0.25)]], columns=["name", "value"])
    report.table([{"name": "x", "losses": [3.0, 2.0, 1.5]}], {"name": "Who", "losses": "How it went"})
    page = read(report)
    assert {"2", "0.2500", "Who", "How it went"} <= set(page.words)
    assert page.count("svg", "spark") == 1


MARKDOWN = """# Batches of two
A paragraph of
two lines, with `code`, **weight** and a [link](https://example.org/a) ![picture](https://example.org/b.png).

## ModelNet40

| method | BN | |
| --- | ---: | :--: |
| PCCNN | 9.5 ± 0.3 [28.3] | a \\| b |
| MCConv | −110 | &lt;b> |

- “it holds”: holds,
  on two lines
- -: not run

```sh
# no heading
```
The end, <b>not bold</b>
"""


def test_markdown_becomes_what_it_is():
    report = Report("Batches of two")
    report.markdown(MARKDOWN)
    page = read(report)
    assert [page.count(tag) for tag in ("h3", "table", "tr", "ul", "li", "pre")] == [1, 1, 3, 1, 2, 1]
    assert page.count("a") == page.count("img") == page.count("b") == 0
    text = " ".join(" ".join(page.words).split())
    expected = (
        "two lines, with code , weight and a link picture",
        "9.5 ± 0.3 [28.3]",
        "a | b",
        "<b>",
        "# no heading",
    )
    for words in (*expected, "“it holds”: holds, on two lines", "-: not run", "The end, <b>not bold</b>"):
        assert words in text
    assert text.count("Batches of two") == 2  # the title, not the heading that repeats it
    other = Report("page")
    other.markdown(MARKDOWN)
    assert read(other).count("h3") == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.table([[1, 2]]), "need columns"),
        (lambda r: r.table([[1, 2]], ["a"]), "2 cells for 1"),
        (lambda r: r.text("x", kind="ugly"), "ugly"),
        (lambda r: r.image("x.bmp"), "x.bmp"),
        (lambda r: r.curves({"a": [1, 2, 3]}, x=[1, 2]), "3 values, but x has 2"),
        (lambda r: r.curves({"a": [1, 2]}, x=[1, float("nan")]), "finite"),
        (lambda r: r.curves({"a": [[1, 2], [1]]}), "one length"),
        (lambda r: r.curves({"a": ["1"]}), "'1'"),
        (lambda r: r.curves({"a": [1.0]}, log=True, limits=(0, 1)), "limits"),
        (lambda r: r.cloud(np.zeros((0, 3))), r"\[0, 3\]"),
        (lambda r: r.cloud(np.zeros((4, 4))), r"\[4, 4\]"),
        (lambda r: r.cloud([[float("nan"), 0, 0]]), "1 of 1 points are not finite"),
        (lambda r: r.cloud(np.zeros((4, 3)), labels=[0, 1]), r"labels must be numbers \[4\]"),
        (lambda r: r.cloud(np.zeros((1, 3)), labels=[0.5]), "whole numbers"),
        (lambda r: r.cloud(np.zeros((1, 3)), predictions=[2], classes=["a"]), "class 2"),
        (lambda r: r.cloud(np.zeros((2, 3)), colors=np.zeros((2, 4))), "colors"),
        (lambda r: r.cloud(np.zeros((2, 3)), values={"density": [1, np.inf]}), "density must be finite"),
        (lambda r: r.cloud(np.zeros((2, 3)), max_points=0), "max_points"),
        (
            lambda r: r.versions(np.zeros((2, 3)), [0, 0], {"x": [0]}, ["a"]),
            r"predictions must be numbers \[2\]",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(Report("t"))


class TestCloud:
    def payload(self, *arguments, **options):
        report = Report("t")
        report.cloud(*arguments, **options)
        return read(report).data[0]

    def unpack(self, text, dtype):
        return np.frombuffer(base64.b64decode(text), dtype)

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_positions_come_back(self, dim):
        points = (
            torch.rand(50, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30 + 1e6
        )
        data = self.payload(points, values={"index": torch.arange(50)})
        found = self.unpack(data["positions"], "<i2").reshape(50, 3) / 65534 * data["size"] + data["middle"]
        order = np.rint(self.unpack(data["layers"][0]["data"], np.uint8) / 255 * 49).astype(int)
        assert sorted(order) == list(range(50))
        np.testing.assert_allclose(found[:, :dim], points[order], atol=data["size"] / 65535)
        assert (found[:, dim:] == 0).all()

    def test_errors_are_where_predictions_differ_from_labels(self):
        labels, predictions = np.array([0, 1, 2, -1, 5]), np.array([0, 2, 2, 1, 5])
        data = self.payload(np.arange(15).reshape(5, 3), labels, predictions)
        layers = {layer["name"]: layer for layer in data["layers"]}
        assert list(layers) == ["labels", "predictions", "errors"]
        named = {
            name: np.array(layer["names"])[self.unpack(layer["data"], np.uint8)].tolist()
            for name, layer in layers.items()
        }
        for label, prediction, state in zip(*named.values(), strict=True):
            expected = "no label" if label == "no label" else "right" if label == prediction else "wrong"
            assert state == expected
        errors = layers["errors"]
        counts = dict(zip(errors["names"], errors["counts"], strict=True))
        assert counts == {"no label": 1, "right": 3, "wrong": 1}
        same = [
            dict(zip(layers[n]["names"], layers[n]["colors"], strict=True))["class 2"]
            for n in ("labels", "predictions")
        ]
        assert same[0] == same[1]

    def test_a_large_cloud_is_thinned_and_says_so(self):
        report = Report("t")
        report.cloud(np.random.default_rng(0).random((1000, 3)), max_points=100)
        page = read(report)
        assert "100 of 1,000 points, chosen at random" in " ".join(page.words)
        assert len(self.unpack(page.data[0]["positions"], "<i2")) == 300
        other = Report("t")
        other.cloud(np.random.default_rng(0).random((1000, 3)), max_points=100)
        assert read(other).data == page.data

    def test_versions_have_the_same_layers_whatever_they_hold(self):
        report = Report("t")
        predictions = {"good": [0, 1, 2], "bad": [1, 1, 1], "none": [-1, -1, -1]}
        notes = {"good": "100 %\nof all"}
        report.versions(np.eye(3), [0, 1, 2], predictions, ["a", "b", "c"], notes)
        page = read(report)
        assert page.count("figure", "cloud") == 4
        assert {"truth", "good", "bad", "none", "100 %", "of all"} <= set(page.words)
        lists = [[(layer["name"], layer["names"]) for layer in one["layers"]] for one in page.data]
        assert all(each == lists[0] for each in lists)
        assert [name for name, _ in lists[0]] == ["errors", "classes"]
        for one, found in zip(page.data, ([0, 1, 2], *predictions.values()), strict=True):
            places = np.array(self.unpack(one["positions"], "<i2")).reshape(3, 3).argmax(1)  # in random order
            errors, classes = (
                [layer["names"][i] for i in self.unpack(layer["data"], "u1")] for layer in one["layers"]
            )
            told = [{0: "a", 1: "b", 2: "c", -1: "no label"}[found[place]] for place in places]
            assert classes == told
            truth = ["abc"[place] for place in places]
            assert errors == [t if t == c else "wrong" for t, c in zip(truth, told, strict=True)]

    def test_one_point(self):
        assert self.payload([[1.0, 2.0, 3.0]])["count"] == 1


def test_a_matrix_has_shares_of_each_row():
    report = Report("page")
    report.matrix({"floor": {"floor": 3, "wall": 1}, "wall": {"floor": 2000}, "door": {}}, "errors")
    page = read(report)
    cells = [found for tag, found in page.elements if tag == "td" and "style" in found]
    shares = [float(found["style"].removeprefix("--share: ")) for found in cells]
    assert shares == [0.75, 0.25, 0, 1, 0, 0, 0, 0, 0]
    assert [i for i, found in enumerate(cells) if "right" in found["class"]] == [0, 4, 8]
    assert cells[3]["title"] == "wall, predicted floor: 2,000"
    assert {"75.0", "25.0", "100.0", "2,000"} <= set(page.words)
    assert "0.0" not in page.words


def test_a_map_is_flat_with_the_errors_on_top():
    points = np.random.default_rng(0).uniform(0, 10, (100, 3)) * [1, 2, 5]
    labels, predictions = np.arange(100) % 3 - 1, np.zeros(100, int)
    report = Report("page")
    report.map(points, labels, predictions, ["a", "b"], title="map")
    (data,) = read(report).data
    assert data["above"]
    assert len(data["middle"]) == 2  # there is no height to tell
    assert [layer["name"] for layer in data["layers"]] == ["errors", "predictions", "labels"]
    errors = data["layers"][0]
    assert dict(zip(errors["names"], errors["counts"], strict=True)) == {
        "no label": 34,
        "right": 33,
        "wrong": 33,
    }
    states = np.frombuffer(base64.b64decode(errors["data"]), np.uint8)
    height = np.frombuffer(base64.b64decode(data["positions"]), "<i2").reshape(-1, 3)[:, 2]
    wrong = states == errors["names"].index("wrong")
    assert height[wrong].min() > height[~wrong].max()
    assert np.ptp(height) < 100  # of 65,534
    with pytest.raises(ValueError, match=r"a label and a prediction per point, got 100, 99 and 100"):
        report.map(points, labels[1:], predictions, ["a", "b"])
    with pytest.raises(ValueError, match=r"points of a map must have shape"):
        report.map(points[:, :1], labels, predictions, ["a", "b"])
