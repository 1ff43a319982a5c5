"""How the pages are built: `make docs`."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

import pointvar

project = "pointvar"
author = "the authors of pointvar"
release = version = pointvar.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False  # those of nn.Module say nothing of ours
napoleon_numpy_docstring = False

highlight_language = "none"  # blocks that name no language are plain text
html_theme = "furo"
html_title = "pointvar"
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"


def write_math(writer: Any, node: nodes.Element) -> None:
    """Formulas as MathML, which browsers show by themselves: MathJax would come over the network."""
    display = "inline" if isinstance(node, nodes.math) else "block"
    formula = convert(node.astext(), display=display)
    writer.body.append(formula if display == "inline" else f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
