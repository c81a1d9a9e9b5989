"""Every kind of head is asked its own question, and all derivatives are right."""

import numpy as np
import pytest
from small_subjects import KINDS, OTHER, SIZES, TEXT, TOKENIZER, open_small

from minibert.arrays import to_numpy
from minibert.bert import BertConfig
from minibert.data.tasks import Place
from minibert.errors import UserError
from minibert.explore.look import look, words
from minibert.explore.passes import run
from minibert.explore.session import Session
from minibert.explore.subjects import open_subject
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.tasks.question_answering import AnswerOptions, AnswerQuestions
from minibert.tasks.similarity import Similarity


@pytest.fixture(params=KINDS)
def opened(request, tmp_path, device):
    """A subject of each kind, and the second text that it is asked about, if there is one."""
    return request.param, open_small(request.param, tmp_path, device=device), KINDS[request.param][-1]


def test_the_answer_is_the_models(opened):
    kind, subject, second = opened
    shown, found = look(subject, subject.encode(TEXT, second))
    batch = TOKENIZER([TEXT], [second] if second and kind != "similarity" else None)
    outputs, _ = subject.model.forward(**batch)
    if kind == "own labels":
        p = 1 / (1 + np.exp(-to_numpy(outputs.logits)[0]))
        np.testing.assert_allclose(found.probabilities, p)
        assert found.loss == pytest.approx(-np.log(p.max())) and shown["guesses"][0]["token"] == (
            f"LABEL_{p.argmax()}"
        )
    elif kind in ("labels", "pairs", "tags"):
        logits = to_numpy(outputs.logits)[0] if kind != "tags" else to_numpy(outputs.logits)[0, 1]
        p = np.exp(logits) / np.exp(logits).sum()
        assert found.loss == pytest.approx(-np.log(p.max()))
        assert shown["guesses"][0]["p"] == pytest.approx(p.max())
        name = (subject.model.config.id2label or {0: "LABEL_0", 1: "LABEL_1"})[int(p.argmax())]
        assert shown["guesses"][0]["token"] == name and shown["measure"] == f"−ln p({name})"
    elif kind in ("number", "numbers"):
        measure = "the number that it gives" if kind == "number" else "the number 'LABEL_0'"
        assert shown["measure"] == measure
        assert found.loss == pytest.approx(float(outputs.logits[0, 0])) and shown["guesses"] == []
    elif kind == "spans":
        start, end = found.question.start, found.question.end
        ends = [to_numpy(x)[0] for x in (outputs.start_logits, outputs.end_logits)]
        p = [np.exp(x) / np.exp(x).sum() for x in ends]
        assert found.loss == pytest.approx(-np.log(p[0][start] * p[1][end])) and start <= end
        inside = range(6, 13)  # the passage: both ends of an answer lie there
        best = max(p[0][a] * p[1][b] for a in inside for b in inside if b >= a)
        assert shown["guesses"][0]["p"] == pytest.approx(best) == p[0][start] * p[1][end]
    else:
        other, _ = subject.model.forward(**TOKENIZER([OTHER]))
        x, y = (to_numpy(o.embeddings)[0] for o in (outputs, other))
        assert found.loss == pytest.approx(1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert len(shown["tokens"]) == len(batch["input_ids"][0]) and shown["lens"] == []


def test_derivatives_and_changes(opened):
    _, subject, second = opened
    session = Session(subject)
    before = session.look(TEXT, second)["loss"]
    changes = [
        {"kind": "head", "layer": 0, "head": 1},
        {"kind": "weight", "layer": 0, "head": 0, "query": 1, "key": 2, "weight": 0.7},
        {"kind": "patch", "name": next(iter(session._found.values)), "token": 2, "text": "a bad film"},
    ]
    for change in changes:
        assert session.look(TEXT, second, changes=[change])["loss"] != before, change
    session.look(TEXT, second, changes=changes)
    for name, derivative in session._found.derivatives.items():
        largest = np.unravel_index(np.abs(derivative).argmax(), derivative.shape)
        for place in ([n // 2 for n in derivative.shape], [int(i) for i in largest]):
            told = session.derivative(name, place)
            assert told["by_hand"] == pytest.approx(told["numeric"], rel=3e-7, abs=1e-11), name


def test_a_short_passage_has_few_spans(tmp_path):
    subject = open_small("spans", tmp_path)
    guesses = look(subject, subject.encode("who sings ?", "ann ."))[0]["guesses"]
    assert sorted(guess["token"] for guess in guesses) == [".", "ann", "ann ."]
    assert all(guess["p"] > 0 for guess in guesses)


def test_the_words_are_weighed(opened):
    _, subject, second = opened
    _, found = look(subject, subject.encode(TEXT, second))
    rows = words(subject, found)
    hidden = rows[0]["values"]
    assert hidden[0] is None and all(isinstance(v, float) for v in hidden[1:5])


@pytest.mark.parametrize(
    ("place", "answer", "message"),
    [
        (None, "blue", "there is no answer 'blue'; the model knows O, B-person"),
        (99, None, "there is no token 99"),
        (1.5, None, "there is no token 1.5"),
    ],
)
def test_answers_and_places_that_there_are_not(tmp_path, place, answer, message):
    BertForTokenClassification(BertConfig(**SIZES, **KINDS["tags"][2])).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    subject = open_subject(tmp_path)
    with pytest.raises(UserError, match=message):
        look(subject, subject.encode(TEXT), place=place, answer=answer)


@pytest.mark.parametrize("options", [{"max_answer": 1}, {"max_length": 16}, {"max_length": 40}])
def test_the_answer_is_the_one_that_is_predicted(tmp_path, options):
    """With the task's longest answer, from one of several windows, and with a [SEP] in the passage."""
    rng = np.random.default_rng(0)
    model = BertForQuestionAnswering(BertConfig(**SIZES), seed=1, dtype="float64")
    for _, parameter in model.named_parameters():
        parameter.value[...] = rng.normal(0, 0.5, parameter.shape)
    task = AnswerQuestions(
        TOKENIZER, AnswerOptions(**{"max_length": 16, "stride": 4, "max_question": 4, **options})
    )
    task.save(model, tmp_path)
    subject = open_subject(tmp_path, dtype="float64")
    for _ in range(20):
        passage = " ".join(rng.choice("ann lee sings is in rome a fine bad film [SEP] who .".split(), 20))
        sentence = subject.encode("who sings ?", passage)
        found = run(subject.model, sentence, subject.ask(sentence, None, None), backward=False)
        example = subject.task.example("who sings ?", passage, Place("a", 1))
        (predicted,) = subject.task.predict(subject.model, [example])
        assert subject.answer(found) == subject.task.answer(predicted)


def test_one_of_several_numbers_is_named(tmp_path):
    subject = open_small("numbers", tmp_path)
    shown, found = look(subject, subject.encode(TEXT), answer="LABEL_1")
    logits = subject.model.forward(**TOKENIZER([TEXT]))[0].logits
    assert (shown["measure"], found.loss) == ("the number 'LABEL_1'", pytest.approx(logits[0, 1]))
    with pytest.raises(UserError, match="there is no answer 'LABEL_2'; the model knows LABEL_0, LABEL_1"):
        look(subject, subject.encode(TEXT), answer="LABEL_2")


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForTokenClassification])
def test_a_head_on_features_is_refused(tmp_path, kind):
    """Only the head has learned: there are no derivatives below it."""
    kind(BertConfig(**SIZES, num_labels=2, feature_layers=[-2, -1]), seed=1).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="was trained with --features: only its head has learned"):
        open_subject(tmp_path)


def test_a_sentence_encoder_needs_two_texts(tmp_path):
    Similarity(TOKENIZER, Similarity.Options(max_length=32)).save(
        SentenceEncoder(BertConfig(**SIZES)), tmp_path
    )
    with pytest.raises(UserError, match="compares two texts"):
        open_subject(tmp_path).encode(TEXT)
