"""The settings of Sphinx."""

import os
import re
from typing import Any

import minibert
from website.reference import source_lines

project = "minibert"
version = release = minibert.__version__
language = "en"
highlight_language = "text"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "website.maths",
    "website.reference",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# -- Pages in Markdown
myst_enable_extensions = ["dollarmath", "attrs_block"]
myst_heading_anchors = 4
myst_heading_slug_func = "website.links.slug"
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": "{{path}}#{{fragment}}"}
suppress_warnings = ["myst.header"]  # a notebook's headings may skip a level

# -- Reference
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"


def linkcode_resolve(domain: str, info: dict[str, Any]) -> str | None:
    """Where the source of a name is shown."""
    found = source_lines(info["module"], info["fullname"]) if domain == "py" and info["module"] else None
    return f"../source/{found[0]}.html#L{found[1]}" if found else None


# -- HTML
html_theme = "furo"
html_title = "minibert"
html_math_renderer = "mathml"
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = [os.environ["SITE_EXTRA"]]
templates_path = ["templates"]
html_additional_pages = {"search": "search.html"}
html_copy_source = html_show_sourcelink = False
html_use_index = False
html_domain_indices = False
html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "monokai"


def no_index(app: Any) -> None:
    """Sphinx's own index is not made: Pagefind searches."""
    app.builder.search = False


def name_headings(_app: Any, _page: str, _template: str, context: dict[str, Any], *_: Any) -> None:
    """Sphinx names sections, Pagefind leads to headings that have a name: give them that of their section."""
    section = r'<section id="([^"]+)">(\s*(?:<span id="[^"]+"></span>)*)<h([1-6])>'
    context["body"] = re.sub(section, r'<section>\2<h\3 id="\1">', context.get("body", ""))


def setup(app: Any) -> None:
    """What no setting does."""
    app.connect("builder-inited", no_index)
    app.connect("html-page-context", name_headings)
