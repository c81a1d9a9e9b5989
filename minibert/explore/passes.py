"""One text through a model, forwards and backwards, with every value on the way and its derivative."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.errors import UserError
from minibert.explore.questions import Explored, Question
from minibert.nn import Context, Observer
from minibert.text import PretrainedTokenizer
from minibert.text.tokenizer import truncate
from minibert.text.words import Pieces, pieces_of


@dataclass(frozen=True)
class Part:
    """A word, or one token of it: the characters text[start:stop] of the first text (0) or the second (1)."""

    text: str
    source: int
    start: int
    stop: int
    places: tuple[int, ...]  # of its tokens in the sentence


@dataclass(frozen=True)
class Sentence:
    """A text, or two, as the model reads it: S tokens, of which some may be hidden by [MASK].

    ``words`` and ``pieces`` are the parts of the texts that the tokens stand for; special tokens around the
    texts belong to none.
    """

    tokens: tuple[str, ...]  # as they are read, "[MASK]" included
    input_ids: np.ndarray  # (S,)
    token_type_ids: np.ndarray  # (S,)
    words: tuple[Part, ...]
    pieces: tuple[Part, ...]
    other: str | None = None  # a second text that is not read with it, but compared with it
    starts: np.ndarray | None = None  # (S,) where an answer may begin, if not everywhere in the last text

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def batch(self) -> dict[str, Any]:
        """What ``forward`` takes: input_ids and token_type_ids (1, S)."""
        return {"input_ids": self.input_ids[None], "token_type_ids": self.token_type_ids[None]}


def encode(
    tokenizer: PretrainedTokenizer, text: str, second: str | None = None, max_length: int | None = None
) -> Sentence:
    """A text, or a pair of texts, in its special tokens. A [MASK] in it is a hidden word.

    What is beyond ``max_length`` tokens is left out, with a warning.
    """
    texts = [text] if second is None else [text, second]
    return encode_pieces(tokenizer, texts, [pieces_of(tokenizer, each) for each in texts], max_length)


def encode_pieces(
    tokenizer: PretrainedTokenizer,
    texts: Sequence[str],
    pieces: Sequence[Pieces],
    max_length: int | None = None,
) -> Sentence:
    """The same, of one or two texts whose tokens are known, or some of them."""
    around = tokenizer.special_counts(len(texts))
    ids = [each.ids for each in pieces]
    if max_length is not None and sum(map(len, ids)) + sum(around) > max_length:
        ids = truncate(ids, max_length - sum(around), True)
        warnings.warn(f"only the first {max_length} tokens are read: {texts[0][:40]!r} …", stacklevel=2)
    words: list[Part] = []
    tokens: list[Part] = []
    before = around[0]
    for source, own in enumerate(ids):
        of, count = pieces[source], len(own)
        words += _parts(texts[source], source, of.spans, of.words[:count], before)
        tokens += _parts(texts[source], source, of.spans, np.arange(count), before)
        before += count + around[source + 1]
    row, types = tokenizer.with_special_tokens(*ids)
    named = tuple(tokenizer.tokens[i] for i in row)
    return Sentence(named, np.array(row), np.array(types), tuple(words), tuple(tokens))


def _parts(text: str, source: int, spans: np.ndarray, owners: np.ndarray, before: int) -> list[Part]:
    """The parts of a text: neighbouring tokens with one owner, (T,), the first of them at ``before``."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    parts = []
    for first, last in pairwise([*starts, len(owners)]):
        start, stop = int(spans[first, 0]), int(spans[last - 1, 1])
        parts.append(Part(text[start:stop], source, start, stop, tuple(range(before + first, before + last))))
    return parts


def words_in(sentence: Sentence, tokenizer: PretrainedTokenizer) -> list[int]:
    """The places of all tokens that can be hidden: all but the special ones. An unknown word is a word."""
    special = set(tokenizer.special_tokens.values()) - {tokenizer.special_tokens["unk_token"]}
    return [place for place, token in enumerate(sentence.tokens) if token not in special]


def cut_words(sentence: Sentence, tokenizer: PretrainedTokenizer) -> list[tuple[int, int, str]]:
    """The words that are several tokens: each as its first token, the one after its last, and its text."""
    special = np.isin(sentence.tokens, list(tokenizer.special_tokens.values()))
    begins = special | ~tokenizer.continues_word[sentence.input_ids]
    begins[1:] |= special[:-1]
    starts = [*np.flatnonzero(begins).tolist(), len(sentence)]
    return [
        (start, stop, tokenizer.decode(sentence.input_ids[start:stop].tolist()))
        for start, stop in pairwise(starts)
        if stop - start > 1
    ]


def hide(sentence: Sentence, place: int, tokenizer: PretrainedTokenizer) -> Sentence:
    """The sentence with [MASK] in the place of one more token. Raises UserError for a special token."""
    if not 0 <= place < len(sentence):
        raise UserError(f"there is no token {place}; the text has {len(sentence)}, counted from 0")
    if place not in words_in(sentence, tokenizer):
        raise UserError(f"token {place} is {sentence.tokens[place]}, which cannot be hidden; choose a word")
    ids, tokens = sentence.input_ids.copy(), list(sentence.tokens)
    ids[place], tokens[place] = tokenizer.mask_id, tokenizer.special_tokens["mask_token"]
    return replace(sentence, tokens=tuple(tokens), input_ids=ids)


def remove(sentence: Sentence, places: Sequence[int]) -> Sentence:
    """The sentence without some of its tokens. It has no words or pieces: their places would be others."""
    gone = set(places)
    tokens = tuple(token for place, token in enumerate(sentence.tokens) if place not in gone)
    ids, types = (np.delete(x, list(gone)) for x in (sentence.input_ids, sentence.token_type_ids))
    rest = replace(sentence, words=(), pieces=(), starts=None)
    return replace(rest, tokens=tokens, input_ids=ids, token_type_ids=types)


class Keeper(Observer):
    """Keeps the values that a pass shows, and their derivatives, on the host, without the axis of the batch.

    Of a value that was replaced it keeps the replacement, and the derivative with respect to it.
    """

    def __init__(self, names: Sequence[str] | None = None):
        self.values: dict[str, np.ndarray] = {}
        self.derivatives: dict[str, np.ndarray] = {}
        self._names = names

    def wants(self, name: str) -> bool:
        """All names, or those that it was made for."""
        return self._names is None or name in self._names

    def forward(self, name: str, value: Array) -> None:
        """Keep a copy of the value."""
        self.values[name] = to_numpy(value)[0].copy()

    def backward(self, name: str, dvalue: Array) -> None:
        """Keep the derivative."""
        self.derivatives[name] = to_numpy(dvalue)[0].copy()


@dataclass(frozen=True)
class Pass:
    """What came of one forward pass, and of the backward pass if there was one.

    ``loss`` is −ln p of the answer that the question names, in nats, and ``probabilities`` (K,) are those of
    all answers. ``values`` and ``derivatives`` have the observer's names, in the order of the forward pass.
    """

    sentence: Sentence
    question: Question
    loss: float
    probabilities: np.ndarray
    values: dict[str, np.ndarray]
    derivatives: dict[str, np.ndarray]


def check_number(found: Pass) -> None:
    """Raise UserError if the loss is NaN or infinite."""
    if not np.isfinite(found.loss):
        raise UserError(
            "the loss is no number any more; take a model whose weights are numbers, or undo the steps taken"
        )


def context_with(*observers: Observer) -> Context:
    """The context of a pass without dropout, which these see in turn."""
    context = Context()
    for observer in observers:
        context = context.with_observer(observer)
    return context


def run(
    model: Explored,
    sentence: Sentence,
    question: Question,
    *,
    changes: Sequence[Observer] = (),
    names: Sequence[str] | None = None,
    backward: bool = True,
) -> Pass:
    """Run a model on one sentence, without dropout, keeping the values of ``names`` (by default of all).

    ``changes`` are observers that replace values on the way. With ``backward``, the gradients of all
    parameters are those of the question's loss afterwards. Raises UserError for a sentence that is longer
    than the model's positions, and for a question that the sentence or the model has no answer to.
    """
    model.eval()
    keeper = Keeper(names)
    context = context_with(*changes, keeper)
    arguments = sentence.batch | question.arguments(model, sentence.input_ids)
    outputs, cache = model.forward(**arguments, context=context)
    loss, probabilities, derivatives = question.ask(model, outputs)
    if backward:
        model.zero_grad()
        model.backward(cache, **derivatives)
    return Pass(sentence, question, loss, probabilities, keeper.values, keeper.derivatives)
