"""What all tokenizers have in common: the special tokens around texts, pairs, truncation, padding."""

import operator
import reprlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import numpy as np

from minibert.errors import UserError
from minibert.kernels.cpu import has_numba
from minibert.text.normalise import Memo, chunk_size

if TYPE_CHECKING:
    from minibert.text.piece_memory import PieceMemory

MOST_PADDING = 128  # rows that a model may have beyond its vocabulary without looking suspicious


class Encoding(TypedDict):
    """What a model reads: lists of ints for one text, lists of such lists for several."""

    input_ids: list
    token_type_ids: list
    attention_mask: list


class PretrainedTokenizer:
    """Text to token ids and back. A subclass splits texts and joins tokens; the rest is here.

    ``tokens`` are all tokens, each at the index that is its id. ``continues_word`` (V,) tells which of them
    go on with the word of the token before. With ``lowercase`` capitals are lost.

    Rows are padded on their ``padding_side``, "right" or "left".
    """

    special_tokens: ClassVar[dict[str, str]]  # the five that a model needs or more, by Hugging Face's names
    config_keys: ClassVar[dict[str, str]]  # our options and their names in tokenizer_config.json
    CACHED_CHARACTERS: ClassVar[int] = 2**21  # of pieces of text whose ids are remembered
    COMPILED_FROM: ClassVar[int] = 1000  # characters at once, from which on a compiled loop is faster
    padding_side: str = "right"  # of a class: where its models' padding usually is
    model_max_length: int | None = None
    train: ClassVar[Callable[..., Any]]  # a class method that learns a vocabulary from texts
    lowercase: bool = False  # of a class: what its models usually do
    tokens: list[str]
    vocab: dict[str, int]
    continues_word: np.ndarray

    def _set_tokens(self, tokens: Sequence[str]) -> None:
        """Take the vocabulary. Raises UserError if it lacks a special token or has a token twice."""
        self.tokens = list(tokens)
        self.vocab = {token: i for i, token in enumerate(self.tokens)}
        self._check_vocabulary()
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.vocab[self.special_tokens[name]]
            for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        )

    def _memos(self, ids_of: Callable[[str], Any], spans_of: Callable[[str], Any]) -> tuple[Memo, Memo]:
        """The ids of pieces of text, and their spans, computed once and remembered.

        Spans, pairs of numbers, take several times as much memory as ids, so fewer are held.
        """
        most = self.CACHED_CHARACTERS
        return Memo(ids_of, most, chunk_size), Memo(spans_of, most // 4, chunk_size)

    @cached_property
    def _memory(self) -> "PieceMemory | None":
        """The ids of pieces of text for compiled loops; made for the first long text; None without Numba."""
        return self._new_memory() if has_numba() else None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_memory", None)  # each copy fills its own
        return state

    def _new_memory(self) -> "PieceMemory":
        """An empty one, which cuts texts and spells pieces as this tokenizer does."""
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """Number of tokens V."""
        return len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def check_size(self, vocab_size: int) -> None:
        """Raise UserError if an embedding table of ``vocab_size`` rows lacks a row for some token.

        More rows than tokens are fine: some models are padded to a multiple of 8 or 64. Warns if there are
        more extra rows than padding explains.
        """
        if len(self) > vocab_size:
            raise UserError(
                f"the vocabulary has {len(self)} tokens but the model knows only {vocab_size}; "
                "use the vocabulary that the model was trained with"
            )
        if vocab_size - len(self) > MOST_PADDING:
            warnings.warn(
                f"the vocabulary has only {len(self)} tokens but the model knows {vocab_size}; "
                "is it the vocabulary that the model was trained with?",
                stacklevel=3,
            )

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, without [CLS] and [SEP]."""
        return [self.tokens[i] for i in self.token_ids(text)]

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Read a tokenizer from a folder in Hugging Face's layout; ``options`` override what it says."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files that ``from_pretrained`` and transformers read into a folder."""
        raise NotImplementedError

    def token_ids(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens. Raises UserError for lone surrogates."""
        return self._ids_of_texts([text])[0]

    def token_ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`token_ids` of many texts."""
        refuse_single_text(texts)
        return self._ids_of_texts(list(texts))

    def _ids_of_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, by compiled loops if there is enough text; the ids are the same."""
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"a text must be a str, not {type(text).__name__}")
        if sum(map(len, texts)) < self.COMPILED_FROM or self._memory is None:
            return [self._text_ids(text) for text in texts]
        encoded = [self._bytes_to_cut(text) for text in texts]
        found = iter(self._memory.token_ids([text for text in encoded if text is not None]))
        return [
            self._text_ids(text) if code is None else next(found)
            for text, code in zip(texts, encoded, strict=True)
        ]

    def _text_ids(self, text: str) -> list[int]:
        """The token ids of one text, in Python."""
        raise NotImplementedError

    def _bytes_to_cut(self, text: str) -> bytes | None:
        """The text in UTF-8, for ``_memory`` to cut; None if its ids are not those of its pieces."""
        raise NotImplementedError

    def definition(self) -> list[Any]:
        """All that the ids of a text depend on, as JSON can hold it. The longest input is not among it."""
        options = [getattr(self, name) for name in self.config_keys if name != "model_max_length"]
        return [self.tokens, options, *self.rules()]

    def rules(self) -> list[Any]:
        """What besides tokens and options decides which ids a text has, as JSON can hold it."""
        return []

    def word_token_ids(self, word: str) -> list[int]:
        """`token_ids` of a word that stands in a sentence, with spaces around it."""
        return self.token_ids(word)

    def token_text(self, token_id: int) -> str:
        """A token as people read it."""
        return self.as_text(self.tokens[token_id])

    def as_text(self, token: str) -> str:
        """The same of a token that need not be in the vocabulary."""
        return token

    # -- New tokens (see new_tokens.py) --------------------------------------------------------------

    def whole_tokens(self, text: str) -> list[str]:
        """The tokens that a text would have if the vocabulary held each of its words whole."""
        raise NotImplementedError

    def count_whole_tokens(self, texts: Iterable[str], *, progress: bool = False) -> Counter[str]:
        """How often each of the `whole_tokens` occurs in a stream of texts."""
        raise NotImplementedError

    def pieces(self, token: str) -> tuple[int, ...]:
        """The ids of what stands for such a whole token now: its own, or those of its pieces."""
        raise NotImplementedError

    def with_tokens(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with new tokens after its own."""
        raise NotImplementedError

    # -- Text to ids ---------------------------------------------------------------------------------

    def word_numbers(self, ids: Sequence[int]) -> np.ndarray:
        """The number of the word that each token of a text belongs to, from 1: ids (T,) → (T,) int32."""
        begins = ~self.continues_word[np.asarray(ids, dtype=np.int64)]
        begins[:1] = True
        return np.cumsum(begins, dtype=np.int32)

    def token_ids_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`token_ids`, and where in ``text`` each token is: text[start:stop], as (start, stop)."""
        raise NotImplementedError

    def with_special_tokens(
        self, first: list[int], second: list[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids of one or two texts → input_ids and token_type_ids of [CLS] first [SEP] (second [SEP]).

        The token types are 0 up to the first [SEP], 1 after it.
        """
        ids = [self.cls_id, *first, self.sep_id]
        kinds = [0] * len(ids)
        if second is not None:
            ids += [*second, self.sep_id]
            kinds += [1] * (len(second) + 1)
        return ids, kinds

    def special_counts(self, texts: int) -> list[int]:
        """How many special tokens there are before the first of 1 or 2 texts, between them, after the last.

        Of [CLS] A [SEP] B [SEP] that is 1, 1, 1; of XLNet's A <sep> B <sep> <cls> it is 0, 1, 2.
        """
        marks = range(-texts, 0)  # stand for the texts
        row = self.with_special_tokens(*([mark] for mark in marks))[0]
        places = [-1, *map(row.index, marks), len(row)]
        return [after - before - 1 for before, after in pairwise(places)]

    def cls_place(self, length: int) -> int:
        """Where the token [CLS] is in a row of ``length`` tokens: it is the first, but XLNet's the last."""
        return 0 if self.special_counts(1)[0] else length - 1

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        max_length: int | None = None,
        padding: bool | str = False,
        truncation: bool | str | None = None,
    ) -> Encoding:
        """Model inputs: one or two texts in their special tokens, see `with_special_tokens`.

        Args:
            text, text_pair: one text each, or lists of texts of equal length.
            max_length: in tokens, special ones included.
            padding: ``True`` or ``"longest"`` (of this batch), ``"max_length"``, or ``False``.
            truncation: ``True`` or ``"longest_first"`` (shorten the longer of the two, in a tie the
                first), ``"only_first"``, ``"only_second"``, or ``False``. ``None`` truncates if a max_length
                is given without padding, as transformers does.

        Returns ``input_ids``, ``token_type_ids`` (0 up to the end of text, 1 after it) and
        ``attention_mask`` (0 on padding): lists of ints for one text, lists of lists (B, S) for several.

        Raises UserError where a text would not fit: for a max_length that does not even hold the special
        tokens, and where "only_first" or "only_second" would leave nothing of that text.
        """
        pairs = _text_pairs(text, text_pair)
        if truncation is None:
            truncation = max_length is not None and padding is False
        if max_length is None:
            max_length = self.model_max_length
        _check_choices(padding, truncation)

        input_ids, token_type_ids = [], []
        found = iter(self._ids_of_texts(list(chain.from_iterable(pairs))))
        for pair in pairs:
            pieces = list(islice(found, len(pair)))
            if truncation and max_length is not None:
                pieces = truncate(pieces, self.room(max_length, len(pieces)), truncation)
            row, types = self.with_special_tokens(*pieces)
            input_ids.append(row)
            token_type_ids.append(types)

        lengths = [len(ids) for ids in input_ids]
        width = _width(lengths, padding, max_length)
        encoded = (
            [self._padded(ids, self.pad_id, width) for ids in input_ids],
            [self._padded(kinds, 0, width) for kinds in token_type_ids],
            [self._padded([1] * length, 0, width) for length in lengths],
        )
        ids, kinds, mask = (rows[0] for rows in encoded) if isinstance(text, str) else encoded
        return {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}

    def _padded(self, row: list[int], value: int, width: int) -> list[int]:
        padding = [value] * (width - len(row))
        return padding + row if self.padding_side == "left" else row + padding

    def room(self, max_length: int, texts: int) -> int:
        """How many tokens of texts fit beside the special ones. Raises UserError if not even these do."""
        special = sum(self.special_counts(texts))
        if max_length < special:
            raise UserError(
                f"max_length {max_length} leaves no room for the special tokens; give at least {special}"
            )
        return max_length - special

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of these token ids. Raises UserError for those of several texts, or of no token."""
        raise NotImplementedError

    def _known(self, ids: Iterable[int], skip_special_tokens: bool) -> list[int]:
        """The ids to decode. Raises UserError for several texts, and for an id outside the vocabulary."""
        try:
            known = list(map(operator.index, ids))
        except TypeError:
            got = " ".join(reprlib.repr(ids).split())  # that of an array has several lines
            raise UserError(
                f"expected the token ids of one text, got {got}; decode several texts one by one"
            ) from None
        for i in known:
            if not 0 <= i < len(self.tokens):
                raise UserError(f"token id {i} is outside the vocabulary of {len(self.tokens)} tokens")
        special = self._special_ids()
        return [i for i in known if i not in special] if skip_special_tokens else known

    def _special_ids(self) -> set[int]:
        """The tokens that ``skip_special_tokens`` skips."""
        return {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}

    def _check_vocabulary(self) -> None:
        missing = [token for token in dict.fromkeys(self.special_tokens.values()) if token not in self.vocab]
        if missing:
            raise UserError(
                f"the vocabulary of {len(self)} tokens lacks {' '.join(missing)}; "
                "a vocabulary of this kind includes these special tokens"
            )
        if len(self.vocab) < len(self):
            tokens, vocab = self.tokens, self.vocab
            first, again = next((i, vocab[token]) for i, token in enumerate(tokens) if vocab[token] != i)
            raise UserError(
                f"the vocabulary has the token {tokens[again]!r} twice (lines {first + 1} and {again + 1}); "
                "every token must be unique"
            )


def in_utf8(text: str) -> bytes | None:
    """The bytes of a text; None if it has a lone surrogate, which has none."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def letter_table(known: Callable[[str], bool], lowercase: bool = False) -> np.ndarray:
    """The byte (256,) that stands for each ``known`` character of ASCII in a vocabulary; 0 for all others."""
    letters = np.zeros(256, np.uint8)
    for byte in range(128):
        if known(chr(byte)):
            letters[byte] = ord(chr(byte).lower() if lowercase else chr(byte))
    return letters


def refuse_single_text(texts: Iterable[str] | None) -> None:
    """Raise UserError for one text where several are expected."""
    if isinstance(texts, str):  # else it would pass for a sequence of one-letter texts
        raise UserError("expected a list of texts, got a single one; put it in brackets")


def _text_pairs(text: str | Sequence[str], text_pair: str | Sequence[str] | None) -> list[tuple[str, ...]]:
    """One tuple of one or two texts for each row of the batch."""
    if isinstance(text, str):
        if text_pair is not None and not isinstance(text_pair, str):
            raise UserError("text is one text, so text_pair must be one text too, not several")
        return [
            (text, text_pair) if text_pair else (text,)
        ]  # an empty one counts as none, as in transformers
    if text_pair is None:
        return [(first,) for first in text]
    if isinstance(text_pair, str) or len(text) != len(text_pair):
        count = 1 if isinstance(text_pair, str) else len(text_pair)
        raise UserError(f"text and text_pair must have the same number of texts: got {len(text)} and {count}")
    return list(zip(text, text_pair, strict=True))


def _check_choices(padding: bool | str, truncation: bool | str) -> None:
    if padding not in (False, True, "longest", "max_length"):
        raise UserError(f"padding must be True, False, 'longest' or 'max_length', not {padding!r}")
    if truncation not in (False, True, "longest_first", "only_first", "only_second"):
        raise UserError(
            "truncation must be True, False, 'longest_first', 'only_first' or 'only_second', "
            f"not {truncation!r}"
        )


def _width(lengths: Sequence[int], padding: bool | str, max_length: int | None) -> int:
    """The minimum number of tokens per row. Raises UserError if it is max_length and that is not given."""
    if padding != "max_length":
        return max(lengths, default=0) if padding else 0
    if max_length is None:
        raise UserError("padding='max_length' needs a max_length")
    return max_length


def truncate(pieces: list[list[int]], room: int, strategy: bool | str) -> list[list[int]]:
    """Cut the ends of one or two sequences so that together they have at most ``room`` tokens."""
    lengths = [len(piece) for piece in pieces]
    excess = sum(lengths) - room
    if excess <= 0:
        return pieces
    if strategy in ("only_first", "only_second"):
        which = 0 if strategy == "only_first" else 1
        if which >= len(pieces) or lengths[which] <= excess:
            raise UserError(
                f"truncation={strategy!r} cannot remove {excess} tokens there; use 'longest_first'"
            )
        lengths[which] -= excess
    elif len(pieces) == 1:
        lengths = [room]
    else:
        shorter, longer = sorted(lengths)
        longer = max(shorter, room - shorter)  # shorten the longer one, at most to the length of the shorter,
        if shorter + longer > room:  # then both equally
            shorter, longer = room // 2, room - room // 2
        lengths = [longer, shorter] if lengths[0] > lengths[1] else [shorter, longer]
    return [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]
