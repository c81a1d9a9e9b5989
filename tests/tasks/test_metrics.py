import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import UserError
from minibert.tasks.metrics import (
    accuracy,
    answer_scores,
    best_null_threshold,
    entities,
    entity_scores,
    f1,
    macro_f1,
    matthews,
    mean_reciprocal_rank,
    minimal_pair_accuracy,
    normalise_answer,
    pearson,
    recall_at,
    spearman,
    squad_scores,
)

# ---------------------------------------------------------------- classes and scores

# Six true positives, one false, two missed, three true negatives.
PREDICTED = [1] * 6 + [1] + [0] * 2 + [0] * 3
LABELS = [1] * 6 + [0] + [1] * 2 + [0] * 3


def test_two_classes():
    assert accuracy(PREDICTED, LABELS) == 9 / 12
    assert f1(PREDICTED, LABELS) == pytest.approx(2 * 6 / (2 * 6 + 1 + 2))
    assert f1(PREDICTED, LABELS, positive=0) == pytest.approx(2 * 3 / (2 * 3 + 2 + 1))
    assert macro_f1(PREDICTED, LABELS) == pytest.approx((12 / 15 + 6 / 9) / 2)
    expected = (6 * 3 - 1 * 2) / math.sqrt((6 + 1) * (6 + 2) * (3 + 1) * (3 + 2))
    assert matthews(PREDICTED, LABELS) == pytest.approx(expected)


def test_names_and_classes_that_only_one_side_has():
    assert f1(["a", "b"], ["a", "c"], positive="a") == 1.0
    assert macro_f1(["a", "b"], ["a", "c"]) == pytest.approx(1 / 3)
    assert f1([0, 0], [0, 0]) == 0.0


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_matthews_is_the_correlation_of_indicators(pairs):
    predicted, labels = np.array(pairs).T
    one_hot = np.eye(4)
    x, y = one_hot[predicted], one_hot[labels]
    x, y = x - x.mean(0), y - y.mean(0)
    spread = math.sqrt(np.sum(x * x) * np.sum(y * y))
    assert matthews(predicted, labels) == pytest.approx(np.sum(x * y) / spread if spread > 1e-9 else 0.0)


def test_correlations():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert pearson([1, 2, 4], [1, 3, 2]) == pytest.approx(1 / math.sqrt(14 / 3 * 2))
    assert spearman([1, 10, 100], [1, 2, 3]) == pytest.approx(1)
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4
    assert spearman([0, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    for function in (pearson, spearman):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of scipy, that there is none
            assert math.isnan(function([1, 1], [1, 2])) and math.isnan(function([1, 2], [3, 3]))
        assert function([0, 1], [3, 4]) == function([3, 4], [0, 1]) == pytest.approx(1)


@pytest.mark.parametrize("function", [accuracy, f1, macro_f1, matthews, pearson, spearman])
def test_as_many_predictions_as_labels(function):
    for predicted, labels in (([1], [1, 0]), ([], []), ([[1, 0]], [[1, 0]])):
        with pytest.raises(UserError, match="must be two rows of the same length"):
            function(predicted, labels)


def test_a_correlation_needs_two():
    with pytest.raises(UserError, match="at least two scores, got 1"):
        spearman([1], [1])


# ---------------------------------------------------------------- entities


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-x I-x O B-y", [("x", 1, 3), ("y", 4, 5)]),
        ("B-x B-x I-x", [("x", 0, 1), ("x", 1, 3)]),
        ("B-x I-y I-y O I-x", [("x", 0, 1), ("y", 1, 3), ("x", 4, 5)]),
        ("I-a-b I-a-b", [("a-b", 0, 2)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities(tags, found):
    assert entities(tags.split()) == found


def test_entities_count_as_a_whole():
    labels = [["B-x", "I-x", "O", "B-y"], ["B-x", "O"]]
    predicted = [["B-x", "O", "O", "B-y"], ["B-x", "B-z"]]
    scores = entity_scores(predicted, labels)
    assert list(scores) == ["overall", "x", "y", "z"]
    assert scores["overall"] == dict(precision=2 / 4, recall=2 / 3, f1=pytest.approx(4 / 7), support=3)
    assert scores["x"] == dict(precision=0.5, recall=0.5, f1=0.5, support=2)
    assert scores["y"] == dict(precision=1, recall=1, f1=1, support=1)
    assert scores["z"] == dict(precision=0, recall=0, f1=0, support=0)


def test_a_kind_of_the_name_of_the_sum_is_not_counted_twice():
    scores = entity_scores([["B-overall", "O"]], [["B-overall", "B-x"]])
    assert scores["overall"] == dict(precision=1, recall=0.5, f1=pytest.approx(2 / 3), support=2)
    assert list(scores) == ["overall", "x"]


def test_a_kind_that_was_never_guessed_is_told_too():
    scores = entity_scores([["O", "B-y"]], [["B-x", "B-y"]])
    assert scores["x"] == dict(precision=0, recall=0, f1=0, support=1)


def test_no_entities_at_all():
    assert entity_scores([["O"]], [["O"]]) == {"overall": dict(precision=0, recall=0, f1=0, support=0)}


def test_a_tag_for_every_word():
    for predicted in ([["O"]], [["O"], ["O"]], []):
        with pytest.raises(UserError, match="a predicted tag for every word"):
            entity_scores(predicted, [["O", "O"]])
    with pytest.raises(UserError, match="a predicted tag for every word"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]])


# ---------------------------------------------------------------- answers


def test_answers_are_compared_without_case_articles_and_punctuation():
    assert normalise_answer(" The  U.S. of an Ape-A\n") == "us of apea"
    assert answer_scores("the Cat!", ["dog", "cat"]) == (1.0, 1.0)
    assert answer_scores("black cat", ["the cat", "a black dog"]) == (0.0, pytest.approx(2 / 3))
    assert answer_scores("cat cat", ["cat"]) == (0.0, pytest.approx(2 * 0.5 * 1 / 1.5))
    assert answer_scores("mouse", ["cat"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("predicted", "answers", "score"),
    [
        ("", [], 1.0),
        ("cat", [], 0.0),
        ("", ["cat"], 0.0),
        ("", ["the"], 1.0),
        ("cat", ["the", "cat"], 1.0),
        ("", ["the", "cat"], 0.0),
    ],
)
def test_no_answer(predicted, answers, score):
    assert answer_scores(predicted, answers) == (score, score)


def test_means_over_all_questions():
    answers = {"1": ["cat"], "2": ["black dog"], "3": ["x"]}
    assert squad_scores({"1": "a cat", "2": "dog"}, answers) == {
        "exact_match": pytest.approx(1 / 3),
        "f1": pytest.approx((1 + 2 / 3 + 0) / 3),
    }
    scores = squad_scores({"1": "a cat", "2": "", "4": "mouse"}, {"1": ["cat"], "2": [], "4": []})
    assert scores == {
        **dict(exact_match=pytest.approx(2 / 3), f1=pytest.approx(2 / 3)),
        **dict(has_answer_exact_match=1, has_answer_f1=1),
        **dict(no_answer_exact_match=0.5, no_answer_f1=0.5),
    }
    with pytest.raises(UserError, match="no questions"):
        squad_scores({}, {})


NULL_CASES = st.lists(
    st.tuples(
        st.integers(-3, 3), st.sampled_from(["", "cat", "dog"]), st.sampled_from([[], ["cat"], ["cat cow"]])
    ),
    min_size=1,
    max_size=12,
)


@given(cases=NULL_CASES)
def test_the_best_threshold_is_the_best_of_all(cases):
    nulls, predicted, answers = ({str(i): case[part] for i, case in enumerate(cases)} for part in range(3))

    def f1_at(threshold):
        kept = {name: "" if nulls[name] > threshold else text for name, text in predicted.items()}
        return squad_scores(kept, answers)["f1"]

    threshold, score = best_null_threshold(nulls, predicted, answers)
    assert f1_at(threshold) == pytest.approx(score)
    assert score == pytest.approx(max(map(f1_at, [-math.inf, *nulls.values()])))


def test_questions_of_equal_null_scores_are_answered_together():
    """To answer "a" alone would be best; but nothing tells it from "b"."""
    nulls = {"a": 1.0, "b": 1.0, "c": 2.0}
    predicted = {"a": "cat", "b": "cat", "c": "cat"}
    answers = {"a": ["cat"], "b": [], "c": []}
    assert best_null_threshold(nulls, predicted, answers) == (-math.inf, pytest.approx(2 / 3))


def test_an_answer_of_nothing_but_articles_is_none_for_the_threshold_too():
    nulls, predicted = {"a": 1.0, "b": 2.0}, {"a": "cat", "b": "dog"}
    assert best_null_threshold(nulls, predicted, {"a": ["cat"], "b": ["the"]}) == (1.0, 1.0)
    assert squad_scores({"a": "cat", "b": ""}, {"a": ["cat"], "b": ["the"]})["f1"] == 1.0


# ---------------------------------------------------------------- ranks and minimal pairs


def test_ranks():
    ranks = [1, 3, None, 10]
    assert [recall_at(ranks, k) for k in (1, 3, 10)] == [0.25, 0.5, 0.75]
    assert mean_reciprocal_rank(ranks) == pytest.approx((1 + 1 / 3 + 0 + 1 / 10) / 4)
    for bad in ([], [0], [1, 0]):
        for function in (mean_reciprocal_rank, lambda ranks: recall_at(ranks, 1)):
            with pytest.raises(UserError, match="ranks must count from 1"):
                function(bad)


def test_minimal_pairs_by_phenomenon():
    scores = minimal_pair_accuracy([-1.0, -2.0, -3.0, -4.0], [-2.0, -1.0, -3.0, -5.0], ["b", "a", "a", "a"])
    assert scores == {"overall": 0.5, "a": pytest.approx(1 / 3), "b": 1.0}  # equal scores are no success
    assert minimal_pair_accuracy([1, 2], [0, 5], ["overall", "x"]) == {"overall": 0.5, "x": 0.0}


def test_there_must_be_something_to_score():
    with pytest.raises(UserError, match="no sentences"):
        entity_scores([], [])
    with pytest.raises(UserError, match="no questions"):
        best_null_threshold({}, {}, {})
