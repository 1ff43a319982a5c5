"""Markdown on a page."""

import pytest
from test_page import EVIL, read

from pointvar.report import Report
from pointvar.report.markdown import show_markdown

TEXT = """# Batches of two
A paragraph of
two lines, with `code`, **weight** and a [link](https://example.org/a).

## ModelNet40

| method | BN | `direct` | |
| --- | ---: | ---: | :--: |
| PCCNN | 9.5 \u00b1 0.3 [28.3] | - | a \\| b |
| MCConv | \u2212110 | 1,200.5 | &lt;b> |

- \u201cit holds\u201d: holds,
  on two lines
- -: not run

```sh
# no heading

| no | table |
```
The end
"""


def shown(text, title="page"):
    report = Report(title)
    show_markdown(report, text)
    return read(report)


def test_each_part_becomes_what_it_is():
    page = shown(TEXT)
    assert [page.count(tag) for tag in ("h3", "table", "tr", "ul", "li", "details")] == [2, 1, 3, 1, 2, 1]
    for words in (
        "A paragraph of two lines, with code, weight and a link.",
        "direct",
        "9.5 \u00b1 0.3 [28.3]",
        "a | b",
        "<b>",
        "\u201cit holds\u201d: holds, on two lines",
        "-: not run",
        "# no heading\n\n| no | table |",
        "The end",
    ):
        assert words in page.words


def test_columns_of_numbers_sort_as_numbers():
    cells = [attributes for tag, attributes in shown(TEXT).elements if tag == "td"]
    assert [cell.get("data-key") for cell in cells] == [None, "9.5", "", None, None, "-110", "1200.5", None]
    assert [cell.get("class") for cell in cells] == [None, "n", "n", None] * 2


def test_the_title_of_the_page_is_not_repeated():
    assert shown(TEXT, "Batches of two").count("h3") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("| a | b |\nno table", "| a | b | no table"),
        ("```\nnever ends", "never ends"),
        ("| a |\n|---|\n| 1 | beyond the header |", "beyond the header"),
        ("| a | b |\n|---|---|\n| too few |", "too few"),
        (EVIL, EVIL),
    ],
)
def test_nothing_is_lost(text, words):
    assert words in shown(text).words


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_text_is_nothing(text):
    assert shown(text).words == shown("").words
