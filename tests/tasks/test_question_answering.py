import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.bert import BertConfig
from minibert.data.tasks import Answer, Place, Question, question_windows
from minibert.data.tasks.faults import Problem
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.heads import BertForQuestionAnswering
from minibert.heads.outputs import QuestionAnsweringOutput
from minibert.tasks.predict import check_output
from minibert.tasks.question_answering import (
    AnswerOptions,
    AnswerPrediction,
    AnswerQuestions,
    AnswerSpan,
    WindowScores,
    best_answers,
)
from minibert.text import BertTokenizer, RobertaTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = BertTokenizer([*SPECIAL, "who", "?", ",", *"abcdefgh", *("##" + c for c in "abcdefgh")])


def question(passage, *answers, name="q"):
    return Question(
        name, "Who?", passage, "title", tuple(Answer(text, passage.index(text)) for text in answers)
    )


def task(**options):
    return AnswerQuestions(TOKENIZER, AnswerOptions(**options))


def model_of(starts, ends):
    """A model whose logits (B, S) are functions of the token ids (B, S)."""

    def forward(input_ids, **_):
        return QuestionAnsweringOutput(start_logits=starts(input_ids), end_logits=ends(input_ids)), None

    return SimpleNamespace(eval=lambda: None, forward=forward, device=resolve_device("cpu"))


def liking(**tokens):
    """Scores of tokens (those of others are 0): padding has the best of all, but is no token."""

    def logits(input_ids):
        table = np.zeros(len(TOKENIZER))
        for token, score in {"[PAD]": 99, **tokens}.items():
            table[TOKENIZER.vocab[token]] = score
        return table[input_ids]

    return logits


def answer(asked, starts, ends, **options):
    """The answer to one question."""
    qa = task(**options)
    return qa.answer(*qa.predict(model_of(starts, ends), [asked]))


# -- The best spans ----------------------------------------------------------------------------------


def brute_force(passage, windows, n_best, max_answer):
    """Every pair of tokens of every window, as in write_predictions of the original's run_squad.py."""
    found = []
    for of in windows:
        for i in range(len(of.window)):
            for j in range(len(of.window)):
                inside = of.window.spans[i, 0] >= 0 and of.window.spans[j, 0] >= 0
                if inside and of.window.max_context[i] and i <= j < i + max_answer:
                    start, stop = of.window.spans[i, 0], of.window.spans[j, 1]
                    found.append((of.start_logits[i] + of.end_logits[j], start, stop))
    best, seen = [], set()
    for score, start, stop in sorted(found, key=lambda entry: entry[0], reverse=True):
        if passage[start:stop] not in seen and len(best) < n_best:
            seen.add(passage[start:stop])
            best.append(AnswerSpan(passage[start:stop], start, stop, score))
    return best


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ties", [False, True])
def test_the_best_answers_are_those_of_a_brute_force_search(seed, ties):
    rng = np.random.default_rng(seed)
    passage = " ".join("".join(rng.choice(list("abcdefgh"), rng.integers(1, 4))) for _ in range(20))
    windows = question_windows([question(passage)], TOKENIZER, max_length=int(rng.integers(10, 60)), stride=5)

    def draw(window):
        return rng.integers(0, 4, len(window)).astype(float) if ties else rng.normal(size=len(window))

    scored = [WindowScores(window, draw(window), draw(window)) for window in windows]
    n_best, max_answer = int(rng.integers(1, 40)), int(rng.integers(1, 12))
    found = best_answers(passage, scored, n_best=n_best, max_answer=max_answer)
    assert found == brute_force(passage, scored, n_best, max_answer)


def test_of_equal_scores_the_earlier_and_shorter_one_comes_first():
    windows = question_windows([question("a b a")], TOKENIZER, max_length=20)
    scored = [WindowScores(window, np.ones(len(window)), np.ones(len(window))) for window in windows]
    found = best_answers("a b a", scored)
    assert [(answer.text, answer.start) for answer in found] == [
        ("a", 0),
        ("a b", 0),
        ("a b a", 0),
        ("b", 2),
        ("b a", 2),
    ]


def test_blanks_are_no_answer():
    """RoBERTa has tokens of spaces and line ends, some of which stand for no character."""
    tokenizer = RobertaTokenizer.train(["the cat sat on the mat"] * 5, 280)
    passage = "the cat  sat   on\n\nthe mat"
    (window,) = question_windows([question(passage)], tokenizer, max_length=60)
    blanks = [not passage[start:stop].strip() and start >= 0 for start, stop in window.spans]
    assert sum(blanks) > 2
    scores = np.where(blanks, 5.0, 0.0)
    found = best_answers(passage, [WindowScores(window, scores, scores)], n_best=1000)
    assert found and all(answer.text.strip() for answer in found)


# -- Predictions -------------------------------------------------------------------------------------


def test_an_answer_in_the_second_window():
    qa = task(max_length=9, stride=2)  # four tokens of the passage in a window
    asked = [question("a b c d e f g", "e f"), question("h", "h")]
    first, second = qa.predict(model_of(liking(e=5, h=1), liking(f=5, h=1)), asked, batch_size=3)
    assert first.answers[0] == AnswerSpan("e f", 8, 11, 10.0)
    assert (qa.answer(first), qa.answer(second)) == ("e f", "h")
    assert qa.scores(asked, [first, second]) == {"exact_match": 1.0, "f1": 1.0}


def test_windows_are_as_the_options_say():
    qa = task(max_length=9, stride=3, max_question=1)  # [CLS] who [SEP] and five of the passage [SEP]
    windows = qa.features([question("a b c d e f g", "e f")], training=True)
    assert [len(window) for window in windows] == [9, 8]
    assert [window.inputs["start_positions"] for window in windows] == [0, 4]
    assert "start_positions" not in qa.features([question("a", "a")], training=False)[0].inputs


def test_every_question_gets_a_prediction_wherever_its_answers_are():
    """One that has lost its place in the passage teaches nothing, but can be asked."""
    lost = replace(question("a b", "a"), answers=(Answer("a", None),))
    qa = task(n_best=1)
    predictions = qa.predict(model_of(liking(h=1, b=1), liking(h=1, b=1)), [lost, question("h g", "h")])
    assert [qa.answer(prediction) for prediction in predictions] == ["b", "h"]
    assert [len(prediction.answers) for prediction in predictions] == [1, 1]


def test_a_token_begins_answers_only_where_it_has_most_context():
    """All four windows hold d; the second, where it has most, is the only one that does not like it."""
    asked, (b, d, e) = question("a b c d e f g"), (TOKENIZER.vocab[token] for token in "bde")

    def logits(input_ids):
        second_window = input_ids[:, 4:5] == b  # (B, 1)
        return np.where((input_ids == d) & ~second_window, 9.0, np.where(input_ids == e, 1.0, 0.0))

    assert answer(asked, logits, liking(d=1, e=1), max_length=9, stride=1) == "e"


def test_an_answer_lies_in_the_passage_and_not_backwards_and_is_not_too_long():
    asked = question("a b c d e f")
    starts, ends = liking(who=9, a=5, d=4), liking(**{"?": 9, "f": 5, "[SEP]": 9})
    assert answer(asked, starts, ends) == "a b c d e f"
    assert answer(asked, starts, ends, max_answer=3) == "d e f"
    assert answer(asked, liking(e=5, a=1), liking(b=5)) == "a b"


def test_the_text_is_that_of_the_passage():
    asked = question("A  Bc, (d)")
    assert answer(asked, liking(b=5), liking(**{",": 5})) == "Bc,"
    assert answer(asked, liking(a=5), liking(**{"##c": 5})) == "A  Bc"


def test_a_passage_without_tokens_has_no_answer():
    qa, asked = task(), question("\u200b")
    (prediction,) = qa.predict(model_of(liking(), liking()), [asked])
    assert (prediction.answers, qa.answer(prediction), prediction.null_difference) == ([], "", np.inf)
    (only,) = qa.record(asked, prediction)["n_best"]
    assert (only["text"], only["probability"]) == ("", 1.0)
    json.dumps(qa.record(asked, prediction), allow_nan=False)


# -- No answer ---------------------------------------------------------------------------------------


def test_no_answer_has_the_smallest_score_of_all_windows():
    def logits(input_ids):
        scores = np.zeros(input_ids.shape)
        scores[:, 0] = np.where((input_ids == TOKENIZER.vocab["g"]).any(axis=1), 3, 7)  # the last, the others
        return scores

    (prediction,) = task(max_length=9, stride=2).predict(
        model_of(logits, logits), [question("a b c d e f g")]
    )
    assert prediction.null_score == 6
    assert prediction.null_difference == 6


@pytest.mark.parametrize(("threshold", "expected"), [(None, "a"), (-4.0, "a"), (-4.5, ""), (0.0, "a")])
def test_no_answer_needs_more_than_the_threshold(threshold, expected):
    logits = liking(**{"a": 3, "[CLS]": 1})
    assert answer(question("a b"), logits, logits, null_threshold=threshold) == expected


def predicted(null_difference, text="c"):
    return AnswerPrediction([AnswerSpan(text, 0, len(text), 1.0)], null_difference + 1.0)


def test_the_threshold_is_chosen_where_f1_is_best():
    asked = [question("c d", "c"), question("c d"), question("c d", "c"), question("c d")]
    predictions = [predicted(-2.0), predicted(0.5), predicted(-1.0), predicted(2.0)]
    qa = task()
    assert qa.scores(asked, predictions)["f1"] == 0.5
    qa.calibrate(asked, predictions)
    assert qa.options.null_threshold == -1.0
    assert qa.scores(asked, predictions) == {
        f"{kind}{name}": 1.0 for kind in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")
    }
    assert set(qa.scores_for(asked)) == set(qa.score_names)


def test_where_never_answering_is_best_the_threshold_is_a_number_all_the_same():
    qa, asked = task(), [question("c d"), question("c d")]
    predictions = [predicted(-2.0), AnswerPrediction([], 1.0)]
    qa.calibrate(asked, predictions)
    assert [qa.answer(prediction) for prediction in predictions] == ["", ""]
    json.dumps(qa.options.to_dict(), allow_nan=False)


def test_a_threshold_that_was_given_stays():
    qa, asked = task(null_threshold=3.0), [question("c d", "c"), question("c d")]
    qa.calibrate(asked, [predicted(-2.0), predicted(0.5)])
    assert qa.options.null_threshold == 3.0


def test_where_all_have_answers_there_is_no_threshold():
    qa = task()
    qa.calibrate([question("c d", "c")], [predicted(5.0)])
    assert qa.options.null_threshold is None


# -- What is told ------------------------------------------------------------------------------------


def test_a_record_has_the_best_answers_and_their_probabilities():
    qa, asked = task(n_best=2), question("a b", "a")
    prediction = AnswerPrediction([AnswerSpan("a", 0, 1, 2.0), AnswerSpan("a b", 0, 3, 1.0)], 1.5)
    record = qa.record(asked, prediction)
    assert (record["id"], record["prediction"], record["answers"]) == ("q", "a", ["a"])
    assert [entry["text"] for entry in record["n_best"]] == ["a", "a b"]
    e = np.exp([2.0, 1.0])
    assert [entry["probability"] for entry in record["n_best"]] == pytest.approx(e / e.sum())

    assert "answers" not in qa.record(question("a b"), prediction)

    record = task(null_threshold=0.0).record(asked, prediction)
    assert [entry["text"] for entry in record["n_best"]] == ["a", "", "a b"]
    e = np.exp([2.0, 1.5, 1.0])
    assert [entry["probability"] for entry in record["n_best"]] == pytest.approx(e / e.sum())


def test_answers_by_id_are_what_the_evaluation_scripts_read():
    asked = [replace(question("c d"), id="é"), replace(question("c d"), id="2")]
    qa = task(null_threshold=0.0)
    assert qa.own_format(asked, [predicted(0.0), predicted(1.0)]) == '{\n  "é": "c",\n  "2": ""\n}\n'


def test_answers_by_id_need_different_ids():
    asked = [question("c d"), question("c d")]
    with pytest.raises(UserError, match=f"2 questions have the id '{asked[0].id}'"):
        task().own_format(asked, [predicted(0.0), predicted(1.0)])
    with pytest.raises(UserError, match=f"2 questions have the id '{asked[0].id}'"):
        check_output(task(), asked, "answers.json")  # before anything is predicted
    check_output(task(), asked, "answers.jsonl")
    check_output(task(), [], "answers.json")


def test_a_question_is_asked_of_a_passage():
    qa, place = task(), Place("stdin", 3)
    assert qa.example("Who?", "c d", place) == Question("3", "Who?", "c d", "", ())
    with pytest.raises(Problem, match="a question without a passage"):
        qa.example("Who?", None, place)


def test_questions_of_the_same_id_are_scored_each_for_itself():
    qa, asked = task(), [question("c d", "c"), question("c d", "d")]
    assert qa.scores(asked, [predicted(0.0), predicted(0.0)])["exact_match"] == 0.5


# -- With a model ------------------------------------------------------------------------------------


def test_batches_do_not_matter_and_neither_does_the_library(device):
    config = BertConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
    )
    asked = [question("a b c d e f g " * 3), question("a"), question("b, c d")]
    qa = task(max_length=16, stride=4)
    reference = BertForQuestionAnswering(config, dtype="float64", seed=1)
    one_by_one = qa.predict(reference, asked, batch_size=1)
    model = BertForQuestionAnswering(config, device=device, dtype="float64", seed=1)
    together = qa.predict(model, asked, batch_size=5)
    assert not model.training
    for ours, alone in zip(together, one_by_one, strict=True):
        assert [answer.text for answer in ours.answers] == [answer.text for answer in alone.answers]
        assert [answer.score for answer in ours.answers] == pytest.approx([a.score for a in alone.answers])
        assert ours.null_score == pytest.approx(alone.null_score)
