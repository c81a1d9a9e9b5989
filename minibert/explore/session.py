"""A model that somebody looks into: what is asked, what is changed, and the pass that came of it."""

import json
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.bert import BertModel
from minibert.errors import UserError
from minibert.explore.attributions import NODES
from minibert.explore.changes import Added, Change, HeadOff, Patch, PinnedWeight
from minibert.explore.look import look, matrix_of, named_parameter, parameter, tensor, words
from minibert.explore.passes import Pass, Sentence, encode, hide, run
from minibert.explore.subjects import Subject
from minibert.variants.xlnet import XLNetLMHeadModel

STEPS = {"float64": 1e-4, "float32": 1e-2}  # h of numeric derivatives: small, but the loss has to move


class Session:
    """One model, and the last pass that was asked of it.

    Everything is asked and answered in plain data, as JSON holds it. Raises UserError for what cannot be
    asked, and then the last pass stays.
    """

    def __init__(self, subject: Subject):
        self.subject, model = subject, subject.model
        self.model, self.tokenizer = model, subject.tokenizer
        self._first = model.buffers.value.copy()  # before any step
        self._found: Pass | None = None
        self._plain: Pass | None = None  # the last pass without its changes, once it has been asked for
        self._changes: list[Change] = []
        self._moved = False  # the parameters, since the last pass

    def look(
        self,
        text: str,
        second: str | None = None,
        *,
        hidden: Sequence[int] = (),
        place: int | None = None,
        answer: str | None = None,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Ask about a text, or two: see ``look.look``. ``hidden`` are tokens to hide besides.

        Each of the ``changes`` is of one ``kind``:

            head      layer, head                       it writes nothing
            weight    layer, head, query, key, weight   attention is pinned there
            patch     name, token, text                 a token's value is that of another text
        """
        with warnings.catch_warnings(record=True) as told:  # that a text was cut, the page has to say
            warnings.simplefilter("always")
            sentence = self.subject.encode(text, second or None)
        for token in hidden:
            sentence = hide(sentence, token, self.tokenizer)
        made = [self._change(change, sentence) for change in changes]
        shown, found = look(self.subject, sentence, place=place, answer=answer, changes=made)
        try:
            json.dumps(shown, allow_nan=False)
        except ValueError:  # browsers cannot read NaN
            raise UserError("some numbers are not finite; undo the steps that have been taken") from None
        self._found, self._changes, self._plain, self._moved = found, made, None, False
        return shown | {"warnings": [str(warning.message) for warning in told]}

    def tensor(self, name: str) -> dict[str, Any]:
        """A value of the last pass: see ``look.tensor``."""
        return tensor(self.subject, self._last(), name)

    def words(
        self, places: Collection[int] | None = None, nodes: Collection[int] | None = None
    ) -> list[dict[str, Any]]:
        """Which words made the last pass's answer likely: see ``look.words``. Changes are left out."""
        if nodes is not None and not set(nodes) <= set(range(NODES)):
            raise UserError(f"nodes is {nodes!r}; expected whole numbers from 0 to {NODES - 1}")
        return words(self.subject, self._unchanged(), places, nodes)

    def parameter(self, name: str) -> dict[str, Any]:
        """A parameter and its gradient in the last pass: see ``look.parameter``."""
        found = self._last()
        run(self.model, found.sentence, found.question, changes=self._changes, names=[])
        return parameter(self.subject, name)

    def derivative(self, name: str, index: Sequence[int]) -> dict[str, float]:
        """One element's derivative, by hand and numerically: (loss at x + h − loss at x − h)/2h.

        ``name`` is that of a value, or of a parameter, whose ``index`` is a row and a column of its matrix.
        """
        found, at, h = self._still_there(), tuple(index), STEPS[self.model.dtype]
        if name in found.values:
            value, by_hand = found.values[name], found.derivatives[name]
            _check_index(name, at, value.shape)
            losses = [self._loss_after(name, at, step) for step in (h, -h)]
        else:
            shown = named_parameter(self.subject, name)
            value = matrix_of(shown.value)
            _check_index(name, at, value.shape)
            run(self.model, found.sentence, found.question, changes=self._changes, names=[])
            by_hand = matrix_of(shown.grad)
            losses = [self._loss_at(value, at, step) for step in (h, -h)]
        numeric = (losses[0] - losses[1]) / (2 * h)
        if not math.isfinite(numeric):
            raise UserError(f"the loss with {name} a little larger or smaller is not a finite number")
        return {"value": float(value[at]), "by_hand": float(by_hand[at]), "numeric": numeric}

    def step(self, rate: float) -> None:
        """One step of gradient descent on the last loss: value −= rate · gradient, of all parameters."""
        if not isinstance(rate, int | float) or not math.isfinite(rate):
            raise UserError(f"the size of the step is {rate!r}; expected a number")
        found = self._last()
        run(self.model, found.sentence, found.question, changes=self._changes, names=[])
        buffers = self.model.buffers
        buffers.value -= rate * buffers.grad
        buffers.round_operand()
        self._moved = True

    def reset(self) -> None:
        """The parameters as they were before any step."""
        self.model.buffers.value[...] = self._first
        self.model.buffers.round_operand()
        self._moved = True

    def _loss_after(self, name: str, at: tuple[int, ...], h: float) -> float:
        """The loss with h added to one element of a value."""
        step = np.zeros_like(self._last().values[name])
        step[at] = h
        return self._loss(Added(name, self.model.device.asarray(step[None])))

    def _loss_at(self, matrix: Array, at: tuple[int, ...], h: float) -> float:
        """The loss with h added to one element of a parameter, which is as before afterwards."""
        old = matrix[at].copy()
        matrix[at] = old + h
        self.model.buffers.round_operand()
        loss = self._loss()
        matrix[at] = old
        self.model.buffers.round_operand()
        return loss

    def _loss(self, *changes: Change) -> float:
        found, changes = self._last(), (*self._changes, *changes)
        there = run(self.model, found.sentence, found.question, changes=changes, names=[], backward=False)
        return there.loss

    def _last(self) -> Pass:
        if self._found is None:
            raise UserError("nothing has been asked yet")
        return self._found

    def _still_there(self) -> Pass:
        """The last pass, if the parameters are still those that it was made with."""
        if self._moved:
            raise UserError("the parameters have changed since the last pass; ask again")
        return self._last()

    def _unchanged(self) -> Pass:
        found = self._still_there()
        if self._plain is None:
            self._plain = run(self.model, found.sentence, found.question) if self._changes else found
        return self._plain

    def _change(self, asked: Mapping[str, Any], sentence: Sentence) -> Change:
        kind, config = asked.get("kind"), self.model.config
        if kind == "patch":
            return self._patch(asked, sentence)
        if kind not in ("head", "weight"):
            raise UserError(f"unknown change {kind!r}; expected head, weight or patch")
        layer, head = (
            _number(asked, "layer", config.num_hidden_layers),
            _number(asked, "head", config.num_attention_heads),
        )
        whole = "" if isinstance(self.model, BertModel) else "bert."
        inside = f"{whole}encoder.layer.{layer}.attention.self."
        if kind == "head":
            return HeadOff(inside + "context", head, config.hidden_size // config.num_attention_heads)
        queries = isinstance(self.model, XLNetLMHeadModel)  # a row besides those of the tokens
        query, key = _number(asked, "query", len(sentence) + queries), _number(asked, "key", len(sentence))
        weight = asked.get("weight")
        if not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise UserError(f"weight is {weight!r}; expected a number from 0 to 1")
        return PinnedWeight(inside + "probabilities", head, query, key, weight)

    def _patch(self, asked: Mapping[str, Any], sentence: Sentence) -> Patch:
        """A token's value, as it is in another text at the same place."""
        name, text = str(asked.get("name")), str(asked.get("text") or "")
        other = encode(self.tokenizer, text)
        if not other.pieces:
            raise UserError("the other text has no words; write some to take the value from")
        token = _number(asked, "token", min(len(sentence), len(other)))
        question = self.subject.ask(replace(other, other=sentence.other), token, None)
        values = run(self.model, other, question, names=[name], backward=False).values
        if name not in values or values[name].ndim != 2:
            raise UserError(f"{name!r} is no value with a row for each token")
        return Patch(name, (token,), self.model.device.asarray(values[name][token]))


def _check_index(name: str, index: tuple[int, ...], shape: tuple[int, ...]) -> None:
    known = len(index) == len(shape) and all(isinstance(i, int) for i in index)
    if not known or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        raise UserError(f"{list(index)} is no index of {name}, whose shape is {shape}")


def _number(asked: Mapping[str, Any], name: str, count: int) -> int:
    number = asked.get(name)
    if not isinstance(number, int) or not 0 <= number < count:
        raise UserError(f"{name} is {number!r}; expected a whole number from 0 to {count - 1}")
    return number
