"""What a model is asked about a sentence: which of its outputs is looked at, and for which answer.

    loss = −ln p(answer),   p = softmax(logits)

The loss is the model's surprise at that answer, and all derivatives of a pass are those of this number. Where
a model gives no probabilities, the loss is what it gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy.special import expit

from minibert import ops
from minibert.arrays import Array, get_array_module, to_numpy
from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import TaskModel
from minibert.variants.permutations import hidden_tokens
from minibert.variants.xlnet import XLNetLMHeadModel

Explored = BertForPreTraining | TaskModel | SentenceEncoder  # a model that answers something
Answer = tuple[float, np.ndarray, dict[str, Array]]


class Question(Protocol):
    """Something that a model can be asked about a sentence."""

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """What ``forward`` needs besides the sentence. Raises UserError for a place that is not there."""

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The loss in nats; the probabilities of all answers; the derivatives that ``backward`` takes.

        Raises UserError for an answer that the model does not know.
        """

    def without(self, places: Sequence[int]) -> "Question | None":
        """The same question about a sentence from which these tokens are gone; None if it is about them."""


def _moved(place: int, gone: Sequence[int]) -> int:
    """Where a token is after those before it are gone; −1 if it is gone itself."""
    return -1 if place in gone else place - sum(other < place for other in gone)


def _surprise(logits: Array, row: tuple[int, ...], answer: int) -> tuple[float, np.ndarray, Array]:
    """−ln p of one answer, by one row (K,) of the logits; p (K,); the derivative of all logits."""
    xp = get_array_module(logits)
    scores = logits[row][None]  # (1, K)
    _check_answer(answer, scores.shape[1])
    label, weight = xp.full(1, answer, dtype="int32"), xp.ones(1, dtype=logits.dtype)
    loss, cache = ops.cross_entropy(scores, label, weight, 1.0)
    dlogits = xp.zeros_like(logits)
    dlogits[row] = ops.cross_entropy_backward(1.0, cache)[0]
    return float(loss), to_numpy(ops.softmax(scores)[0])[0], dlogits


def _check_answer(answer: int, count: int) -> None:
    if not isinstance(answer, int | np.integer) or not 0 <= answer < count:
        raise UserError(f"there is no answer {answer}; the model knows {count}, counted from 0")


def _check_place(place: int, input_ids: np.ndarray) -> None:
    if not isinstance(place, int | np.integer) or not 0 <= place < len(input_ids):
        raise UserError(f"there is no token {place}; the text has {len(input_ids)}, counted from 0")


@dataclass(frozen=True)
class HiddenWord:
    """Which token stands at this place? The answer is a token's number. Hidden or not, the model guesses it.

    An XLNet is asked by the query of the place, and neither this token nor any <mask> is seen.
    """

    place: int
    answer: int
    mask_id: int

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """For an XLNet, who sees whom."""
        _check_place(self.place, input_ids)
        if not isinstance(model, XLNetLMHeadModel):
            return {}
        hidden = input_ids == self.mask_id
        hidden[self.place] = True
        return hidden_tokens(hidden[None], np.array([[self.place]]))

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The surprise at the token, from ``prediction_logits``."""
        row = 0, 0 if isinstance(model, XLNetLMHeadModel) else self.place
        loss, probabilities, dlogits = _surprise(outputs.prediction_logits, row, self.answer)
        return loss, probabilities, {"dprediction_logits": dlogits}

    def without(self, places: Sequence[int]) -> "Question | None":
        """The question about the place that the token moves to."""
        place = _moved(self.place, places)
        return None if place < 0 else replace(self, place=place)


@dataclass(frozen=True)
class NextSentence:
    """Does the second text follow the first? The answer 0 is yes, 1 no."""

    answer: int = 0

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """None."""
        return {}

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The surprise at the answer, from ``seq_relationship_logits``."""
        loss, probabilities, dlogits = _surprise(outputs.seq_relationship_logits, (0,), self.answer)
        return loss, probabilities, {"dseq_relationship_logits": dlogits}

    def without(self, places: Sequence[int]) -> "Question":
        """The same: it is about the whole."""
        return self


@dataclass(frozen=True)
class Label:
    """Which label, by its number, has the text or, with a ``place``, the token there?"""

    answer: int
    place: int | None = None

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """None."""
        if self.place is not None:
            _check_place(self.place, input_ids)
        return {}

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The surprise at the label, from ``logits``."""
        row = (0,) if self.place is None else (0, self.place)
        loss, probabilities, dlogits = _surprise(outputs.logits, row, self.answer)
        return loss, probabilities, {"dlogits": dlogits}

    def without(self, places: Sequence[int]) -> "Question | None":
        """The question about the place that the token moves to, if it is about one."""
        if self.place is None:
            return self
        place = _moved(self.place, places)
        return None if place < 0 else replace(self, place=place)


@dataclass(frozen=True)
class OwnLabel:
    """Has the text this label, by its number, of those that do not exclude each other? p = 1/(1 + e⁻ˣ)."""

    answer: int

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """None."""
        return {}

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The surprise at the label, from ``logits``: −ln p, whose derivative is p − 1."""
        p = expit(to_numpy(outputs.logits)[0].astype(np.float64))  # (K,)
        _check_answer(self.answer, len(p))
        dlogits = get_array_module(outputs.logits).zeros_like(outputs.logits)
        dlogits[0, self.answer] = p[self.answer] - 1.0
        return -float(np.log(p[self.answer])), p, {"dlogits": dlogits}

    def without(self, places: Sequence[int]) -> "Question":
        """The same: it is about the whole."""
        return self


@dataclass(frozen=True)
class Span:
    """Where does the answer start and end? The loss is the sum for both tokens; probabilities are (2, S)."""

    start: int
    end: int

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """None."""
        for place in (self.start, self.end):
            _check_place(place, input_ids)
        return {}

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The surprise at both ends, from ``start_logits`` and ``end_logits``."""
        first, p_start, dstart = _surprise(outputs.start_logits, (0,), self.start)
        last, p_end, dend = _surprise(outputs.end_logits, (0,), self.end)
        return first + last, np.stack([p_start, p_end]), {"dstart_logits": dstart, "dend_logits": dend}

    def without(self, places: Sequence[int]) -> "Question | None":
        """The question about the places that both ends move to."""
        start, end = _moved(self.start, places), _moved(self.end, places)
        return None if min(start, end) < 0 else Span(start, end)


@dataclass(frozen=True)
class Score:
    """Which number does the model give the text? The loss is that number, one of those that it gives."""

    answer: int = 0

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """None."""
        return {}

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The number, from ``logits``."""
        _check_answer(self.answer, outputs.logits.shape[1])
        dlogits = get_array_module(outputs.logits).zeros_like(outputs.logits)
        dlogits[0, self.answer] = 1.0
        return float(outputs.logits[0, self.answer]), np.zeros(0), {"dlogits": dlogits}

    def without(self, places: Sequence[int]) -> "Question":
        """The same: it is about the whole."""
        return self


@dataclass(frozen=True)
class Cosine:
    """How far is the text's vector from another one, (1, H)? The loss is 1 − cosine of the two."""

    other: Array

    def arguments(self, model: Explored, input_ids: np.ndarray) -> dict[str, Any]:
        """None."""
        return {}

    def ask(self, model: Explored, outputs: Any) -> Answer:
        """The distance, from ``embeddings``."""
        cosine, cache = ops.cosine_similarity(outputs.embeddings, self.other)
        dembeddings, _ = ops.cosine_similarity_backward(-get_array_module(cosine).ones_like(cosine), cache)
        return 1.0 - float(cosine[0]), np.zeros(0), {"dembeddings": dembeddings}

    def without(self, places: Sequence[int]) -> "Question":
        """The same: it is about the whole."""
        return self
