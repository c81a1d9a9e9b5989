"""The Markdown pages that a person reads, and what stands in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PAGES = [
    *(ROOT / folder / "README.md" for folder in ("notebooks", "benchmarks", "tests")),
    ROOT / "notebooks" / "EXERCISES.md",
    ROOT / "notebooks" / "GLOSSARY.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]


def name_of(path: Path) -> str:
    """A page's path from the root of the checkout, as tests name it."""
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block of code: the page, the line of its first line there, its text."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def code_blocks(language: str, pages: list[Path] = PAGES) -> list[Block]:
    """All blocks in this language, in the order of the pages."""
    blocks = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            blocks.append(Block(page, text[: found.start(1)].count("\n") + 1, found[1]))
    return blocks
