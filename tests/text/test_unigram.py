import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.text.unigram import UNKNOWN_PENALTY, Unigram

PIECES = [("<unk>", 0.0), ("▁", -3.0), ("a", -3.0), ("b", -4.0), ("ab", -5.0), ("▁a", -5.5), ("bab", -6.0)]


def segmentations(text, pieces, unknown):
    """All of them, as (score, lengths), by trying every piece at every place."""
    if not text:
        yield 0.0, ()
        return
    fitting = [(len(piece), score) for piece, score in pieces if text.startswith(piece)]
    if not any(length == 1 for length, _ in fitting):
        fitting.append((1, unknown))
    for length, score in fitting:
        for rest, lengths in segmentations(text[length:], pieces, unknown):
            yield score + rest, (length, *lengths)


def fused(text, lengths, pieces):
    """Ids and lengths, unknown characters next to each other joined."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    found, at = [], 0
    for length in lengths:
        i = ids.get(text[at : at + length], 0)
        at += length
        if i == 0 and found and found[-1][0] == 0:
            length += found.pop()[1]
        found.append((i, length))
    return found


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("▁ab", ["▁", "ab"]),  # −8, against −9.5 for ▁a b and −10 for ▁ a b
        ("▁bab", ["▁", "bab"]),
        ("▁abab", ["▁a", "bab"]),  # −11.5, against −13
        ("xyab", ["xy", "ab"]),  # unknown ones are joined
        ("xay", ["x", "a", "y"]),
    ],
)
def test_by_hand(text, pieces):
    found = Unigram(PIECES, 0).segment(text)
    assert [len(piece) for piece in pieces] == [length for _, length in found]
    assert [i for i, _ in found] == [next((i for i, p in enumerate(PIECES) if p[0] == x), 0) for x in pieces]


WHOLE = st.integers(-40, 0).map(float)  # added without rounding, so that ties are ties
VOCABULARY = st.dictionaries(st.text("ab▁", min_size=1, max_size=4), WHOLE, max_size=10)


@given(VOCABULARY, st.text("abc▁", max_size=8))
def test_the_best_of_all_segmentations(vocabulary, text):
    """Of equally good ones that with the longest last piece, then the longest piece before it, and so on."""
    pieces = [("<unk>", 0.0), *vocabulary.items()]
    unknown = min(score for _, score in pieces) - UNKNOWN_PENALTY
    _, lengths = max(segmentations(text, pieces, unknown), key=lambda found: (found[0], found[1][::-1]))
    assert Unigram(pieces, 0).segment(text) == fused(text, lengths, pieces)


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=4), st.floats(-12, 0), max_size=10),
    st.text("abc", max_size=8),
)
def test_no_segmentation_is_better(vocabulary, text):
    pieces = [("<unk>", 0.0), *vocabulary.items()]
    model = Unigram(pieces, 0)
    found = model.segment(text)
    score = sum(
        model.unknown_score * length if i == 0 else pieces[i][1] for i, length in found
    )  # fused unknown ones count once per character
    best = max(score for score, _ in segmentations(text, pieces, model.unknown_score))
    assert math.isclose(score, best, abs_tol=1e-9)
    assert sum(length for _, length in found) == len(text)


def test_a_long_text_needs_no_recursion():
    assert len(Unigram(PIECES, 0).segment("ab" * 20_000)) == 20_000
