"""The README and the pages of docs/: their links, their map, their length."""

import re

import pytest
from markdown_pages import OTHER_PAGES, PAGES, ROOT, name_of

from notebooks.make.rules import dead_links


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name_of)
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"^\| \[.+?\]\((\w+\.md)\)", index, flags=re.MULTILINE)) == pages


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "architecture.md"], ids=name_of)
def test_the_map_shows_every_room(page):
    rooms = {
        path.name + "/" * path.is_dir()
        for path in (ROOT / "minibert").iterdir()
        if not path.name.startswith("__")
    }
    first_cells = re.findall(r"^\| (`.+?) \|", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rooms <= {name for cell in first_cells for name in re.findall(r"`(.+?)`", cell)}


def test_the_readme_of_the_tests_names_every_helper_and_folder():
    tests = ROOT / "tests"
    helpers = {
        path for path in tests.iterdir() if path.suffix in (".py", ".txt") and path.stem[:5] != "test_"
    }
    folders = {path.parent for path in tests.glob("*/test_*.py")}
    text = (tests / "README.md").read_text(encoding="utf-8")
    named = {name_of(path) for path in helpers | folders} - {"tests/parity", "tests/proofs"}  # file by file
    assert [name for name in named if not re.search(rf"{re.escape(name)}(?![\w./])", text)] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name_of)
def test_the_files_that_the_prose_names_exist(page):
    prose = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:minibert|tests|benchmarks|notebooks|docs|examples)/[\w./]+)", prose)
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


def test_pages_name_no_path_of_a_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(?:home|Users|root|work|mnt)/", page.read_text(encoding="utf-8"))
