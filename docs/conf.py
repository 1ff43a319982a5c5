"""How the pages are built: `make docs`."""

import pointvar

project = "pointvar"
author = "the authors of pointvar"
release = version = pointvar.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of nn.Module say nothing of ours
napoleon_numpy_docstring = False

highlight_language = "none"  # blocks that name no language are plain text
html_theme = "furo"
html_title = "pointvar"
html_copy_source = False
html_show_copyright = False
