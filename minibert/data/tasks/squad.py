"""Questions about passages, in the JSON of SQuAD v1.1 and v2.0."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibert.data.lines import LONE_SURROGATE, read_lines
from minibert.data.randomness import generator
from minibert.data.tasks.faults import Faults, Problem
from minibert.errors import UserError

MAX_FILE_BYTES = 2**30


@dataclass(frozen=True)
class Answer:
    """The text of an answer, and where it begins in the passage, or None if it is not there."""

    text: str
    start: int | None


@dataclass(frozen=True)
class Question:
    """A question, its passage, and the answers that people gave (none if the passage does not answer it)."""

    id: str
    text: str
    passage: str
    article: str
    answers: tuple[Answer, ...]

    @property
    def content(self) -> tuple[str, ...]:
        """Question and passage: what is the same in questions that occur more than once."""
        return self.text, self.passage


def read_squad(path: str | Path, *, labelled: bool = True, faults: Faults | None = None) -> list[Question]:
    """The questions of a SQuAD file, v1.1 or v2.0, perhaps compressed (``.gz``), in order.

    An answer that is not in the passage where the file says keeps its text, which a prediction may still
    equal, but loses its position, and is noted in ``faults``. Without ``labelled``, answers are ignored.

    Raises UserError, naming the file and the question's id, for parts that are missing, empty or of the wrong
    kind. If ``faults`` skips bad examples, bad questions are left out and counted.
    """
    faults = Faults() if faults is None else faults
    questions: list[Question] = []
    for place, article, paragraph in _paragraphs(path, faults):
        with faults.leave_out(place):
            passage = _text(paragraph, "context")
            for number, entry in enumerate(_list(paragraph, "qas"), start=1):
                with faults.leave_out(f"{place}, question {number}"):
                    questions.append(_question(entry, passage, article, labelled))
    if not questions:
        raise faults.nothing_left(path, "question")
    for question in questions:
        for answer in question.answers:
            if answer.start is None:
                faults.note(
                    f"{path}: question {question.id}",
                    f"{answer.text!r} is not where the file says it is in the passage",
                )
    return questions


def read_paragraphs(path: str | Path, *, faults: Faults | None = None) -> list[tuple[str, str]]:
    """The paragraphs of a SQuAD file, each with its article's title: (title, text); equal ones once.

    Raises UserError as `read_squad` does; questions are ignored.
    """
    faults = Faults() if faults is None else faults
    titles: dict[str, str] = {}
    for place, article, paragraph in _paragraphs(path, faults):
        with faults.leave_out(place):
            titles.setdefault(_text(paragraph, "context"), article)
    if not titles:
        raise faults.nothing_left(path, "paragraph")
    return [(title, text) for text, title in titles.items()]


def split_articles(
    questions: Sequence[Question], held_out: int, seed: int = 0
) -> tuple[list[Question], list[Question]]:
    """Split questions into those to train on and those to test on, from ``held_out`` random articles.

    No article is on both sides. Raises UserError unless there is at least one article for each.
    """
    articles = list(dict.fromkeys(question.article for question in questions))
    if not 0 < held_out < len(articles):
        raise UserError(
            f"cannot hold out {held_out} of {len(articles)} article(s); give a dev file, or more articles"
        )
    order = generator("articles", seed).permutation(len(articles))
    test = {articles[i] for i in order[:held_out]}
    return (
        [question for question in questions if question.article not in test],
        [question for question in questions if question.article in test],
    )


def _paragraphs(path: str | Path, faults: Faults) -> Iterator[tuple[str, str, Any]]:
    """Where each paragraph of a file is, its article's title, and the paragraph itself."""
    text = "\n".join(read_lines(path, longest=MAX_FILE_BYTES))  # SQuAD's own files are a single line
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}); give a file in SQuAD's format") from None
    with faults.leave_out(str(path)):
        for i, article in enumerate(_list(content, "data"), start=1):
            with faults.leave_out(f"{path}: article {i}"):
                paragraphs = _list(article, "paragraphs")
                title = str(article.get("title", i))
                if LONE_SURROGATE.search(title):
                    raise Problem('"title" holds half a surrogate pair (\\ud800 … \\udfff)')
                for j, paragraph in enumerate(paragraphs, start=1):
                    yield f"{path}: article {i}, paragraph {j}", title, paragraph


def _question(entry: Any, passage: str, article: str, labelled: bool) -> Question:
    answers: list[Answer] = []
    if labelled and not (isinstance(entry, dict) and entry.get("is_impossible") is True):
        answers = [_answer(answer, passage) for answer in _list(entry, "answers")]
        if not answers:
            raise Problem('no answers, and not marked as "is_impossible"')
    return Question(_text(entry, "id"), _text(entry, "question"), passage, article, tuple(answers))


def _answer(entry: Any, passage: str) -> Answer:
    text, start = _text(entry, "text"), entry.get("answer_start")
    if type(start) is not int:
        raise Problem('an answer without "answer_start", a whole number')
    return Answer(text, start if start >= 0 and passage.startswith(text, start) else None)


def _list(value: Any, key: str) -> list:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise Problem(f'expected an object with a list "{key}"')
    return found


def _text(value: Any, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str) or not found.strip():
        raise Problem(f'expected an object with a text "{key}" that is not empty')
    if LONE_SURROGATE.search(found):
        raise Problem(f'"{key}" holds half a surrogate pair (\\ud800 … \\udfff)')
    return found
