"""Where the tokens of a text come from: which characters each stands for, and which word it is a piece of."""

import re
from dataclasses import dataclass

import numpy as np

from minibert.text.tokenizer import PretrainedTokenizer


@dataclass(frozen=True, eq=False)
class Pieces:
    """A text as T tokens, without special tokens around it.

    ``spans`` (T, 2) are the characters of each token, text[start:stop]. ``words`` (T,) is the number of its
    word in the text, from 0.
    """

    ids: list[int]
    spans: np.ndarray
    words: np.ndarray

    def part(self, start: int, stop: int) -> "Pieces":
        """Some of the tokens, with their numbers and places in the whole text."""
        return Pieces(self.ids[start:stop], self.spans[start:stop], self.words[start:stop])


def pieces_of(tokenizer: PretrainedTokenizer, text: str) -> Pieces:
    """A text as tokens. What is a word, the tokenizer decides: BERT's and RoBERTa's set "." apart.

    A [MASK], like every other special token in a text, is a word of its own.
    """
    ids, spans = tokenizer.token_ids_with_spans(text)
    begins = np.diff(tokenizer.word_numbers(ids), prepend=0) != 0  # (T,)
    alone = np.isin(ids, list(special_ids(tokenizer)))
    begins |= alone
    begins[1:] |= alone[:-1]
    return Pieces(ids, np.array(spans, np.int64).reshape(-1, 2), np.cumsum(begins) - 1)


def pieces_of_words(tokenizer: PretrainedTokenizer, text: str) -> Pieces:
    """A text as tokens, whose words are what is between its spaces, as taggers read it.

    No word is lost: one without tokens is [UNK].
    """
    ids: list[int] = []
    spans, words = [], []
    for number, word in enumerate(re.finditer(r"\S+", text)):
        own = tokenizer.word_token_ids(word[0]) or [tokenizer.unk_id]
        ids += own
        spans += [(word.start() + a, word.start() + b) for a, b in _spans_in(tokenizer, word[0], own)]
        words += [number] * len(own)
    return Pieces(ids, np.array(spans, np.int64).reshape(-1, 2), np.array(words, np.int64))


def _spans_in(tokenizer: PretrainedTokenizer, word: str, own: list[int]) -> list[tuple[int, int]]:
    """Where in a word its tokens are, of which the first may have a space before it."""
    for space in ("", " "):
        ids, spans = tokenizer.token_ids_with_spans(space + word)
        if ids == own:
            return [(max(start - len(space), 0), stop - len(space)) for start, stop in spans]
    return [(0, len(word))] * len(own)


def special_ids(tokenizer: PretrainedTokenizer) -> set[int]:
    """The ids of the special tokens, except that of an unknown word."""
    return {tokenizer.vocab[token] for token in tokenizer.special_tokens.values()} - {tokenizer.unk_id}
