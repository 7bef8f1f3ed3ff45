"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "AdaBench"
author = "the AdaBench authors"
copyright = "the AdaBench authors, Apache-2.0"
version = release = version_of("adabench")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "repository_files",
    "command_reference",
]
exclude_patterns = ["_extensions"]
nitpicky = False  # docstrings name types of other projects, whose inventories only the network has

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = False
napoleon_use_ivar = True  # fields of a class are described with it, not once more by themselves
napoleon_use_rtype = False

html_theme = "furo"
html_title = "AdaBench"
html_static_path = ["_static"]
html_css_files = ["adabench.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    # Nothing is fetched from elsewhere when a page is read: furo's own defaults are system fonts.
    "light_css_variables": {"color-brand-primary": "#0b5e8a", "color-brand-content": "#0b5e8a"},
    "dark_css_variables": {"color-brand-primary": "#6cb8e6", "color-brand-content": "#6cb8e6"},
}
