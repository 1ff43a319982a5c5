"""Markdown as HTML for the page: tables that sort, and nothing that leads off the page."""

from __future__ import annotations

from html import escape
from typing import Any

from pointvar.data.formats import optional

RULES = {
    "table_open": '<div class="scroll" tabindex="0"><table>',
    "table_close": "</table></div>",
    "link_open": "",  # what it leads to is not part of the file
    "link_close": "",
}


def render(text: str, title: str = "") -> str:
    """Markdown as HTML, with HTML inside it escaped; a heading that repeats the page's title is left out."""
    parser = optional("markdown_it", "report").MarkdownIt("commonmark", {"html": False}).enable("table")
    for name, html in RULES.items():
        parser.add_render_rule(name, lambda *_, html=html: html)
    parser.add_render_rule("image", _alternative)
    tokens = parser.parse(text)
    for at in [i for i, token in enumerate(tokens) if token.type == "heading_open"][::-1]:
        if tokens[at + 1].content == title:
            del tokens[at : at + 3]
        else:
            tokens[at].tag = tokens[at + 2].tag = "h3"
    return parser.renderer.render(tokens, parser.options, {})


def _alternative(renderer: Any, tokens: Any, index: int, options: Any, environment: Any) -> str:
    return escape(renderer.renderInlineAsText(tokens[index].children, options, environment))
