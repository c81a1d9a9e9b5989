"""One page with all figures of the course and of the results, each with a link to where it belongs."""

import html
import posixpath
import re
from collections.abc import Iterable

from website.pages import address

PICTURE = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\((?P<file>[^)\s]+)\)|"
    r'<img class="figure" id="(?P<id>[^"]+)" src="(?P<src>[^"]+)" alt="(?P<text>[^"]*)"'
)
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def gallery(pages: Iterable[tuple[str, str]]) -> str:
    """The page, from the pages in Markdown and their paths; those without figures are left out."""
    parts = [
        "# Figures\n\nAll figures of the course and of the results. Each leads to where it is explained."
    ]
    for page, text in pages:
        figures = [_figure(match, page) for match in PICTURE.finditer(text)]
        if figures:
            heading = HEADING.search(text)
            title = heading[1] if heading else page
            grid = "\n".join(figures)
            parts.append(f'## {title}\n\n<div class="gallery">\n{grid}\n</div>')
    return "\n\n".join(parts) + "\n"


def _figure(match: re.Match, page: str) -> str:
    """A figure that leads to its page. Pictures in Markdown are copied to the same place; see gather.py."""
    file = posixpath.join(posixpath.dirname(page), match["file"] or match["src"])
    alt = html.escape(match["alt"]) if match["file"] else match["text"]
    goal = address(page) + ".html" + (f"#{match['id']}" if match["id"] else "")
    return f'<a href="{goal}"><img src="{posixpath.normpath(file)}" alt="{alt}" loading="lazy"></a>'
