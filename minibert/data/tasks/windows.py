"""Questions about long passages: overlapping windows, and the way back from tokens to characters."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from minibert.data.tasks.features import Feature
from minibert.data.tasks.squad import Question
from minibert.errors import UserError
from minibert.text import PretrainedTokenizer


@dataclass(frozen=True, eq=False)
class QuestionWindow(Feature):
    """[CLS] question [SEP] a part of the passage [SEP]; XLNet's has <cls> at the end.

    spans (S, 2): the characters (start, stop) of each token in the passage; (−1, −1) if it is not from there.
    max_context (S,) bool: of all windows that hold this token, it has the most context in this one.
    cls_place: where [CLS] is, which stands for "no answer".
    """

    spans: np.ndarray
    max_context: np.ndarray
    cls_place: int

    def answer_span(self, start: int, end: int) -> tuple[int, int]:
        """Tokens ``start`` to ``end`` (which is included) as characters (start, stop) of the passage."""
        return int(self.spans[start, 0]), int(self.spans[end, 1])


def question_windows(
    questions: Sequence[Question],
    tokenizer: PretrainedTokenizer,
    *,
    max_length: int = 384,
    stride: int = 128,
    max_question: int = 64,
    training: bool = False,
) -> list[QuestionWindow]:
    """The windows of all questions, in order.

    A question is cut to ``max_question`` tokens. A window begins every ``stride`` tokens of the passage and
    holds as many of them as fit; the last one ends with the passage.

    For training there are ``start_positions`` and ``end_positions``: the first and the last token of the
    first answer that has a position. Both are those of [CLS] in windows that do not hold the whole answer,
    and for questions without one. A question whose answers have all lost their position gives no window for
    training.

    Source: convert_examples_to_features in google-research/bert, run_squad.py, whose answers consist of whole
    words between spaces; here they consist of tokens. Raises UserError for a stride below 1, and for a
    ``max_length`` that leaves no room for the passage.
    """
    if stride < 1:
        raise UserError(f"the stride of windows must be at least 1, got {stride}")
    before, between, after = tokenizer.special_counts(2)
    passage_tokens = lru_cache(maxsize=16)(lambda passage: _tokens_with_spans(tokenizer, passage))
    windows = []
    for index, question in enumerate(questions):
        answers = [
            (answer.start, answer.start + len(answer.text))
            for answer in question.answers
            if answer.start is not None
        ]
        if training and question.answers and not answers:
            continue
        asked = tokenizer.token_ids(question.text)[:max_question]
        ids, spans = passage_tokens(question.passage)
        room = max_length - len(asked) - before - between - after
        if room < 1:
            raise UserError(f"max_length {max_length} leaves no room for a passage; give more")
        first, last = _answer_tokens(*answers[0], spans) if answers else (-1, -1)
        places = window_places(len(ids), room, stride)
        for (start, stop), best in zip(places, _max_context(len(ids), places), strict=True):
            row, types = tokenizer.with_special_tokens(asked, list(ids[start:stop]))
            inputs: dict[str, Any] = {
                "input_ids": np.array(row, np.int32),
                "token_type_ids": np.array(types, np.int32),
            }
            around = (before + len(asked) + between, after)  # tokens before and after those of the passage
            cls_place = tokenizer.cls_place(len(row))
            if training:
                inside, shift = start <= first <= last < stop, around[0] - start
                inputs["start_positions"] = first + shift if inside else cls_place
                inputs["end_positions"] = last + shift if inside else cls_place
            window_spans = np.pad(spans[start:stop], (around, (0, 0)), constant_values=-1)
            windows.append(QuestionWindow(inputs, index, window_spans, np.pad(best, around), cls_place))
    return windows


def _tokens_with_spans(tokenizer: PretrainedTokenizer, passage: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids (T,) and spans (T, 2) of a passage."""
    ids, spans = tokenizer.token_ids_with_spans(passage)
    return np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2)


def window_places(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Which tokens (start, stop) of the passage each window holds."""
    places, start = [], 0
    while start + room < tokens:
        places.append((start, start + room))
        start += min(stride, room)
    return [*places, (start, tokens)]


def _max_context(tokens: int, places: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each window, which of its tokens (n,) have more context there than in any other window: bool.

    The context of a token is the smaller of the numbers of tokens on its left and on its right, plus a
    hundredth of the window's length. Of equally good windows, the first one counts.
    """
    highest, best = np.full(tokens, -np.inf), np.zeros(tokens, int)  # the best score so far, and whose it is
    for window, (start, stop) in enumerate(places):
        here = np.arange(stop - start)
        score = np.minimum(here, here[::-1]) + 0.01 * (stop - start)
        better = score > highest[start:stop]
        highest[start:stop][better], best[start:stop][better] = score[better], window
    return [best[start:stop] == window for window, (start, stop) in enumerate(places)]


def _answer_tokens(start: int, stop: int, spans: np.ndarray) -> tuple[int, int]:
    """The first and the last token of the passage that overlap its characters ``start`` to ``stop``."""
    first = np.searchsorted(spans[:, 1], start, "right")  # the first that ends after the beginning
    last = np.searchsorted(spans[:, 0], stop, "left") - 1
    return int(first), int(last)
