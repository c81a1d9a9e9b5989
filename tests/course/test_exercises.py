"""Every exercise: its solution passes, each of its mistakes is told from the others and told what it is."""

import numpy as np
import pytest

from minibert import ops
from minibert.course import EXERCISES, check
from minibert.course.exercise import Exercise, Mistake
from minibert.course.exercises import n07_wordpiece
from minibert.gradcheck import RELATIVE_BOUND
from minibert.text.learn import learn_vocabulary

MISTAKES = [(exercise, mistake) for exercise in EXERCISES.values() for mistake in exercise.mistakes]


@pytest.fixture(params=EXERCISES.values(), ids=lambda exercise: exercise.name)
def exercise(request) -> Exercise:
    return request.param


def test_the_solution_passes(exercise):
    result = check(exercise.name, exercise.solution)
    assert result.passed
    assert not result.mistakes
    assert not result.hints


@pytest.mark.parametrize(
    "exercise, mistake", MISTAKES, ids=[f"{exercise.name}: {mistake.name}" for exercise, mistake in MISTAKES]
)
def test_a_mistake_gets_its_hint_and_no_other(exercise: Exercise, mistake: Mistake):
    result = check(exercise.name, mistake.function)
    assert not result.passed
    assert result.mistakes == [mistake.name]
    assert result.hints == [f"{mistake.name}: {mistake.hint}"]


def test_at_least_three_mistakes_with_names_of_their_own(exercise):
    names = [mistake.name for mistake in exercise.mistakes]
    assert len(set(names)) == len(names) >= 3


def test_the_reference_agrees_with_the_numeric_gradients(exercise):
    """Held against each other here, so that a learner never is between the two."""
    with ops.reference_only():
        for trial, expected in zip(exercise.trials, exercise.expected, strict=True):
            assert set(trial.numeric) <= set(exercise.outputs)
            for name, numeric in trial.numeric.items():
                gradient = expected[exercise.outputs.index(name)]
                size = np.linalg.norm(gradient) + np.linalg.norm(numeric)
                assert np.linalg.norm(gradient - numeric) <= RELATIVE_BOUND * size
                assert size > 1e-3  # zero would agree with a gradient that is forgotten


def test_merging_again_and_again_learns_the_vocabulary():
    words = n07_wordpiece.CORPORA["hug, pug, pun, bun, hugs"]
    counts = {"".join(token.removeprefix("##") for token in tokens): n for tokens, n in words.items()}
    learned = learn_vocabulary(counts, vocab_size=100, special_tokens=[], min_frequency=1)
    merged = []
    while any(len(tokens) > 1 for tokens in words):
        (left, right), words = n07_wordpiece.merge_once.solution(words)
        merged.append(left + right.removeprefix("##"))
    assert learned[-len(merged) :] == merged


def test_exercises_stand_in_the_order_of_the_course():
    assert list(EXERCISES) == sorted(EXERCISES, key=lambda name: name.split(".")[0])
