"""The glossary: its order, and that its links lead to headings of the notebooks' sources."""

import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
ENTRY = re.compile(r"- \*\*(?P<term>.+?)\*\*: (?P<meaning>.+\.) (?P<link>\[\d\d.*)")
WHOLE_LINK = re.compile(r"\[\d\d, .+\]\((?P<name>\w+)\.ipynb#(?P<anchor>\S+)\)")
# Markdown cannot link to headings with parentheses or backticks: then the number follows the link.
SECTION = re.compile(r"\[\d\d\]\((?P<name>\w+)\.ipynb\), section (?P<number>\d+)")


def entries(text):
    """The lines of the glossary's lists, each with the letter above it."""
    letter = ""
    for line in text.splitlines():
        if line.startswith("## "):
            letter = line[3:]
        elif line.startswith("- "):
            yield letter, ENTRY.fullmatch(line)


def sort_key(term):
    return re.sub(r"[^a-z0-9]+", " ", term.lower()).strip()


def headings(name):
    """The headings of a notebook's source; none if there is no such notebook."""
    source = NOTEBOOKS / "src" / f"{name}.py"
    return re.findall(r"^##+ (.+?) *$", source.read_text("utf-8"), re.MULTILINE) if source.exists() else []


def leads_somewhere(link):
    if whole := WHOLE_LINK.fullmatch(link):
        return whole["anchor"] in [heading.replace(" ", "-") for heading in headings(whole["name"])]
    section = SECTION.fullmatch(link)
    return section and any(
        heading.startswith(f"{section['number']}. ") for heading in headings(section["name"])
    )


@pytest.fixture(scope="module")
def glossary():
    return list(entries((NOTEBOOKS / "GLOSSARY.md").read_text(encoding="utf-8")))


def test_every_glossary_entry_has_a_term_a_meaning_and_a_link(glossary):
    assert len(glossary) > 80
    assert all(entry for _, entry in glossary)


def test_glossary_terms_are_in_alphabetical_order_and_none_comes_twice(glossary):
    terms = [sort_key(entry["term"]) for _, entry in glossary]
    assert terms == sorted(set(terms))
    assert [letter for letter, _ in glossary] == [term[0].upper() for term in terms]


def test_glossary_links_lead_to_headings(glossary):
    assert [entry["term"] for _, entry in glossary if not leads_somewhere(entry["link"])] == []


@pytest.mark.parametrize(
    "link",
    [
        "[05, section 1](05_layer_norm.ipynb#1.-What-it-did)",
        "[05, section 1](05_layer.ipynb#1.-What-it-does)",
        "[05](05_layer_norm.ipynb), section 99",
        "[05, section 1](05_layer_norm.ipynb)",
    ],
)
def test_broken_glossary_links_are_noticed(link):
    assert leads_somewhere("[05, section 1](05_layer_norm.ipynb#1.-What-it-does)")
    assert not leads_somewhere(link)
