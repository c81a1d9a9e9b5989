"""Explanations as text and as a page: what is shown is what was computed, and nothing is asked for."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from minibert.explore.explain import Settings, explain
from minibert.explore.report import as_page, as_text
from minibert.explore.subjects import open_subject

HOSTILE = "</style><script>alert(1)</script> &amp; \"<b>\" 'x' [MASK] 😀 שלום <!--articles-->"


@pytest.fixture(scope="module")
def told():
    return explain(
        open_subject("mini"), "the capital of france is [MASK] .", settings=Settings(steps=8), target="paris"
    )


def test_a_row_per_word_and_a_bar_per_method(told):
    text = as_text(told)
    assert "\x1b" not in text and "warning" not in text
    assert "at '[MASK]': ln p(paris) = " in text and "baseline ([MASK] for every word): " in text
    rows = {line.split()[0]: line for line in text.splitlines()[-7:]}
    assert list(rows) == [part.text for part in told.parts]
    for part, *weights in zip(told.parts, *told.methods.values(), strict=True):
        shown = re.findall(r"[+−]\d+\.\d+|–", rows[part.text])
        for number, weight in zip(shown, weights, strict=True):
            if np.isnan(weight):
                assert number == "–"
            else:
                assert float(number.replace("−", "-")) == pytest.approx(weight, abs=0.01)
    largest = told.parts[int(np.nanargmax(told.integrated))].text
    assert "█" * 10 in rows[largest]


def test_colours_change_nothing_else(told):
    coloured = as_text(told, colours=True)
    assert "\x1b[38;5;33m" in coloured
    plain = re.sub(r"\x1b\[[\d;]+m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == as_text(told).splitlines()


def test_a_large_gap_is_said(told):
    bad = replace(told, total=told.total * 1.06)
    assert "warning: the gap is more than 5% of the difference; give more --steps" in as_text(bad)
    assert 'class="warning"' in as_page([bad], "m") and 'class="warning"' not in as_page([told], "m")
    same = replace(told, below=told.value, total=0.5)
    assert "(of no difference)" in as_text(same) and same.to_dict()["relative_gap"] is None


def test_a_model_that_does_not_care(told):
    nothing = replace(told, integrated=np.zeros(7), gradient=np.zeros(7), left_out=np.full(7, np.nan))
    assert as_text(nothing).count("+0.00") == 14 and "█" not in as_text(nothing)
    assert "<mark" not in as_page([nothing], "m").split("<article>")[1]


class Reader(HTMLParser):
    """The text of a page's shaded lines, and all tags and attributes."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.shaded, self._inside = [], [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "dd":
            self._inside = True
            self.shaded.append("")

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "dd"

    def handle_data(self, data):
        if self._inside:
            self.shaded[-1] += data


def test_the_page_shows_any_text_as_it_is():
    subject = open_subject("mini")
    page = as_page([explain(subject, HOSTILE, settings=Settings(steps=1))], "<i>model</i>")
    reader = Reader(page)
    assert reader.shaded == [HOSTILE] * 3
    assert not {"script", "b", "i"} & set(reader.tags) and reader.tags.count("article") == 1
    pieces = as_page([explain(subject, HOSTILE, settings=Settings(steps=1, pieces=True))], "m")
    assert Reader(pieces).shaded == [HOSTILE] * 3


def test_two_texts_on_the_page():
    pair = explain(open_subject("mini"), "she left .", "then it rained .", settings=Settings(steps=1))
    assert Reader(as_page([pair], "m")).shaded == ["she left .then it rained ."] * 3  # a line break between


def test_the_page_asks_for_nothing_from_elsewhere(told):
    page = as_page([told, told], "mini")
    assert not re.search(r"https?:|//\w|url\(|@import|<link|<script|\bsrc=", page)
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert {name for name, _ in reader.attributes} <= {
        "lang",
        "charset",
        "name",
        "content",
        "class",
        "style",
        "title",
    }
    assert reader.tags.count("article") == 2 and reader.tags.count("tr") == 2 * 8


def test_shades_are_the_weights(told):
    page = as_page([told], "mini")
    shades = dict(
        re.findall(r'<mark class="for" style="--w:([\d.]+)"[^>]*>(\w+)</mark>', page.split("<dt>")[1])
    )
    assert shades["1.000"] == told.parts[int(np.nanargmax(told.integrated))].text


def test_tiny_weights_are_not_shown_as_0():
    told = explain(open_subject("mini"), "the capital of france is [MASK] .", settings=Settings(steps=1))
    lines = as_text(replace(told, gradient=told.gradient * 1e-6)).splitlines()
    tiny = [line for line in lines if "e−0" in line]
    assert len(tiny) > 5 and not any("0.00000" in line for line in lines)
