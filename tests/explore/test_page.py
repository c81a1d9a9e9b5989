"""The offline page: its numbers are Python's, any sentence can be shown, and nothing comes from elsewhere."""

import json
import re

import numpy as np
import pytest
from packed_arrays import unpacked

from minibert.errors import UserError
from minibert.explore.look import look
from minibert.explore.page import page
from minibert.explore.subjects import open_subject
from minibert.tasks import fill_mask

TEXT = "the capital of france is [MASK] ."
HOSTILE = "</script><script>alert(1)</script> <!-- & \"[MASK]\" 'x' \\u003c ${1} 😀 שלום 東京"


@pytest.fixture(scope="module")
def subject():
    return open_subject("mini")


def data_of(html):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return json.loads(data)


def test_the_pages_numbers_are_those_of_the_pass(subject):
    shown = data_of(page(subject, "mini", [(TEXT, None), ("she opened the [MASK] .", None)]))
    assert "5,430,786 parameters" in shown["about"] and [s["text"] for s in shown["sentences"]] == [
        TEXT,
        "she opened the [MASK] .",
    ]
    told = shown["sentences"][0]
    _, found = look(subject, subject.encode(TEXT))
    assert told["look"]["loss"] == found.loss
    assert told["tensors"].keys() == found.values.keys()
    for name, tensor in told["tensors"].items():
        np.testing.assert_array_equal(unpacked(tensor["value"]), found.values[name])
        np.testing.assert_array_equal(unpacked(tensor["derivative"]), found.derivatives[name])
    maps = [value for name, value in found.values.items() if name.endswith("probabilities")]
    np.testing.assert_array_equal(unpacked(told["look"]["maps"]), np.stack(maps))
    for summary in told["look"]["values"]:
        rows = np.moveaxis(found.values[summary["name"]], -2, 0).reshape(len(found.sentence), -1)
        np.testing.assert_allclose(summary["norms"], np.linalg.norm(rows, axis=1), rtol=1e-5)


def test_the_guesses_are_those_of_fill_mask(subject):
    shown, found = look(subject, subject.encode(TEXT))
    (expected,) = fill_mask(subject.model, subject.tokenizer, TEXT, top_k=10)
    for ours, (token, p) in zip(shown["guesses"], expected, strict=True):
        assert ours["token"] == token and ours["p"] == pytest.approx(p, rel=1e-5)
    assert shown["measure"] == f"−ln p({expected[0][0]})" and found.loss == pytest.approx(
        -np.log(expected[0][1]), rel=1e-5
    )
    for ours, last in zip(
        shown["guesses"], shown["lens"][-1], strict=True
    ):  # the last layer's are the guesses
        assert ours["token"] == last["token"] and ours["p"] == pytest.approx(last["p"], rel=1e-4)
    assert len(shown["lens"]) == 5 and all(len(best) == 10 for best in shown["lens"])


def test_an_answer_of_ones_own(subject):
    shown, found = look(subject, subject.encode(TEXT), answer="paris")
    assert shown["measure"] == "−ln p(paris)"
    assert found.loss == pytest.approx(
        -np.log(found.probabilities[subject.tokenizer.vocab["paris"]]), rel=1e-5
    )


def test_no_sentence_ends_the_script_or_is_taken_for_markup(subject):
    html = page(subject, "mini", [(HOSTILE, None)])
    assert data_of(html)["sentences"][0]["text"] == HOSTILE
    assert html.count("</script>") == 2 and "<!--" not in html


def test_it_asks_for_nothing_from_elsewhere(subject):
    html = page(subject, "mini", [(TEXT, None)])
    assert not re.search(r"https?://|\bfetch\(|XMLHttpRequest|\bimport\b.*from |<link|\bsrc=|url\(", html)


def test_it_fits_into_an_attachment(subject):
    texts = [TEXT, "she opened the [MASK] and looked out into the garden .", "i do not [MASK] ."]
    assert len(page(subject, "mini", [(text, None) for text in texts]).encode()) < 5e6


@pytest.mark.parametrize(
    ("text", "answer", "message"),
    [
        ("nothing is hidden .", None, "no word is hidden in"),
        (TEXT, "parisparis", "'parisparis' is not a token of the vocabulary"),
        ("the " * 130 + "[MASK]", None, "128"),
    ],
)
def test_what_cannot_be_shown(subject, text, answer, message):
    with pytest.raises(UserError, match=message):
        page(subject, "mini", [(text, None)], answer)
