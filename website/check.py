"""The built site: every link leads somewhere, and nothing is asked for from elsewhere."""

import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes with the address of something that a browser fetches by itself. <a href> is not among them.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("video", "src"),
    ("video", "poster"),
    ("audio", "src"),
    ("track", "src"),
    ("input", "src"),
    ("link", "href"),
    ("use", "href"),
    ("image", "href"),
    ("image", "xlink:href"),
    ("form", "action"),
    ("base", "href"),
}
PASSIVE_LINKS = {"canonical", "next", "prev", "author", "license", "help", "search", "index"}  # <link rel>
CSS_ADDRESS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
# What a script fetches from, if the address is written out.
JS_ADDRESS = re.compile(
    r"""(?:fetch|import|importScripts|Worker|WebSocket|EventSource|sendBeacon|open)\(\s*(?:"GET",\s*)?["'`]"""
    r"""((?:https?:|wss?:)?//[^"'`]+)|\.(?:src|href)\s*=\s*["'`]((?:https?:)?//[^"'`]+)"""
)
VERBATIM = {"pre", "code", "math", "svg"}  # elements that show a $ as it is
FORMULA = re.compile(r"\$[^$]+\$|\$[^$]*\\[a-z]{2}")
OUTWARD = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


@dataclass
class Page(HTMLParser):
    """What one page has: its anchors, the addresses that it links to, and those that a browser fetches."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    missing_alt: list[str] = field(default_factory=list)  # or an iframe's missing title
    formulas: list[str] = field(default_factory=list)  # that are still in LaTeX

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._inside = ""
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element has, links to and fetches."""
        attributes = {name: value or "" for name, value in attrs}
        self._inside = tag if tag in ("style", "script") else ""
        self._verbatim += tag in VERBATIM
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "img" and "alt" not in attributes:
            self.missing_alt.append(attributes.get("src", "")[:80])
        if tag == "iframe" and not attributes.get("title"):
            self.missing_alt.append("iframe " + attributes.get("src", "")[:80])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        for name, value in attributes.items():
            passive = tag == "link" and attributes.get("rel") in PASSIVE_LINKS
            if (tag, name) in FETCHED and not passive:
                parts = value.split(",") if name == "srcset" else [value]
                self.fetched += [part.strip().split(" ")[0] for part in parts if part.strip()]
            elif name == "style":
                self.fetched += css_addresses(value)
            elif name == "srcdoc":
                self.fetched += read(value).fetched

    def handle_endtag(self, tag: str) -> None:
        """A style or script ends, or what is shown as it is."""
        self._inside = ""
        self._verbatim -= tag in VERBATIM

    def handle_data(self, data: str) -> None:
        """Note what a style or script fetches, and formulas that a reader would see in LaTeX."""
        if self._inside == "style":
            self.fetched += css_addresses(data)
        elif self._inside == "script":
            self.fetched += js_addresses(data)
        elif not self._verbatim:
            self.formulas += FORMULA.findall(data)


def read(html: str) -> Page:
    """What a page has."""
    page = Page()
    page.feed(html)
    page.close()
    return page


def css_addresses(css: str) -> list[str]:
    """What a style sheet fetches."""
    return [first or second for first, second in CSS_ADDRESS.findall(css)]


def js_addresses(script: str) -> list[str]:
    """The addresses outside that a script fetches from, where they are written out."""
    return [first or second for first, second in JS_ADDRESS.findall(script)]


def problems(site: Path) -> tuple[str, list[str]]:
    """What was looked at; every dead link, request to elsewhere, LaTeX in a text and picture without alt."""
    pages = {
        path.relative_to(site).as_posix(): read(path.read_text("utf-8")) for path in site.rglob("*.html")
    }
    fetched = [(name, address) for name, page in pages.items() for address in page.fetched]
    for pattern, addresses in (("*.css", css_addresses), ("*.js", js_addresses)):
        for path in site.rglob(pattern):
            name = path.relative_to(site).as_posix()
            fetched += [(name, address) for address in addresses(path.read_text("utf-8"))]
    links = [(name, link) for name, page in pages.items() for link in page.links]
    found = [
        f"{name}: a picture without alt text, or a frame without title: {src}"
        for name, page in pages.items()
        for src in page.missing_alt
    ]
    found += [f"{name}: LaTeX: {text[:80]}" for name, page in pages.items() for text in page.formulas]
    found += [f"{name}: fetches {address}" for name, address in fetched if OUTWARD.match(address)]
    inner = [(name, link) for name, link in [*links, *fetched] if not re.match(r"[a-z]+:|//", link)]
    for name, link in dict.fromkeys(inner):
        if what := _missing(link, name, site, pages):
            found.append(f"{name}: links to {link}: no such {what}")
    outer = {link for _, link in links if re.match("https?:", link)}
    sent = sum(bool(OUTWARD.match(address)) for _, address in fetched)
    counts = f"{len(pages)} pages, {len(inner)} links inside, {len(outer)} addresses outside"
    return f"{counts}, {sent} requests to elsewhere", found


def _missing(link: str, name: str, site: Path, pages: dict[str, Page]) -> str:
    """What a link leads to in vain: a "file" or an "anchor"; empty if it is there."""
    parts = urlsplit(link)
    path, anchor = unquote(parts.path), unquote(parts.fragment)
    goal = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    if goal.startswith("..") or not (site / goal).exists():
        return "file"
    if anchor and goal in pages and anchor not in pages[goal].anchors:
        return "anchor"
    return ""
