"""The documentation site: `make docs` builds it. What is our own about it is in tools/docs_site.py."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tools")]

import txstream  # noqa: E402 - after the path

project = "txstream"
author = "The txstream developers"
release = txstream.__version__
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "docs_site"]
root_doc = "index"
exclude_patterns = ["_build", "README.md"]  # it is the index
nitpicky = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as a git host makes them
myst_url_schemes = ["http", "https", "mailto", "repository"]
source_suffix = {".md": "markdown", ".myst": "markdown"}
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_display_short_literal_types = True
smartquotes = False  # they would make one dash of two
maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
add_module_names = False

html_theme = "furo"
html_title = f"txstream {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
