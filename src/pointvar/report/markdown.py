"""Markdown as this project writes it, on a page: headings, tables, lists, code; paragraphs for the rest."""

from __future__ import annotations

import re
from html import unescape

from pointvar.report.page import Quantity, Report

_BLOCK = re.compile(
    r"^ *```.*\n(?:(?! *```).*\n)*(?: *```.*\n)?"  # code, up to its end or that of the text
    r"|^#.*\n"  # a heading
    r"|(?:^(?! *```|#).*\S.*\n)+",  # lines that are not empty
    re.MULTILINE,
)
_RULE = re.compile(r"\|?( *:?-+:? *\|)+( *:?-+:?)?")
_ITEM = re.compile(r"^ *[-*] ", re.MULTILINE)
_MARKUP = [  # and what is left of it in a text without links and fonts
    (re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"(\*\*|`)(.+?)\1"), r"\2"),
]


def show_markdown(report: Report, text: str) -> None:
    """Adds a text to a page; a title that is the page's own is left out."""
    for block in _BLOCK.findall(text + "\n"):
        lines = block.strip().splitlines()
        if lines[0].startswith("```"):
            code = lines[1:-1] if lines[-1].lstrip().startswith("```") else lines[1:]
            report.code("\n".join(code), lines[0].strip("` ") or "text")
        elif lines[0].startswith("#"):
            title = _words(lines[0].lstrip("#"))
            if title != report.title:
                report.heading(title)
        elif len(lines) > 1 and _RULE.fullmatch(lines[1].strip()):
            _show_table(report, [_cells(line) for line in lines])
        elif _ITEM.match(lines[0]):
            report.items([_words(item) for item in _ITEM.split(block) if item.strip()])
        else:
            report.text(_words(block))


def _show_table(report: Report, rows: list[list[str]]) -> None:
    """Columns that are aligned to the right are quantities."""
    width = max(map(len, rows))
    header, rule, *rows = [row + [""] * (width - len(row)) for row in rows]
    kinds = [Quantity if cell.endswith(":") and not cell.startswith(":") else str for cell in rule]
    report.table(
        [[kind(_words(cell)) for kind, cell in zip(kinds, row, strict=True)] for row in rows],
        {str(i): _words(name) for i, name in enumerate(header)},
    )


def _cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", inside)]


def _words(text: str) -> str:
    for pattern, instead in _MARKUP:
        text = pattern.sub(instead, text)
    return unescape(" ".join(text.split()).replace("\\|", "|"))
