"""Which pages the site has, and in which order. Paths are those of the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A chapter of the navigation: its title, and its pages. A page of docs/ that is named nowhere comes last in
# "Guides". Those that do not exist are left out.
CHAPTERS = {
    "Course": ["notebooks/README.md", "notebooks/*.ipynb", "notebooks/GLOSSARY.md"],
    "Look inside": ["explorer.md", "figures.md"],
    "Guides": [
        "docs/README.md",
        "docs/pretraining.md",
        "docs/gpu.md",
        "docs/ranks.md",
        "docs/finetuning.md",
        "docs/distillation.md",
        "docs/search.md",
        "docs/weights.md",
        "docs/variants.md",
        "docs/explore.md",
        "docs/python.md",
        "docs/*.md",
        "minibert/assets/mini/README.md",
    ],
    "How good is it?": [
        "docs/differences.md",
        "docs/speed.md",
        "benchmarks/README.md",
        "benchmarks/results/*.md",
    ],
    "How do we know?": ["docs/parity.md", "tests/README.md"],
    "How is it made?": ["docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md"],
    "Reference": ["api/*.rst"],
}
FRONT = "README.md"  # the front page
UNLISTED = ["notebooks/exercises/*.ipynb"]  # pages that only links lead to


def listed(folder: Path, chapters: dict[str, list[str]] = CHAPTERS) -> dict[str, list[str]]:
    """The pages of each chapter that are in a folder; each page once, where it is named or first matched."""
    named = {page for pages in chapters.values() for page in pages if "*" not in page}
    found = {}
    for title, patterns in chapters.items():
        pages: list[str] = []
        for pattern in patterns:
            matched = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
            pages += [page for page in matched if page == pattern or page not in named]
        found[title] = pages
    return found


def pages() -> set[str]:
    """All Markdown files and notebooks of the checkout that become pages."""
    unlisted = {path.relative_to(ROOT).as_posix() for pattern in UNLISTED for path in ROOT.glob(pattern)}
    return {FRONT} | unlisted | {page for chapter in listed(ROOT).values() for page in chapter}


def address(page: str) -> str:
    """Where a page of the checkout is on the site, without its suffix: README.md is the front page."""
    return "index" if page == FRONT else page.rpartition(".")[0]
