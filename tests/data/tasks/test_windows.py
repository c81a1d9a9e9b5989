import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibert.data.tasks import Answer, Question, question_windows
from minibert.data.tasks.windows import _max_context, window_places
from minibert.errors import UserError
from minibert.text import BertTokenizer

VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "who",
    "?",
    ",",
    *"abcdefgh",
    *("##" + c for c in "abcdefgh"),
]


@pytest.fixture
def tokenizer():
    return BertTokenizer(VOCAB)


def question(passage, *answers, text="Who?"):
    placed = tuple(Answer(answer, passage.index(answer) if answer in passage else None) for answer in answers)
    return Question("q", text, passage, "title", placed)


def tokens(window):
    return " ".join(VOCAB[i] for i in window.inputs["input_ids"])


def positions(window):
    return window.inputs["start_positions"], window.inputs["end_positions"]


def test_a_short_passage_is_one_window(tokenizer):
    (window,) = question_windows([question("A bc,  d", "bc,  d")], tokenizer, max_length=20, training=True)
    assert tokens(window) == "[CLS] who ? [SEP] a b ##c , d [SEP]"
    assert window.inputs["token_type_ids"].tolist() == [0] * 4 + [1] * 6
    assert window.spans.tolist() == [[-1, -1]] * 4 + [[0, 1], [2, 3], [3, 4], [4, 5], [7, 8]] + [[-1, -1]]
    assert window.max_context.tolist() == [False] * 4 + [True] * 5 + [False]
    assert positions(window) == (5, 8)
    assert window.answer_span(5, 8) == (2, 8)


def test_windows_overlap_and_the_last_one_ends_with_the_passage(tokenizer):
    windows = question_windows([question("a b c d e f g")], tokenizer, max_length=9, stride=2)
    assert [tokens(w).split("[SEP] ")[1] for w in windows] == [
        "a b c d [SEP]",
        "c d e f [SEP]",
        "e f g [SEP]",
    ]
    assert [w.example for w in windows] == [0, 0, 0]
    # [CLS] who ? [SEP] are of the first text
    assert [w.inputs["token_type_ids"].tolist() for w in windows] == [[0] * 4 + [1] * n for n in (5, 5, 4)]
    assert [w.spans[4:-1, 0].tolist() for w in windows] == [[0, 2, 4, 6], [4, 6, 8, 10], [8, 10, 12]]
    assert "start_positions" not in windows[0].inputs


def test_answers_that_a_window_does_not_hold_whole_are_at_cls(tokenizer):
    passage = "a b c d e f g"
    asked = [question(passage, "d e")]
    windows = question_windows(asked, tokenizer, max_length=9, stride=2, training=True)
    assert [positions(w) for w in windows] == [(0, 0), (5, 6), (0, 0)]
    assert passage[slice(*windows[1].answer_span(5, 6))] == "d e"


def test_questions_without_answer_and_with_lost_ones(tokenizer):
    asked = [question("a b"), question("a b", "x"), question("a b", "x", "b")]
    windows = question_windows(asked, tokenizer, max_length=12, training=True)
    assert [(w.example, positions(w)) for w in windows] == [(0, (0, 0)), (2, (5, 5))]
    assert len(question_windows(asked, tokenizer, max_length=12)) == 3


def test_long_questions_are_cut(tokenizer):
    (window,) = question_windows([question("a", text="b " * 9)], tokenizer, max_length=12, max_question=3)
    assert tokens(window) == "[CLS] b b b [SEP] a [SEP]"


@pytest.mark.parametrize(("tokens", "places"), [(4, [(0, 4)]), (5, [(0, 4), (2, 5)]), (6, [(0, 4), (2, 6)])])
def test_there_is_no_window_beyond_the_one_that_ends_with_the_passage(tokens, places):
    assert window_places(tokens, 4, 2) == places


def test_neighbours_without_a_space_do_not_belong_to_an_answer(tokenizer):
    passage = "a,b,c"
    (window,) = question_windows([question(passage, ",b")], tokenizer, max_length=12, training=True)
    assert passage[slice(*window.answer_span(*positions(window)))] == ",b"


def test_an_answer_inside_a_token_gives_the_token(tokenizer):
    passage = "a xyz b"  # [UNK], as a whole
    (window,) = question_windows([question(passage, "y")], tokenizer, max_length=12, training=True)
    assert passage[slice(*window.answer_span(*positions(window)))] == "xyz"


def test_windows_of_a_single_token(tokenizer):
    windows = question_windows([question("a b c", "b")], tokenizer, max_length=6, stride=1, training=True)
    assert [tokens(w).split("[SEP] ")[1] for w in windows] == ["a [SEP]", "b [SEP]", "c [SEP]"]
    assert [positions(w) for w in windows] == [(0, 0), (4, 4), (0, 0)]


def test_bad_settings(tokenizer):
    with pytest.raises(UserError, match="max_length 5 leaves no room"):
        question_windows([question("a")], tokenizer, max_length=5)
    with pytest.raises(UserError, match="stride of windows must be at least 1, got 0"):
        question_windows([question("a")], tokenizer, stride=0)


WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=5), min_size=1, max_size=40)


@given(
    words=WORDS, separator=st.sampled_from([" ", "\n ", ", "]), max_length=st.integers(8, 100), data=st.data()
)
def test_answers_of_whole_words_come_back_exactly(words, separator, max_length, data):
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    passage, tokenizer = separator.join(words), BertTokenizer(VOCAB)
    start = len(separator.join([*words[:first], ""]))
    answer = Answer(separator.join(words[first : last + 1]), start)
    asked = Question("q", "who", passage, "", (answer,))
    windows = question_windows([asked], tokenizer, max_length=max_length, stride=3, training=True)
    found = [w.answer_span(*positions(w)) for w in windows if positions(w) != (0, 0)]
    assert set(found) <= {(start, start + len(answer.text))}
    assert (
        found or len(tokenizer.token_ids(answer.text)) > max_length - 4 - 3
    )  # longer than what windows share
    assert sum(w.max_context.sum() for w in windows) == len(tokenizer.token_ids(passage))


@example(tokens=400, room=350, stride=340)  # where the last window's length makes the difference
@given(tokens=st.integers(1, 200), room=st.integers(1, 50), stride=st.integers(1, 60))
def test_max_context_is_that_of_the_original(tokens, room, stride):
    """Written out as in the original: for each token all windows are asked, and the first best one has it."""
    places = window_places(tokens, room, stride)
    ours = _max_context(tokens, places)
    for token in range(tokens):
        scores = [
            min(token - start, stop - 1 - token) + 0.01 * (stop - start) if start <= token < stop else -np.inf
            for start, stop in places
        ]
        best = scores.index(max(scores))
        assert max(scores) > -np.inf  # some window holds it
        for window, (start, stop) in enumerate(places):
            if start <= token < stop:
                assert ours[window][token - start] == (window == best)
