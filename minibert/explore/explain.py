"""Which words led to the answer: three methods side by side, and how far the first can be trusted."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.errors import UserError
from minibert.explore.attributions import (
    baseline,
    input_gradients,
    integrated_gradients,
    left_out,
    pass_at,
)
from minibert.explore.passes import Part, Sentence, check_number, run
from minibert.explore.subjects import Subject

BASELINES = ("mask", "pad", "zero")
LEAVE_OUT = ("mask", "remove")
STEPS = 32  # of the integral
MOST_STEPS = 1000  # their places are the eigenvalues of a matrix of this size
KEYS = ("integrated_gradients", "gradient_x_input", "left_out")  # of the three methods, in JSON
LARGE_GAP = 0.05  # of the difference that the shares should sum to
ROUNDING = 1e-5


@dataclass(frozen=True)
class Settings:
    """How words are weighed.

    ``baseline`` is what stands for "no word": the embedding of [MASK] or [PAD], or 0. ``steps`` are the nodes
    of the integral, one forward and one backward pass each. ``leave_out`` says whether a word that is left
    out is hidden by [MASK] or removed. With ``pieces``, tokens are weighed, and not whole words. Raises
    UserError for what is none of these.
    """

    baseline: str = "mask"
    steps: int = STEPS
    leave_out: str = "mask"
    pieces: bool = False

    def __post_init__(self) -> None:
        for name, known in (("baseline", BASELINES), ("leave_out", LEAVE_OUT)):
            if getattr(self, name) not in known:
                raise UserError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        if not 1 <= self.steps <= MOST_STEPS:
            raise UserError(f"steps is {self.steps}; the integral needs 1 to {MOST_STEPS}")


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each part of a text, or of a pair, adds to a number F that speaks for the model's answer.

    ``measure`` says in words what F is, usually ln p(answer); ``value`` is F of the text, ``below`` F of the
    baseline. ``integrated``, ``gradient`` and ``left_out`` (N,) are the weights of the N ``parts``:
    integrated gradients, gradient × input, and what F loses without the part; NaN where a method says
    nothing. ``total`` is the sum of the integrated gradients of all tokens, which should be value − below.
    """

    text: str
    second: str | None
    asked: Part | None  # the word that the question is about, if it is about one
    answer: str | None
    p: float | None  # the probability of the answer, if it has one
    measure: str
    value: float
    below: float
    total: float
    parts: tuple[Part, ...]
    integrated: np.ndarray
    gradient: np.ndarray
    left_out: np.ndarray
    settings: Settings
    nothing: str  # what stands for "no word" in the baseline: the tokenizer's name for it, or 0

    @property
    def gap(self) -> float:
        """By how much the integrated gradients miss the difference that they should sum to."""
        return self.total - (self.value - self.below)

    @property
    def relative_gap(self) -> float:
        """The size of the gap as a share of that difference; infinite if that is 0, and the gap is not."""
        difference = abs(self.value - self.below)
        return abs(self.gap) / difference if difference else (math.inf if self.gap else 0.0)

    @property
    def has_large_gap(self) -> bool:
        """Whether the gap is a large share of the difference, and not just the rounding of float32."""
        return self.relative_gap > LARGE_GAP and abs(self.gap) > ROUNDING * max(1.0, abs(self.value))

    @property
    def methods(self) -> dict[str, np.ndarray]:
        """The weights by the names of the methods."""
        return {
            "integrated gradients": self.integrated,
            "gradient × input": self.gradient,
            "left out": self.left_out,
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it: null where a method says nothing."""
        return {
            "text": self.text,
            **({} if self.second is None else {"second": self.second}),
            "word": None if self.asked is None else _place(self.asked),
            "answer": self.answer,
            "probability": self.p,
            "measure": self.measure,
            "value": self.value,
            "baseline": {"kind": self.settings.baseline, "value": self.below},
            "steps": self.settings.steps,
            "sum": self.total,
            "gap": self.gap,
            "relative_gap": None if math.isinf(self.relative_gap) else self.relative_gap,
            "left_out": self.settings.leave_out,
            "pieces" if self.settings.pieces else "words": [
                _place(part)
                | {name: None if np.isnan(w) else float(w) for name, w in zip(KEYS, row, strict=True)}
                for part, row in zip(self.parts, np.stack([*self.methods.values()], axis=1), strict=True)
            ],
        }


def explain(
    subject: Subject,
    text: str,
    second: str | None = None,
    *,
    word: int | None = None,
    target: str | None = None,
    settings: Settings | None = None,
) -> Explanation:
    """Which words of a text, or of a pair, speak for a model's answer, and how much.

    What is asked depends on the model's head: see ``subjects``. ``word`` is the number of the word that is
    asked about, from 1, where the head answers for each word: by default the first [MASK], or the word whose
    tag is most certain. ``target`` is the answer to explain, by default the model's own. Raises UserError for
    words and answers that there are not, for texts that the model does not read, and if it gives NaN.
    """
    settings = settings or Settings()
    sentence = subject.encode(text, second)
    place = None if word is None else _place_of(subject, sentence, word)
    subject = subject.about(sentence, place)
    place = subject.telling_place(sentence) if place is None else place
    found = run(subject.model, sentence, subject.ask(sentence, place, target))
    check_number(found)
    name, parts = next(iter(found.values)), sentence.pieces if settings.pieces else sentence.words
    b = baseline(subject.model, found, subject.tokenizer, name, settings.baseline)
    below = pass_at(subject.model, found, name, b)
    shares = subject.sign * -integrated_gradients(subject.model, found, b, name, settings.steps)
    gradient = subject.sign * -input_gradients(found, name)
    groups = [part.places for part in parts]
    lost = left_out(subject.model, found, subject.tokenizer, groups, settings.leave_out == "remove")
    return Explanation(
        text=text,
        second=second,
        asked=next((part for part in sentence.words if place in part.places), None),
        answer=subject.answer(found),
        p=subject.p(found),
        measure=subject.measure(found),
        value=subject.offset + subject.sign * found.loss,
        below=subject.offset + subject.sign * below.loss,
        total=float(shares.sum()),
        parts=parts,
        integrated=np.array([shares[list(places)].sum() for places in groups]),
        gradient=np.array([gradient[list(places)].sum() for places in groups]),
        left_out=subject.sign * -lost,
        settings=settings,
        nothing=subject.tokenizer.special_tokens.get(f"{settings.baseline}_token", "0"),
    )


def turns(subject: Subject, text: str, second: str | None = None) -> list[tuple[str, str | None]]:
    """The texts, or pairs, to explain: of two texts that are compared, each in turn beside the other."""
    if second is None or not subject.in_turn:
        return [(text, second)]
    return [(text, second), (second, text)]


def _place_of(subject: Subject, sentence: Sentence, word: int) -> int:
    """The first token of a word, by its number. Raises UserError if there is none, or nothing to ask."""
    if not subject.by_word:
        raise UserError("this model answers for the whole text, not for each word; leave --word out")
    if not 1 <= word <= len(sentence.words):
        raise UserError(f"there is no word {word}; the text has {len(sentence.words)}, counted from 1")
    return sentence.words[word - 1].places[0]


def _place(part: Part) -> dict[str, Any]:
    """A part as JSON can hold it: what it says, and where."""
    return {"word": part.text, "of": ("text", "second")[part.source], "start": part.start, "stop": part.stop}
