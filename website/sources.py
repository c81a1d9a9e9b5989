"""A page for each source file of the package, and for each file that a page links to."""

from html import escape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from website.links import READABLE, file_address
from website.pages import ROOT

# Not made by Sphinx: the whole navigation in each of them would take half of the time of the build.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{file} - minibert</title>
<link rel="icon" href="{up}_static/icon.svg">
<link rel="stylesheet" href="{up}_static/pygments.css">
<link rel="stylesheet" href="{up}_static/styles/furo.css">
<link rel="stylesheet" href="{up}_static/site.css">
</head>
<body>
<script>document.body.dataset.theme = localStorage.getItem("theme") || "auto";</script>
<main class="source">
<p><a href="{up}index.html">minibert</a></p>
<h1><code>{file}</code></h1>
{code}
</main>
</body>
</html>
"""


def source_files(linked: set[str]) -> list[str]:
    """The files to show: those of the package, and of the linked ones those that can be read."""
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minibert").rglob("*.py")}
    return sorted(package | {file for file in linked if file.endswith(READABLE)})


def source_page(file: str) -> str:
    """A file as a page, with an anchor for each line: L1, L2, …"""
    text = (ROOT / file).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file.replace(".cuh", ".cu"))
    except ClassNotFound:
        lexer = TextLexer()
    code = highlight(text, lexer, HtmlFormatter(linespans="L")).replace('id="L-', 'id="L')
    return PAGE.format(file=escape(file), up="../" * file_address(file).count("/"), code=code)


def write_source_pages(folder: Path, linked: set[str]) -> None:
    """Write all of these pages."""
    for file in source_files(linked):
        path = folder / file_address(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source_page(file), encoding="utf-8")
