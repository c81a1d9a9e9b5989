"""What the explorer keeps of a pass, its changes and its attributions, held against differences."""

import numpy as np
import pytest

from minibert import BertForPreTraining, BertTokenizer
from minibert.errors import UserError
from minibert.explore.attributions import (
    baseline,
    input_gradients,
    integrated_gradients,
    leave_one_out,
    rollout,
)
from minibert.explore.changes import Added, HeadOff, Patch, PinnedWeight
from minibert.explore.passes import cut_words, encode, hide, run
from minibert.explore.questions import HiddenWord, NextSentence, Span
from minibert.text import RobertaTokenizer

EMBEDDINGS = "bert.embeddings"
LAYER = "bert.encoder.layer.1"
PROBABILITIES = f"{LAYER}.attention.self.probabilities"


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer.from_pretrained("mini")


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining.from_pretrained("mini", dtype="float64")


@pytest.fixture(scope="module")
def sentence(tokenizer):
    return encode(tokenizer, "the capital of france is [MASK] .")


@pytest.fixture(scope="module")
def question(tokenizer):
    return HiddenWord(6, tokenizer.vocab["paris"], tokenizer.mask_id)


@pytest.fixture(scope="module")
def found(model, sentence, question):
    return run(model, sentence, question)


def test_a_pass_holds_the_models_numbers(model, sentence, question, found):
    assert sentence.tokens[6] == "[MASK]"
    outputs, _ = model.forward([sentence.input_ids], return_hidden_states=True, return_attentions=True)
    logits = outputs.prediction_logits[0, 6]
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(found.probabilities, p, rtol=1e-10)
    assert found.loss == pytest.approx(-np.log(p[question.answer]), rel=1e-10)
    for layer, (states, maps) in enumerate(zip(outputs.hidden_states[1:], outputs.attentions, strict=True)):
        np.testing.assert_array_equal(found.values[f"bert.encoder.layer.{layer}"], states[0])
        name = f"bert.encoder.layer.{layer}.attention.self.probabilities"
        np.testing.assert_array_equal(found.values[name], maps[0])
    assert found.values.keys() == found.derivatives.keys()
    assert all(found.values[name].shape == found.derivatives[name].shape for name in found.values)


def difference(model, sentence, question, name, direction, changes=(), h=1e-5):
    """The numeric derivative of the loss along a direction of one value."""
    above, below = (
        run(model, sentence, question, changes=[*changes, Added(name, sign * h * direction)], backward=False)
        for sign in (1, -1)
    )
    return (above.loss - below.loss) / (2 * h)


def test_every_derivative_is_the_numeric_one(model, sentence, question, found):
    rng = np.random.default_rng(0)
    for name, derivative in found.derivatives.items():
        direction = rng.standard_normal(derivative.shape)
        numeric = difference(model, sentence, question, name, direction)
        size = np.linalg.norm(derivative) * np.linalg.norm(direction)
        assert abs((derivative * direction).sum() - numeric) < 1e-7 * size, name


def test_so_is_that_of_a_parameter(model, sentence, question):
    run(model, sentence, question)
    parameter = model.bert.encoder.layer[0].intermediate.dense.weight
    derivative, value = parameter.grad.copy(), parameter.value[3, 5].copy()
    losses = []
    for moved in (value + 1e-4, value - 1e-4):
        parameter.value[3, 5] = moved
        losses.append(run(model, sentence, question, backward=False).loss)
    parameter.value[3, 5] = value
    assert derivative[3, 5] == pytest.approx((losses[0] - losses[1]) / 2e-4, rel=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        HeadOff(f"{LAYER}.attention.self.context", 2, 64),
        PinnedWeight(PROBABILITIES, 1, 6, 4, 0.9),
        PinnedWeight(PROBABILITIES, 1, 6, 4, 0.0),
        Patch(LAYER, (3,), 0.5),
    ],
    ids=["head off", "pinned", "pinned at 0", "patched"],
)
def test_a_changed_pass_has_the_right_derivatives_below_the_change(model, sentence, question, change):
    rng, below = np.random.default_rng(1), f"{LAYER}.attention.self.scores"
    changed = run(model, sentence, question, changes=[change])
    assert changed.loss != run(model, sentence, question, backward=False).loss
    for name in (EMBEDDINGS, below):
        direction = rng.standard_normal(changed.derivatives[name].shape)
        numeric = difference(model, sentence, question, name, direction, [change])
        size = np.linalg.norm(changed.derivatives[name]) * np.linalg.norm(direction)
        assert abs((changed.derivatives[name] * direction).sum() - numeric) < 1e-7 * size, name


def test_what_the_changes_do(model, sentence, question, found):
    context, width = f"{LAYER}.attention.self.context", found.values[f"{LAYER}.attention.self.q"].shape[-1]
    off = run(model, sentence, question, changes=[HeadOff(context, 2, width)]).values[context]
    assert (off[:, 2 * width : 3 * width] == 0).all()
    np.testing.assert_array_equal(off[:, : 2 * width], found.values[context][:, : 2 * width])

    pinned = run(model, sentence, question, changes=[PinnedWeight(PROBABILITIES, 1, 6, 4, 0.25)])
    p, before = pinned.values[PROBABILITIES], found.values[PROBABILITIES]
    assert p[1, 6, 4] == 0.25
    np.testing.assert_allclose(p.sum(axis=-1), 1)
    others = np.delete(np.arange(len(sentence)), 4)
    np.testing.assert_allclose(p[1, 6, others] / before[1, 6, others], 0.75 / (1 - before[1, 6, 4]))
    np.testing.assert_array_equal(np.delete(p[1], 6, 0), np.delete(before[1], 6, 0))


def test_a_row_that_has_nothing_to_share_stays(model, sentence, question):
    """Its softmax is exactly 1 at the key, so the change gives it that weight, and no derivative."""
    change = PinnedWeight("p", 0, 0, 1, 0.5)
    p = np.array([[[[0.0, 1.0], [0.5, 0.5]]]])
    np.testing.assert_array_equal(change.forward("p", p), p)
    assert np.isfinite(change.backward("p", np.ones_like(p))).all()


@pytest.mark.parametrize("gap", [11, 16, 36])
def test_a_row_still_sums_to_1_where_one_weight_was_nearly_all(gap):
    p = np.exp([[[[0.0, -gap, -gap - 1, -gap - 2]]]])
    y = PinnedWeight("p", 0, 0, 0, 0.1).forward("p", p / p.sum())
    assert y.sum() == pytest.approx(1, rel=1e-12)


def test_words_that_are_several_tokens(tokenizer):
    sentence = encode(tokenizer, "unhappily, the [MASK] looked", "unhappily")
    assert sentence.tokens[1:3] == ("unhapp", "##ily")
    assert cut_words(sentence, tokenizer) == [(1, 3, "unhappily"), (8, 10, "unhappily")]


def test_a_special_token_belongs_to_no_word():
    """Of a RoBERTa the first token has no space before it, as if it went on with <s>."""
    text = "a lower tower . a low town . the owl"
    tokenizer = RobertaTokenizer.train([text] * 3, vocab_size=270)
    sentence = encode(tokenizer, "lower <mask> owl")
    tokens, cut = sentence.tokens, cut_words(sentence, tokenizer)
    assert tokens[0] == "<s>" and "<mask>" in tokens
    assert [word.strip() for _, _, word in cut] == ["lower", "owl"]
    assert all(not {"<s>", "<mask>", "</s>"} & set(tokens[start:stop]) for start, stop, _ in cut)


def test_places_of_two_texts_of_a_roberta():
    """Between them it has two special tokens."""
    tokenizer = RobertaTokenizer.train(["a lower tower . the owl"] * 3, vocab_size=270)
    sentence = encode(tokenizer, "the tower", "the owl")
    assert [part.source for part in sentence.words] == [0, 0, 1, 1]
    for part in sentence.words:
        ids = sentence.input_ids[list(part.places)].tolist()
        assert tokenizer.decode(ids).strip() == part.text


def test_a_question_moves_by_the_tokens_before_it_that_are_gone():
    assert HiddenWord(6, 1, 0).without([1, 2, 8]).place == 4
    assert HiddenWord(6, 1, 0).without([1, 6]) is None
    assert Span(3, 6).without([1, 4]) == Span(2, 4)
    assert Span(3, 6).without([6]) is None


def test_integrated_gradients_sum_to_the_difference(model, tokenizer, sentence, found):
    blank = sentence
    for place in (1, 2, 3, 4, 5, 7):
        blank = hide(blank, place, tokenizer)
    below = baseline(model, found, tokenizer, EMBEDDINGS)
    shares = integrated_gradients(model, found, below, EMBEDDINGS, nodes=24)
    difference = run(model, blank, found.question, backward=False).loss - found.loss
    assert shares.shape == (len(sentence),)
    assert shares.sum() == pytest.approx(difference, rel=3e-6)
    np.testing.assert_array_equal(shares[[0, 6, 8]], 0)  # they are the same in both


def test_left_out_words_and_gradients(model, tokenizer, sentence, found):
    lost = leave_one_out(model, found, tokenizer)
    assert np.isnan(lost[[0, 6, 8]]).all() and not np.isnan(lost[[1, 2, 3, 4, 5, 7]]).any()
    without = run(model, hide(sentence, 4, tokenizer), found.question, backward=False)
    assert lost[4] == without.loss - found.loss
    np.testing.assert_allclose(
        input_gradients(found, EMBEDDINGS),
        [-found.derivatives[EMBEDDINGS][i] @ found.values[EMBEDDINGS][i] for i in range(len(sentence))],
    )


def test_rollout(found):
    names = [f"bert.encoder.layer.{i}.attention.self.probabilities" for i in range(4)]
    maps = [found.values[n] for n in names]
    rows = rollout(maps)
    np.testing.assert_allclose(rows.sum(axis=-1), 1)
    half = [0.5 * (np.eye(len(m[0])) + m.mean(axis=0)) for m in maps]
    first_two = half[1] @ half[0]
    expected = [half[0], first_two, half[2] @ first_two, half[3] @ half[2] @ first_two]
    np.testing.assert_allclose(rows, expected)


def test_the_next_sentence(model, tokenizer):
    pair = encode(tokenizer, "she opened the door .", "then she went out .")
    asked = run(model, pair, NextSentence(1))
    assert asked.probabilities.shape == (2,) and asked.loss == pytest.approx(-np.log(asked.probabilities[1]))
    assert np.linalg.norm(asked.derivatives[EMBEDDINGS]) > 0


@pytest.mark.parametrize(
    ("place", "answer", "message"),
    [
        (99, 5, "there is no token 99; the text has 9"),
        (6, 10**6, "there is no answer 1000000; the model knows 8192"),
    ],
)
def test_questions_without_an_answer(model, tokenizer, sentence, place, answer, message):
    with pytest.raises(UserError, match=message):
        run(model, sentence, HiddenWord(place, answer, tokenizer.mask_id))


def test_special_tokens_cannot_be_hidden(tokenizer, sentence):
    with pytest.raises(UserError, match=r"token 0 is \[CLS\]"):
        hide(sentence, 0, tokenizer)
