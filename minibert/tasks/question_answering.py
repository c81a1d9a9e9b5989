"""The answer to a question, as a span of a passage, or "no answer" (SQuAD v1.1 and v2.0)."""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.data.tasks import (
    Faults,
    Place,
    Question,
    QuestionWindow,
    question_windows,
    read_squad,
    split_articles,
)
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError
from minibert.heads import BertForQuestionAnswering
from minibert.settings import setting
from minibert.tasks.metrics import best_null_threshold, squad_scores
from minibert.tasks.task import Task, TaskOptions
from minibert.text import PretrainedTokenizer

FARTHEST = 1e9  # beyond any difference of two scores: JSON has no infinity

# -- The best spans ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerSpan:
    """Characters ``start`` to ``stop`` of a passage; ``score`` is start logit + end logit."""

    text: str
    start: int
    stop: int
    score: float


@dataclass(frozen=True)
class WindowScores:
    """A window of S tokens, and the model's scores for an answer to begin and to end at each of them."""

    window: QuestionWindow
    start_logits: np.ndarray  # (S,) float64
    end_logits: np.ndarray  # (S,) float64

    @property
    def null_score(self) -> float:
        """The score of [CLS], which stands for "no answer"."""
        place = self.window.cls_place
        return float(self.start_logits[place] + self.end_logits[place])

    def span_scores(self, max_answer: int) -> np.ndarray:
        """(S, max_answer): at [i, k] the score of tokens i to i + k, −∞ where they cannot be an answer.

        Both ends must lie in the passage, and the first token must have its max context in this window.
        """
        window, no = self.window, -np.inf
        starts = np.where(window.max_context, self.start_logits, no)  # (S,)
        ends = np.where(window.spans[:, 0] >= 0, self.end_logits, no)  # (S,)
        ends = np.pad(ends, (0, max_answer - 1), constant_values=no)
        return starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_answer)

    def ranked(self, max_answer: int) -> Iterator[tuple[float, int, int]]:
        """All possible answers as (score, start, stop) in characters, the best first."""
        scores = self.span_scores(max_answer)
        for place in np.argsort(-scores, axis=None, kind="stable"):
            first, more = divmod(int(place), max_answer)
            if scores[first, more] == -np.inf:
                return
            yield float(scores[first, more]), *self.window.answer_span(first, first + more)


def best_answers(
    passage: str, windows: Iterable[WindowScores], *, n_best: int = 20, max_answer: int = 30
) -> list[AnswerSpan]:
    """The best answers in the windows of a passage, best first, each text once; none if there is no word.

    An answer has at most ``max_answer`` tokens. Of equally good ones, the one in the earlier window comes
    first, then the one that begins earlier, then the shorter one.

    Source: Devlin et al. 2019, section 4.2; write_predictions in google-research/bert, run_squad.py, which
    looks only at pairs of a window's ``n_best`` best starts and ``n_best`` best ends.
    """
    ranked = heapq.merge(*(window.ranked(max_answer) for window in windows), key=lambda found: -found[0])
    answers: dict[str, AnswerSpan] = {}
    for score, start, stop in ranked:
        text = passage[start:stop]
        if text.strip():  # RoBERTa's tokens of blanks are no answer
            answers.setdefault(text, AnswerSpan(text, start, stop, score))
        if len(answers) == n_best:
            break
    return list(answers.values())


# -- The task ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerOptions(TaskOptions):
    """How passages are cut into windows, and what may be an answer."""

    max_length: int = setting(
        384, "Task", "tokens per window: the question and a part of its passage", least=8
    )
    stride: int = setting(128, "Task", "tokens from the beginning of one window to the next", least=1)
    max_question: int = setting(64, "Task", "tokens of a question, at most", least=1)
    max_answer: int = setting(30, "Task", "tokens of an answer, at most", least=1)
    n_best: int = setting(20, "Task", "answers to report per question, at most", least=1)
    null_threshold: float | None = setting(
        None,
        "Task",
        'predict "no answer" where its score beats that of the best answer by more than this (default: '
        "never; fine-tuning chooses it if the dev file has questions without an answer)",
    )


@dataclass(frozen=True)
class AnswerPrediction:
    """The best answers to a question, best first, and the score of [CLS], which stands for "no answer"."""

    answers: list[AnswerSpan]
    null_score: float

    @property
    def null_difference(self) -> float:
        """How much better "no answer" scores than the best answer."""
        return self.null_score - self.answers[0].score if self.answers else np.inf


class AnswerQuestions(
    Task[BertForQuestionAnswering, AnswerOptions, Question, QuestionWindow, AnswerPrediction]
):
    """The span of a passage that answers a question."""

    name = "qa"
    Model = BertForQuestionAnswering
    Options = AnswerOptions
    score_names = tuple(
        f"{kind}{name}" for kind in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")
    )
    metric = "f1"
    own_ending = ".json"

    def __init__(
        self, tokenizer: PretrainedTokenizer, options: AnswerOptions | None = None, labels: Sequence[str] = ()
    ):
        super().__init__(tokenizer, options, labels)
        self.threshold_given = self.options.null_threshold is not None

    def _read(self, path: str | Path, labelled: bool, faults: Faults | None) -> list[Question]:
        return read_squad(path, labelled=labelled, faults=faults)

    def example(self, text: str, pair: str | None, place: Place) -> Question:
        """A question and its passage."""
        if pair is None:
            raise Problem("a question without a passage; give both")
        return Question(str(place.line), text, pair, "", ())

    def hold_out(
        self, examples: Sequence[Question], share: float, seed: int
    ) -> tuple[list[Question], list[Question]]:
        """As `Task.hold_out`, but by articles: questions about one passage give each other away."""
        articles = len({question.article for question in examples})
        return split_articles(examples, max(1, round(share * articles)), seed)

    def features(self, examples: Sequence[Question], *, training: bool) -> list[QuestionWindow]:
        """One row per window; see `data.tasks.question_windows`."""
        options = self.options
        return question_windows(
            examples,
            self.tokenizer,
            max_length=options.max_length,
            stride=options.stride,
            max_question=options.max_question,
            training=training,
        )

    def predict(
        self, model: BertForQuestionAnswering, examples: Sequence[Question], batch_size: int = 32
    ) -> list[AnswerPrediction]:
        """The best answers to each question.

        "No answer" is scored by the window where its score is smallest.
        """
        windows = self.features(examples, training=False)
        scored = self.window_scores(model, windows, batch_size)
        return [
            self._prediction(examples[index].passage, list(own))
            for index, own in groupby(scored, key=lambda scores: scores.window.example)
        ]

    def window_scores(
        self, model: BertForQuestionAnswering, windows: Sequence[QuestionWindow], batch_size: int
    ) -> list[WindowScores]:
        """The model's scores of each window, in their order."""
        scored: list[Any] = [None] * len(windows)
        for rows, output in self.outputs(model, windows, batch_size):
            starts, ends = (
                to_numpy(logits).astype(np.float64) for logits in (output.start_logits, output.end_logits)
            )  # (B, S)
            for row, start, end in zip(rows, starts, ends, strict=True):
                window = windows[row]
                scored[row] = WindowScores(window, start[: len(window)], end[: len(window)])
        return scored

    def _prediction(self, passage: str, windows: Sequence[WindowScores]) -> AnswerPrediction:
        answers = best_answers(
            passage, windows, n_best=self.options.n_best, max_answer=self.options.max_answer
        )
        return AnswerPrediction(answers, min(window.null_score for window in windows))

    def answer(self, prediction: AnswerPrediction) -> str:
        """The text of the answer, "" if there is none."""
        threshold = self.options.null_threshold
        if not prediction.answers or (threshold is not None and prediction.null_difference > threshold):
            return ""
        return prediction.answers[0].text

    def scores(
        self, examples: Sequence[Question], predictions: Sequence[AnswerPrediction]
    ) -> dict[str, float]:
        """Exact match and F1; if some questions have no answer, also for each of the two kinds."""
        return squad_scores(
            _numbered(map(self.answer, predictions)), _numbered(map(_right_answers, examples))
        )

    def scores_for(self, examples: Sequence[Question]) -> tuple[str, ...]:
        """The scores; those of the two kinds only if some questions have no answer."""
        right = _numbered(map(_right_answers, examples))
        return tuple(squad_scores({}, right))

    def calibrate(self, examples: Sequence[Question], predictions: Sequence[AnswerPrediction]) -> None:
        """Choose the ``null_threshold`` with the best F1, if some of these questions have no answer.

        One that the options had from the start stays.
        """
        if self.threshold_given or all(question.answers for question in examples):
            return
        threshold, _ = best_null_threshold(
            _numbered(prediction.null_difference for prediction in predictions),
            _numbered(prediction.answers[0].text if prediction.answers else "" for prediction in predictions),
            _numbered(map(_right_answers, examples)),
        )
        self.options = self.options.replace(null_threshold=float(np.clip(threshold, -FARTHEST, FARTHEST)))

    def record(self, example: Question, prediction: AnswerPrediction) -> dict[str, Any]:
        """The question, its answers if they are known, the predicted one, and the best with probabilities.

        The probabilities are the softmax of the scores of the best answers; "" among them means "no answer".
        """
        best: list[tuple[str, int | None, int | None, float]] = [
            (answer.text, answer.start, answer.stop, answer.score) for answer in prediction.answers
        ]
        if self.options.null_threshold is not None or not best:
            best.append(("", None, None, prediction.null_score))
            best.sort(key=lambda entry: -entry[-1])
        probabilities, _ = ops.softmax(np.array([score for *_, score in best]))
        n_best = [
            {"text": text, "start": start, "stop": stop, "probability": float(probability)}
            for (text, start, stop, _), probability in zip(best, probabilities, strict=True)
        ]
        known = {"answers": _right_answers(example)} if example.answers else {}
        asked = {"id": example.id, "question": example.text, **known}
        return asked | {"prediction": self.answer(prediction), "n_best": n_best}

    def check_own_format(self, examples: Sequence[Question]) -> None:
        """Raise UserError if two questions have the same id."""
        for repeated, times in Counter(question.id for question in examples).most_common(1):
            if times > 1:
                raise UserError(
                    f"{times} questions have the id {repeated!r}, and the answers are written by id; give "
                    "ids of their own, or an output that ends in .jsonl"
                )

    def own_format(self, examples: Sequence[Question], predictions: Sequence[AnswerPrediction]) -> str:
        """The answers by the questions' ids, as the evaluation scripts of SQuAD read them.

        Raises UserError if two questions have the same id.
        """
        self.check_own_format(examples)
        answers = {
            question.id: self.answer(prediction)
            for question, prediction in zip(examples, predictions, strict=True)
        }
        return json.dumps(answers, ensure_ascii=False, indent=2) + "\n"


def _right_answers(question: Question) -> list[str]:
    return [answer.text for answer in question.answers]


def _numbered(values: Iterable[Any]) -> dict[str, Any]:
    """Values by number, as text: two questions may have the same id."""
    return {str(number): value for number, value in enumerate(values)}
