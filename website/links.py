"""Links between the files of a checkout become links between the pages of the site."""

import os
import posixpath
import re
from collections.abc import Container
from pathlib import Path

from website.pages import ROOT, address

# What a link may stand in without being one comes first: formulas, code.
LINK = re.compile(
    r"\$\$.*?\$\$|(?<!\\)\$[^$\n]+\$|```.*?```|`[^`\n]+`|(?<=\])\((?P<target>[^()\s]+)\)", re.DOTALL
)
# Files that are shown on a page of their own; others are copied.
READABLE = (".py", ".toml", ".txt", ".sh", ".cu", ".cuh", ".js", ".css", ".cff", "LICENSE", "Makefile")


def slug(heading: str) -> str:
    """What a heading is called in a link, as GitHub has it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def rewrite(markdown: str, page: str, pages: Container[str]) -> tuple[str, set[str]]:
    """The same text with the links of the site; and the files, not pages, that they lead to.

    ``page`` is where the text stands, and ``pages`` are those that the site has: paths in the checkout.
    """
    files = set()

    def moved(match: re.Match) -> str:
        target = match["target"]
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        path, _, anchor = target.partition("#")
        goal = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if (ROOT / goal).is_dir():
            goal = posixpath.join(goal, "README.md")
        if goal in pages:
            here = posixpath.relpath(address(goal) + ".md", posixpath.dirname(page) or ".") if path else ""
            return f"({here}{'#' + slug(anchor) if anchor else ''})"
        files.add(goal)
        if _is_picture(markdown, match.start()):
            return match[0]
        return f"({site(file_address(goal), page)})"

    return LINK.sub(moved, markdown), files


def site(target: str, page: str) -> str:
    """A link from a page to something of the site that Sphinx does not make; see myst_url_schemes."""
    return "site:" + posixpath.relpath(target, posixpath.dirname(address(page)) or ".")


def file_address(file: str) -> str:
    """Where a file of the checkout that is not a page is on the site."""
    return f"source/{file}.html" if file.endswith(READABLE) else file


def _is_picture(markdown: str, end: int) -> bool:
    """Whether the brackets that end here begin with an exclamation mark."""
    depth = 0
    for place in range(end - 1, -1, -1):
        depth += {"]": 1, "[": -1}.get(markdown[place], 0)
        if depth == 0:
            return place > 0 and markdown[place - 1] == "!"
    return False


def up(path: Path, folder: Path) -> str:
    """The way from a file to a folder above it, such as ``../../``."""
    return posixpath.join(Path(os.path.relpath(folder, path.parent)).as_posix(), "")
