"""A page for each source file of the package, and for each file that a page links to."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from website.links import READABLE
from website.pages import ROOT


def source_files(linked: set[str]) -> list[str]:
    """The files to show: those of the package, and of the linked ones those that can be read."""
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minibert").rglob("*.py")}
    return sorted(package | {file for file in linked if file.endswith(READABLE)})


def source_body(file: str) -> str:
    """A file as HTML, with an anchor for each line: L1, L2, …"""
    text = (ROOT / file).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file.replace(".cuh", ".cu"))
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(linespans="L", nowrap=False, cssclass="highlight source")
    code = highlight(text, lexer, formatter).replace('id="L-', 'id="L')
    return f"<h1><code>{escape(file)}</code></h1>\n{code}"


def collect(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages, for Sphinx."""
    linked = Path(app.srcdir, "linked.txt").read_text(encoding="utf-8").split()
    for file in source_files(set(linked)):
        yield f"source/{file}", {"title": file, "body": source_body(file), "furo_hide_toc": True}, "page.html"


def setup(app: Any) -> dict[str, bool]:
    """Let Sphinx collect these pages."""
    app.connect("html-collect-pages", collect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
