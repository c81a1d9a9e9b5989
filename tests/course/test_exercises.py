"""Every exercise: its solution passes, each of its mistakes is told from the others and told what it is."""

import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from examples.elmo import lstm, lstm_backward
from examples.word2vec import negative_sampling, negative_sampling_backward
from minibert import BertConfig, BertForPreTraining, BertTokenizer, ops
from minibert.course import EXERCISES, check
from minibert.course.exercise import Exercise, Mistake
from minibert.course.exercises import (
    n00_start_here,
    n07_wordpiece,
    n18_real_weights,
    n19_applications,
    n20_your_bert,
    n21_where_bert_comes_from,
    n22_what_mattered,
    n27_parity,
)
from minibert.gradcheck import RELATIVE_BOUND
from minibert.tasks.metrics import recall_at
from minibert.text.learn import learn_vocabulary
from minibert.text.normalise import ASCII_PUNCTUATION

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
    assert result.hints == [f"Recognised: {mistake.hint}"]


def test_hints_for_some_outputs_name_them(exercise):
    for names, hints in exercise.hints_for.items():
        assert set(names.split()) <= set(exercise.outputs) and len(hints) == 3


ODD = [None, 1, True, 2.5, "x", [], {}, (), np.zeros(0), np.zeros((3, 4, 6), dtype=object), np.array("x"), 1j]


def test_nothing_that_is_returned_breaks_the_judge(exercise):
    """Run All has to reach the end of a notebook, whatever stands in it."""
    count = len(exercise.outputs)
    for value in ODD:
        for answer in (value, [value] * count, (value,) * count, (value,) * (count + 1)):
            assert not check(exercise.name, lambda *arguments, answer=answer: answer).passed
    assert not check(exercise.name, lambda *arguments: arguments[:count]).passed
    assert not check(exercise.name, lambda *arguments: list(arguments)).passed


@pytest.mark.parametrize(
    "subtracted",
    [
        lambda x: x.mean(axis=-1, keepdims=True),
        lambda x: x.min(axis=-1, keepdims=True),
        lambda x: x[..., :1],
    ],
    ids=["mean", "minimum", "first"],
)
def test_only_the_maximum_brings_every_row_of_scores_down(subtracted):
    def softmax(x):
        e = np.exp(x - subtracted(x))
        y = e / e.sum(axis=-1, keepdims=True)
        return y, (y,)

    with np.errstate(over="ignore", invalid="ignore"):
        assert not check("03.softmax", softmax).passed


@pytest.mark.parametrize(
    "subtracted",
    [lambda logits: logits.mean(axis=-1, keepdims=True), lambda logits: logits.max()],
    ids=["mean", "maximum of all rows"],
)
def test_only_the_maximum_of_its_row_keeps_a_loss_finite(subtracted):
    def cross_entropy(logits, labels, weights, denominator):
        shifted = logits - subtracted(logits)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        loss = (weights * -log_p[np.arange(len(labels)), labels]).sum() / denominator
        return loss, (log_p, labels, weights, denominator)

    with np.errstate(all="ignore"):
        assert not check("03.cross_entropy", cross_entropy).passed


def test_merged_heads_have_features_and_not_sequences_side_by_side():
    def merge(heads):
        batch, num_heads, length, _ = heads.shape
        return heads.transpose(0, 2, 1, 3).reshape(batch, length, num_heads * batch)

    assert not check("09.merge_heads", merge).passed


def test_gathered_rows_go_back_to_their_places_in_any_order():
    def by_a_mask(drows, cache):
        positions, shape = cache
        rows = np.zeros((shape[0] * shape[1], shape[2]))
        rows[np.isin(np.arange(len(rows)), positions)] = drows  # right only if the positions rise
        return rows.reshape(shape)

    assert not check("11.gather_backward", by_a_mask).passed


def test_clipping_at_1_is_not_clipping_at_clip_norm():
    def clip(dweight, dbias, clip_norm):
        norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
        factor = clip_norm / norm if norm > 1 else 1.0
        return dweight * factor, dbias * factor

    assert not check("13.clip_gradients", clip).passed


def test_epsilon_is_not_the_weight_decay():
    def step(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
        solution = EXERCISES["13.adamw_step"].solution
        return solution(value, grad, mean, variance, step, lr, beta1, beta2, weight_decay, eps)

    assert not check("13.adamw_step", step).passed


def test_a_mark_that_takes_up_space_is_no_accent():
    def every_mark_dropped(text):
        kept = (c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c)[0] != "M")
        marks = set(ASCII_PUNCTUATION)
        return "".join(
            f" {c} " if unicodedata.category(c)[0] == "P" or c in marks else c for c in kept
        ).split()

    assert not check("07.normalise", every_mark_dropped).passed


def test_at_least_three_mistakes_with_names_of_their_own(exercise):
    names = [mistake.name for mistake in exercise.mistakes]
    assert len(set(names)) == len(names) >= 3


def test_the_reference_agrees_with_what_is_independent_of_it(exercise):
    """Held against each other here, so that a learner never is between the two."""
    with ops.reference_only():
        for trial, expected in zip(exercise.trials, exercise.expected, strict=True):
            assert set(trial.independent) <= set(exercise.outputs)
            for name, independent in trial.independent.items():
                output = expected[exercise.outputs.index(name)]
                size = np.linalg.norm(output) + np.linalg.norm(independent)
                assert np.linalg.norm(output - independent) <= RELATIVE_BOUND * size
                assert size > 1e-3  # zero would agree with a gradient that is forgotten


def test_the_model_that_comes_with_the_package_answers_as_00_says():
    model, tokenizer = BertForPreTraining.from_pretrained("mini"), BertTokenizer.from_pretrained("mini")

    def ask(texts):
        return n00_start_here.probabilities_at_mask(model, tokenizer, texts)

    before = ask([n00_start_here.SENTENCE])
    assert before.sum() == pytest.approx(1.0)
    for (what, texts), answer in zip(
        n00_start_here.CHANGES.values(), n00_start_here.predictions.solution(), strict=True
    ):
        moved = np.abs(ask(texts) - before).sum() / 2  # the probability that went elsewhere
        assert moved < 1e-5 if answer == "same" else moved > 0.01, what


def test_merging_again_and_again_learns_the_vocabulary():
    words = n07_wordpiece.CORPORA["hug, pug, pun, bun, hugs"]
    counts = {"".join(token.removeprefix("##") for token in tokens): n for tokens, n in words.items()}
    learned = learn_vocabulary(counts, vocab_size=100, special_tokens=[], min_frequency=1)
    merged = []
    while any(len(tokens) > 1 for tokens in words):
        (left, right), words = n07_wordpiece.merge_once.solution(words)
        merged.append(left + right.removeprefix("##"))
    assert learned[-len(merged) :] == merged


def test_old_names_become_those_of_our_parameters():
    model = BertForPreTraining(BertConfig.preset("tiny", num_hidden_layers=12))
    parameters = {name: parameter.shape for name, parameter in model.named_parameters()}
    for old in n18_real_weights.NAMES:
        name, transposed = n18_real_weights.rename.solution(old)
        assert name in parameters
        assert not transposed or len(parameters[name]) == 2


def only_at_distance_one(probabilities, mask, offset):
    real = mask[:, 1:] * mask[:, :-1]
    weights = np.diagonal(probabilities, offset, axis1=2, axis2=3)
    return (weights * real[:, None]).sum(axis=(0, 2)) / real.sum()


def only_for_eight_threads(values):
    rounds = []
    for distance in (4, 2, 1):
        values = values + values[np.arange(8) ^ distance]
        rounds.append(values)
    return np.stack(rounds)


def only_one_table(old):
    name, transposed = n18_real_weights.rename.solution(old)
    ending = "" if old.endswith("token_type_embeddings") else ".weight"
    return name.removesuffix(".weight") + ending if old.endswith("_embeddings") else name, transposed


def an_ending_for_every_table(old):
    name, transposed = n18_real_weights.rename.solution(old)
    return name + ".weight" * old.endswith("embeddings.weight"), transposed


def all_batches(parameters, batches, num_heads, steps, peak, warmup):
    """Would never come to an end where the batches do not."""
    losses, _ = n20_your_bert.train(parameters, batches, num_heads, len(batches), peak, warmup)
    _, parameters = n20_your_bert.train(parameters, batches, num_heads, steps, peak, warmup)
    return losses, parameters


def number_by_number(ours, theirs, bound):
    far = (p for p in theirs if not np.allclose(ours[p], theirs[p], rtol=bound, atol=0))
    return next(far, n27_parity.NOWHERE)


@pytest.mark.parametrize(
    "name, answer",
    [
        ("16.offset_score", only_at_distance_one),
        ("17.sum_row", only_for_eight_threads),
        ("18.rename", only_one_table),
        ("18.rename", an_ending_for_every_table),
        ("20.train_bert", all_batches),
        ("27.first_difference", number_by_number),
    ],
)
def test_what_is_right_only_in_some_cases_does_not_pass(name, answer):
    assert not check(name, answer).passed


def test_one_side_of_a_permutation_test_gets_a_hint_that_is_true_of_it():
    def one_side(differences):
        sums = n22_what_mattered.all_signs(len(differences)) @ differences
        return (sums >= abs(differences.sum())).mean()

    assert any("only one side is counted" in hint for hint in check("22.permutation_test", one_side).hints)


def mean_of_means(sums, counts):
    with np.errstate(invalid="ignore"):  # 0 / 0, of the rank without tokens
        return (sums / counts[:, None]).mean(axis=0)


def the_largest(ours, theirs, bound):
    where, most = n27_parity.NOWHERE, bound
    for place in theirs:
        far = np.linalg.norm(ours[place] - theirs[place]) / np.linalg.norm(theirs[place])
        if far > most:
            where, most = place, far
    return where


def gamma_and_beta_kept(old):
    name, transposed = n18_real_weights.rename.solution(old)
    for today, then in (("weight", "gamma"), ("bias", "beta")):
        name = name.removesuffix(today) + then if old.endswith(then) else name
    return name, transposed


def gradient_of_the_probabilities(dout, cache):
    p, q, temperature = cache
    return dout * temperature**2 / len(p) * -q / p


@pytest.mark.parametrize(
    "name, answer, mistake",
    [
        ("18.rename", gamma_and_beta_kept, "gamma and beta kept"),
        ("24.soft_target_backward", gradient_of_the_probabilities, "gradient of the probabilities"),
        ("25.mean_gradient", mean_of_means, "mean of means"),
        ("27.first_difference", the_largest, "where it is largest"),
    ],
)
def test_a_mistake_is_recognised_as_people_write_it(name, answer, mistake):
    assert check(name, answer).mistakes == [mistake]


def test_recall_at_k_is_that_of_the_metrics():
    for trial in EXERCISES["19.recall_at_k"].trials:
        scores, right, k = trial.arguments.values()
        ours = n19_applications.recall_at_k.solution(scores, right, k)
        assert ours == recall_at(n19_applications.ranks(scores, right).tolist(), k)


def test_skip_gram_is_that_of_the_example():
    rng = np.random.default_rng(0)
    words, contexts = rng.normal(size=(2, 6, 4))
    centres, targets = np.array([0, 3, 3]), np.array([[1, 2, 5], [4, 1, 1], [2, 0, 4]])
    loss, cache = n21_where_bert_comes_from.skip_gram(words, contexts, centres, targets)
    theirs, their_cache = negative_sampling(words, contexts, centres, targets)
    assert loss == pytest.approx(theirs)
    ours = n21_where_bert_comes_from.skip_gram_backward.solution(0.7, cache)
    for table, (rows, gradient) in zip(ours, negative_sampling_backward(0.7, their_cache), strict=True):
        np.testing.assert_allclose(table[rows], gradient)
        assert not np.delete(table, rows, axis=0).any()


def test_steps_of_the_lstm_are_the_lstm_of_the_example():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(3, 2, 4)), [rng.normal(size=shape) for shape in ((12, 4), (12, 3), (12,))]
    y, whole = lstm(x, np.ones((3, 2)), *weights)
    state = cell = np.zeros((2, 3))
    caches = []
    for token, there in zip(x, y, strict=True):
        state, cell, cache = n21_where_bert_comes_from.lstm_step(token, state, cell, *weights)
        np.testing.assert_allclose(state, there)
        caches.append(cache)

    dout = rng.normal(size=y.shape)
    dstate, dcell = np.zeros((2, 2, 3))
    dx, dweights = [], []
    for d, cache in zip(dout[::-1], caches[::-1], strict=True):
        token, dstate, dcell, *rest = n21_where_bert_comes_from.lstm_step_backward.solution(
            dstate + d, dcell, cache
        )
        dx.insert(0, token)
        dweights.append(rest)
    ours = [np.array(dx), *(sum(parts) for parts in zip(*dweights, strict=True))]
    for mine, theirs in zip(ours, lstm_backward(dout, whole), strict=True):
        np.testing.assert_allclose(mine, theirs)


def test_exercises_stand_in_the_order_of_the_course():
    assert list(EXERCISES) == sorted(EXERCISES, key=lambda name: name.split(".")[0])


def test_the_page_of_the_course_counts_exercises_and_mistakes():
    page = (Path(__file__).parents[2] / "notebooks" / "README.md").read_text(encoding="utf-8")
    counted = {
        f"{notebook}.{name}": int(count)
        for notebook, row in re.findall(r"^\| (\d\d) \| (.+) \|$", page, re.MULTILINE)
        for name, count in re.findall(r"`(\w+)` (\d+)", row)
    }
    assert counted == {name: len(exercise.mistakes) for name, exercise in EXERCISES.items()}
    assert f"{len(EXERCISES)} exercises, and {len(MISTAKES)} mistakes" in page
