"""Which pages the site has, and in which order. Paths are those of the checkout."""

from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A chapter of the navigation: its title, and its pages. A page of docs/ that is named nowhere comes last in
# "Guides". Those that do not exist are left out.
CHAPTERS = {
    "Learn": [
        "notebooks/README.md",
        "notebooks/EXERCISES.md",
        "notebooks/GLOSSARY.md",
        "explorer.md",
        "figures.md",
    ],
    "Guides": [
        "docs/README.md",
        "docs/requests.md",
        "docs/pretraining.md",
        "docs/gpu.md",
        "docs/ranks.md",
        "docs/finetuning.md",
        "docs/search.md",
        "docs/weights.md",
        "docs/variants.md",
        "docs/explore.md",
        "docs/explain.md",
        "docs/python.md",
        "docs/*.md",
        "minibert/assets/mini/README.md",
    ],
    "How good is it?": ["docs/differences.md", "docs/speed.md", "benchmarks/README.md"],
    "How do we know?": ["docs/parity.md", "tests/README.md"],
    "How is it made?": ["docs/architecture.md", "api/00-minibert.rst", "CONTRIBUTING.md", "CHANGELOG.md"],
}
# Pages below another one in the navigation.
BELOW = {
    "notebooks/README.md": ["notebooks/*.ipynb"],
    "benchmarks/README.md": ["benchmarks/results/*.md", "benchmarks/results/*/*.md"],
    "api/00-minibert.rst": ["api/*.rst"],
}
FRONT = "README.md"  # the front page
UNLISTED = ["notebooks/exercises/*.ipynb"]  # pages that only links lead to


def listed(files: set[str], chapters: dict[str, list[str]]) -> dict[str, list[str]]:
    """The pages of each chapter that are among ``files``; each once, where it is named or first matched."""
    named = {page for pages in [*CHAPTERS.values(), *BELOW.values()] for page in pages}
    found = {}
    for title, patterns in chapters.items():
        pages: list[str] = []
        for pattern in patterns:
            pages += sorted(
                file for file in files if _matches(file, pattern) and (file == pattern or file not in named)
            )
        found[title] = pages
    return found


def _matches(file: str, pattern: str) -> bool:
    return fnmatch(file, pattern) and file.count("/") == pattern.count("/")


def pages() -> set[str]:
    """All Markdown files and notebooks of the checkout that become pages."""
    patterns = [
        FRONT,
        *UNLISTED,
        *(page for pages in [*CHAPTERS.values(), *BELOW.values()] for page in pages),
    ]
    return {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)}


def address(page: str) -> str:
    """Where a page of the checkout is on the site, without its suffix: README.md is the front page."""
    return "index" if page == FRONT else page.rpartition(".")[0]
