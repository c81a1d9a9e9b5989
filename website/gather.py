"""Everything that Sphinx reads, in one folder, and what it only copies, in another."""

import shutil
from pathlib import Path

import nbformat

from website.explorer import index, write_explorer_pages
from website.figures import gallery
from website.links import READABLE, rewrite
from website.maths import write_font
from website.notebooks import to_markdown
from website.pages import BELOW, CHAPTERS, FRONT, ROOT, address, listed, pages
from website.reference import reference_pages
from website.sources import write_source_pages

EXERCISE_FILES = "notebooks/exercises"
MADE = {"explorer.md", "figures.md"}  # pages that are no file of the checkout


def gather(sources: Path, extra: Path) -> None:
    """Write the pages to ``sources``, and the files that are copied as they are to ``extra``.

    Both folders are emptied first.
    """
    for folder in (sources, extra):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    known = pages() | MADE
    texts, linked = {}, set()
    for page in sorted(known - MADE):
        texts[page], files = _page(page, known, extra)
        linked |= files
    texts["explorer.md"], _ = rewrite(index(), "explorer.md", known)
    reference = reference_pages()
    chapters = listed({*texts, *reference, "figures.md"}, CHAPTERS)
    below = listed({*texts, *reference}, BELOW)
    shown = [
        "docs/explore.md",
        *below["notebooks/README.md"],
        "docs/speed.md",
        *below["benchmarks/README.md"],
    ]
    texts["figures.md"] = gallery((page, texts[page]) for page in shown)
    texts[FRONT] += "".join(_contents(title, found) for title, found in chapters.items())
    for page, text in texts.items():
        _write(sources / f"{address(page)}.md", text + (_contents("", below[page]) if page in below else ""))
    for page, text in reference.items():
        _write(sources / page, text)
    for file in sorted(linked):
        if not file.endswith(READABLE):
            for folder in (sources, extra):  # Sphinx takes pictures from the one, links lead to the other
                _copy(file, folder)
    write_source_pages(extra, linked)
    write_explorer_pages(extra / "explorer")
    (extra / "_static").mkdir(exist_ok=True)
    write_font(extra / "_static")


def _page(page: str, known: set[str], extra: Path) -> tuple[str, set[str]]:
    """A page in Markdown with the links of the site, and the files that it leads to. Writes its figures."""
    if not page.endswith(".ipynb"):
        return rewrite((ROOT / page).read_text(encoding="utf-8"), page, known)
    notebook = nbformat.read(ROOT / page, as_version=4)
    text, shown, files = to_markdown(notebook, page, known)
    for name, content in shown.items():
        path = extra / Path(page).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if page.startswith(EXERCISE_FILES):
        _copy(page, extra)
        name = Path(page).name
        text = (
            f"---\norphan: true\n---\n\n{text}\n\n[Download this notebook](site:{name}), or run `make lab`.\n"
        )
    return text, files


def _contents(title: str, pages: list[str]) -> str:
    """A table of contents in Markdown that is not shown, and makes a part of the navigation."""
    names = "\n".join("/" + address(page) for page in pages)
    caption = f":caption: {title}\n" if title else ""
    return f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{names}\n```\n"


def _copy(file: str, folder: Path) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / file, folder / file)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
