"""Which words led to the answer: each method against a computation of another kind."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from small_subjects import KINDS, OTHER, SIZES, TEXT, TOKENIZER, open_small

from minibert.arrays import to_numpy
from minibert.bert import BertConfig
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.explore.attributions import pass_at
from minibert.explore.changes import Added
from minibert.explore.explain import BASELINES, Settings, explain
from minibert.explore.passes import encode, run
from minibert.explore.subjects import Numbers, Similar, Words, open_subject
from minibert.heads import BertForSequenceClassification, BertForTokenClassification
from minibert.nn import Context, observed_backward
from minibert.tasks.classify import Classify
from minibert.tasks.tag import Tag, TagOptions
from minibert.text import BertTokenizer, RobertaTokenizer
from minibert.variants.roberta import RobertaConfig, RobertaForTokenClassification

# -- By hand, on F = (Σ wᵀx)ᵏ ------------------------------------------------------------------------


class PowerOfSum:
    """A model that gives a text the number (Σ wᵀx)ᵏ, x being the rows of a table."""

    def __init__(self, power):
        rng = np.random.default_rng(0)
        self.table, self.w = rng.normal(size=(len(TOKENIZER), 4)), rng.normal(size=4)
        self.power, self.device = power, resolve_device("cpu")
        self.config = SimpleNamespace(vocab_size=len(TOKENIZER))

    def eval(self):
        pass

    zero_grad = eval

    def forward(self, input_ids, token_type_ids, context):
        x, seen = context.observe("embeddings", self.table[input_ids])  # (1, S, 4)
        total = (x @ self.w).sum()
        return SimpleNamespace(logits=np.array([[total**self.power]])), (seen, total, x.shape)

    def backward(self, cache, dlogits):
        seen, total, shape = cache
        slope = dlogits[0, 0] * self.power * total ** (self.power - 1)
        observed_backward(np.broadcast_to(slope * self.w, shape), seen)


@pytest.mark.parametrize(("kind", "nothing"), [("mask", "[MASK]"), ("pad", "[PAD]"), ("zero", None)])
def test_a_linear_model_by_hand(kind, nothing):
    """F = Σ wᵀx: the share of a word is wᵀ(x − b), whatever the path, and the sum is the difference."""
    model = PowerOfSum(1)
    told = explain(Numbers(model, TOKENIZER), "a fine film", settings=Settings(baseline=kind, steps=1))
    x = model.table[[TOKENIZER.vocab[word] for word in ("a", "fine", "film")]]
    b = 0.0 if nothing is None else model.table[TOKENIZER.vocab[nothing]]
    np.testing.assert_allclose(told.integrated, (x - b) @ model.w)
    np.testing.assert_allclose(told.gradient, x @ model.w)
    np.testing.assert_allclose(told.left_out, (x - model.table[TOKENIZER.mask_id]) @ model.w)
    around = model.table[[TOKENIZER.cls_id, TOKENIZER.sep_id]] @ model.w
    assert told.value == pytest.approx((x @ model.w).sum() + around.sum())
    assert told.below == pytest.approx(told.value - ((x - b) @ model.w).sum())
    assert told.total == pytest.approx(told.value - told.below) and told.relative_gap < 1e-12


def test_removed_words_by_hand():
    model = PowerOfSum(1)
    told = explain(Numbers(model, TOKENIZER), "a fine film", settings=Settings(leave_out="remove"))
    x = model.table[[TOKENIZER.vocab[word] for word in ("a", "fine", "film")]]
    np.testing.assert_allclose(told.left_out, x @ model.w)


def test_the_gap_is_that_of_the_integral():
    """F = s³, s from s₀ to s₁: one node gives 3 m² (s₁ − s₀), with m in the middle; two are exact."""
    subject = Numbers(PowerOfSum(3), TOKENIZER)
    one, two = (explain(subject, "a fine film", settings=Settings(steps=steps)) for steps in (1, 2))
    s1, s0 = np.cbrt(one.value), np.cbrt(one.below)
    expected = 3 * ((s0 + s1) / 2) ** 2 * (s1 - s0)
    assert one.total == pytest.approx(expected)
    assert one.gap == pytest.approx(expected - (s1**3 - s0**3))
    assert one.relative_gap == pytest.approx(abs(one.gap / (s1**3 - s0**3))) and one.relative_gap > 0.01
    assert two.relative_gap < 1e-12


def test_a_model_of_nan_has_no_explanation():
    model = PowerOfSum(1)
    model.w[0] = np.nan
    with pytest.raises(
        UserError, match="the loss is no number any more; take a model whose weights are numb"
    ):
        explain(Numbers(model, TOKENIZER), "a fine film")


# -- Every kind of head ------------------------------------------------------------------------------


@pytest.fixture(params=[*KINDS, "words"])
def opened(request, tmp_path, device):
    """A subject of each kind, a text, and the second one that it is asked about, if there is one."""
    if request.param == "words":
        return open_subject("mini", dtype="float64", device=device), "the capital of france is [MASK] .", None
    return open_small(request.param, tmp_path, device=device), TEXT, KINDS[request.param][-1]


def question_of(subject, text, second):
    sentence = subject.encode(text, second)
    return sentence, subject.ask(sentence, subject.telling_place(sentence), None)


def test_shares_add_up_and_say_what_they_explain(opened):
    subject, text, second = opened
    told = explain(subject, text, second, settings=Settings(steps=60))
    sentence, question = question_of(subject, text, second)
    loss = run(subject.model, sentence, question, backward=False).loss
    if not isinstance(subject, Numbers):
        assert told.value == pytest.approx((0 if told.answer else 1) - loss)
    else:
        assert told.value == pytest.approx(loss)
    assert told.relative_gap < 1e-3 and told.value != told.below
    assert told.integrated.sum() == pytest.approx(told.total)  # special tokens are the same in both
    read = text if second is None or isinstance(subject, Similar) else f"{text} {second}"
    assert [part.text for part in told.parts] == read.split()
    assert json.loads(json.dumps(told.to_dict(), allow_nan=False))["measure"] == told.measure


def test_gradient_times_input_is_the_central_difference_along_the_embedding(opened):
    """d/dh F((1 + h) x) at h = 0, where only the word's embeddings x are made longer."""
    subject, text, second = opened
    told = explain(subject, text, second, settings=Settings(steps=1))
    sentence, question = question_of(subject, text, second)
    found = run(subject.model, sentence, question)
    name, h = next(iter(found.values)), 1e-5
    numeric = []
    for part in told.parts:
        losses = []
        for sign in (1, -1):
            x = found.values[name].copy()
            x[list(part.places)] *= 1 + sign * h
            losses.append(pass_at(subject.model, found, name, x).loss)
        numeric.append(subject.sign * (losses[0] - losses[1]) / (2 * h))
    np.testing.assert_allclose(told.gradient, numeric, rtol=1e-6, atol=1e-9 * np.abs(numeric).max())


def test_leaving_a_word_out_is_asking_about_the_text_without_it(tmp_path):
    subject = open_small("labels", tmp_path)
    words = TEXT.split()

    def ln_p(text):
        logits = to_numpy(subject.model.forward(**TOKENIZER([text]))[0].logits)[0]
        return logits - np.log(np.exp(logits).sum())

    whole = ln_p(TEXT)
    best = whole.argmax()
    for how, mask in (("mask", ["[MASK]"]), ("remove", [])):
        told = explain(subject, TEXT, settings=Settings(leave_out=how, steps=1))
        texts = [" ".join([*words[:i], *mask, *words[i + 1 :]]) for i in range(len(words))]
        np.testing.assert_allclose(told.left_out, [whole[best] - ln_p(text)[best] for text in texts])


@pytest.mark.parametrize("kind", ["tags", "spans"])
def test_a_question_moves_with_its_word_when_another_is_removed(kind, tmp_path):
    subject, second = open_small(kind, tmp_path), KINDS[kind][-1]
    word = {"word": 3} if kind == "tags" else {}
    told = explain(subject, TEXT, second, settings=Settings(leave_out="remove", steps=1), **word)
    shorter = TEXT.removeprefix("who ")
    sentence = subject.encode(shorter, second)
    if kind == "tags":
        question = subject.ask(sentence, 2, told.answer)
        assert np.isnan(told.left_out[2]), "the word itself cannot be removed"
    else:
        _, question = question_of(subject, TEXT, second)
        asked = [word.places[0] for word in subject.encode(TEXT, second).words]
        ends = {asked.index(question.start), asked.index(question.end)}
        assert set(np.flatnonzero(np.isnan(told.left_out))) == ends
        question = dataclasses.replace(question, start=question.start - 1, end=question.end - 1)
    without = run(subject.model, sentence, question, backward=False).loss
    assert told.left_out[0] == pytest.approx(told.value + without)


# -- Which words, which question ---------------------------------------------------------------------


def test_words_are_their_pieces_together():
    subject, text = open_subject("mini"), "unhappily the [MASK] looked out"
    words = explain(subject, text, settings=Settings(steps=2))
    pieces = explain(subject, text, settings=Settings(steps=2, pieces=True))
    assert [part.text for part in pieces.parts][:2] == ["unhapp", "ily"]
    assert [(p.text, p.start, p.stop) for p in words.parts][:2] == [("unhappily", 0, 9), ("the", 10, 13)]
    for method, weights in words.methods.items():
        if method != "left out":
            assert weights[0] == pytest.approx(pieces.methods[method][:2].sum(), rel=1e-4)
    hidden = subject.encode("[MASK][MASK] the [MASK] looked out")
    question = subject.ask(subject.encode(text), None, words.answer)
    loss = run(subject.model, hidden, question, names=[], backward=False).loss
    assert words.left_out[0] == pytest.approx(words.value + loss, rel=1e-4)
    assert "pieces" in pieces.to_dict() and words.to_dict()["words"][2]["left_out"] is None


def test_a_target_and_a_word_of_ones_own():
    subject, text = open_subject("mini"), "the capital of [MASK] is [MASK] ."
    told = explain(subject, text, word=6, target="paris", settings=Settings(steps=1))
    assert (told.asked.start, told.answer, told.measure) == (25, "paris", "ln p(paris)")
    assert told.p == pytest.approx(np.exp(told.value), rel=1e-4)
    seen = explain(subject, text, word=2, settings=Settings(steps=1))
    assert seen.asked.text == "capital" and seen.answer == "capital"
    pair = explain(subject, "she opened the door .", "then she went out .", settings=Settings(steps=1))
    assert pair.answer.startswith("it ") and [part.source for part in pair.parts] == [0] * 5 + [1] * 5


def tagger(folder, crf):
    names = ["O", "B-person", "I-person"]
    task = Tag(TOKENIZER, TagOptions(max_length=16, crf=crf), names)
    config = BertConfig(**SIZES, id2label=dict(enumerate(names)))
    model = BertForTokenClassification(config, crf=crf, seed=3)
    if crf:
        for name, parameter in model.named_parameters():
            if "transitions" in name:
                parameter.value[...] = np.random.default_rng(5).normal(size=parameter.shape) * 4
    task.save(model, folder)
    return task, model


@pytest.mark.parametrize("crf", [False, True])
def test_the_tag_that_is_explained_is_the_one_that_the_model_gives(tmp_path, crf):
    task, model = tagger(tmp_path, crf)
    subject, place = open_subject(tmp_path), SimpleNamespace(line=1)
    [given] = task.predict(model, [task.example(TEXT, None, place)])
    told = [explain(subject, TEXT, word=i, settings=Settings(steps=1)) for i in range(1, 5)]
    kinds = [tag[2:] for tag in given]  # an I- that continues nothing is read as B-
    assert [each.answer[2:] for each in told] == kinds
    entities = [each for each in told if each.answer != "O"]
    usual = explain(subject, TEXT, settings=Settings(steps=1))
    assert usual.value == pytest.approx(max(each.value for each in entities or told))


def test_what_a_crf_says_is_said_of_the_changed_pass(tmp_path):
    task, model = tagger(tmp_path, crf=True)
    model.classifier.weight.value *= 50  # so that a word's scores matter beside those of transitions
    task.save(model, tmp_path)
    subject = open_subject(tmp_path)
    sentence = subject.encode(TEXT)
    places = [word.places[0] for word in sentence.words]
    chosen = np.zeros((1, len(sentence)), bool)
    chosen[0, places] = True
    rng, seen = np.random.default_rng(7), set()
    for _ in range(5):
        change = Added("bert.embeddings", rng.normal(size=(1, len(sentence), SIZES["hidden_size"])))
        context = Context(observer=change)
        logits = model.forward(**sentence.batch, context=context)[0].logits
        tags = model.best_tags(logits, chosen)[0][places].tolist()
        assert [subject.ask(sentence, place, None, [change]).answer for place in places] == tags
        seen.add(tuple(tags))
    assert len(seen) > 1


def test_a_tagger_reads_words_as_its_task_does(tmp_path):
    """The first word, too, has a space before it; what is a word, the spaces say."""
    tokenizer = RobertaTokenizer.train(["ann lee sings in rome ."] * 5, vocab_size=275)
    config = RobertaConfig(
        **SIZES | {"vocab_size": len(tokenizer)}, id2label={0: "O", 1: "B-x"}, pad_token_id=1
    )
    task = Tag(tokenizer, TagOptions(max_length=32), ["O", "B-x"])
    task.save(RobertaForTokenClassification(config), tmp_path)
    subject = open_subject(tmp_path)
    sentence = subject.encode("ann  sings.")
    (feature,) = task.features([task.example("ann  sings.", None, None)], training=False)
    np.testing.assert_array_equal(sentence.input_ids, feature.inputs["input_ids"])
    assert [(word.text, word.start, word.stop) for word in sentence.words] == [
        ("ann", 0, 3),
        ("sings.", 5, 11),
    ]
    assert "".join(piece.text for piece in sentence.pieces) == "annsings."
    told = [explain(subject, "ann  sings.", settings=Settings(kind, steps=1)).nothing for kind in BASELINES]
    assert told == ["<mask>", "<pad>", "0"]  # as this tokenizer calls them


def test_a_long_passage_is_read_in_the_window_with_the_answer(tmp_path):
    subject = open_small("spans", tmp_path)
    task, passage = subject.task, " ".join(f"{OTHER} lee is in a bad film ." for _ in range(4))
    subject.task.options = task.options.replace(stride=10)
    told = explain(subject, TEXT, passage, settings=Settings(steps=1))
    [best] = task.predict(subject.model, [task.example(TEXT, passage, SimpleNamespace(line=1))])
    assert len(subject.encode(TEXT, passage)) <= 32 < len(TOKENIZER.tokenize(passage))
    assert told.answer == best.answers[0].text
    parts = [part for part in told.parts if part.source == 1]
    assert all(passage[part.start : part.stop] == part.text for part in parts)
    assert parts[0].start <= best.answers[0].start and best.answers[0].stop <= parts[-1].stop


def test_answers_are_parts_of_the_passage_as_it_is_written(tmp_path):
    subject, passage = open_small("spans", tmp_path), "ANN is in a BAD film, a FINE film."
    sentence = subject.encode(TEXT, passage)
    found = run(subject.model, sentence, subject.ask(sentence, None, None))
    shown = [best["token"] for best in subject.best(found, 100)]
    assert len(set(shown)) > 20 and all(text in passage for text in shown)


def test_a_long_text_is_cut_as_its_task_cuts_it(tmp_path):
    config = BertConfig(**SIZES, id2label={0: "bad", 1: "fine"})
    task = Classify(TOKENIZER, Classify.Options(max_length=6), ["bad", "fine"])
    task.pairs = False
    task.save(BertForSequenceClassification(config), tmp_path)
    subject = open_subject(tmp_path)
    with pytest.warns(UserWarning, match="only the first 6 tokens are read: 'who sings in rome"):
        told = explain(subject, f"{TEXT} {OTHER}", settings=Settings(steps=1))
    assert [part.text for part in told.parts] == TEXT.split()
    with pytest.raises(UserError, match="this model was trained on single texts"):
        explain(subject, TEXT, OTHER)


def test_offsets_are_those_of_the_text():
    tokenizer = BertTokenizer.from_pretrained("mini")
    first, second = "Unhappily,  the  CAFÉ", "is  [MASK]."
    for part in encode(tokenizer, first, second).words:
        assert (first, second)[part.source][part.start : part.stop] == part.text
    assert [part.text for part in encode(tokenizer, first, second).words] == [
        *("Unhappily", ",", "the", "CAFÉ", "is", "[MASK]", ".")
    ]


# -- What cannot be explained ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "asked", "message"),
    [
        ("labels", {"target": "blue"}, "there is no answer 'blue'; the model knows bad, fine, so"),
        ("labels", {"word": 1}, "answers for the whole text, not for each word"),
        ("tags", {"word": 5}, "there is no word 5; the text has 4, counted from 1"),
        ("tags", {"second": OTHER}, "words are tagged in one text"),
        ("number", {"target": "1"}, "this model's answer cannot be chosen"),
        ("spans", {}, "a question is answered from a passage"),
        ("similarity", {}, "compares two texts"),
    ],
)
def test_questions_that_there_are_not(tmp_path, kind, asked, message):
    with pytest.raises(UserError, match=message):
        explain(open_small(kind, tmp_path), TEXT, **asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"baseline": "x"}, "baseline is 'x'; expected one of mask, pad, zero"),
        ({"leave_out": "x"}, "leave_out is 'x'; expected one of mask, remove"),
        ({"steps": 0}, "steps is 0; the integral needs 1 to 1000"),
        ({"steps": 100_000}, "steps is 100000; the integral needs 1 to 1000"),
    ],
)
def test_settings_that_there_are_not(settings, message):
    with pytest.raises(UserError, match=message):
        Settings(**settings)


def test_nothing_is_hidden():
    subject = open_subject("mini")
    assert isinstance(subject, Words)
    with pytest.raises(UserError, match="no word is hidden in 'ann sings'"):
        explain(subject, "ann sings")
    with pytest.raises(UserError, match="'parisparis' is not a token of the vocabulary"):
        explain(subject, "ann [MASK]", target="parisparis")
