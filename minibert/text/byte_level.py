"""Byte-level byte-pair encoding, the subwords of GPT-2 and RoBERTa: any text, without unknown words.

A text is cut into pre-tokens (a word with the space before it, a number, a run of punctuation). Each of them
becomes its bytes in UTF-8, written as 256 printable characters, and these are merged, pair by pair, into
tokens.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2, with the
program encoder.py in openai/gpt-2. Where they differ (Unicode's versions), this is the ByteLevel
pre-tokenizer and the BPE model of Hugging Face's tokenizers.
"""

import re
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from minibert.text.normalise import WHITE_SPACE, CharacterRules, Memo, refuse_surrogate

_BLOCK = re.compile(r" ?[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+(?![\S\x1c-\x1f])|[^\S\x1c-\x1f]+")

ASCII_BREAKS = "\t\n\x0b\x0c\r"  # white space that begins no word

# GPT-2's pattern, for texts in which every character is ASCII: see `pre_tokens`.
_PRE_TOKEN = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


def _byte_characters() -> str:
    """A printable character per byte: itself where it is one in Latin-1, else the next from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
    others = (byte for byte in range(256) if byte not in printable)
    stand_ins = {byte: 256 + i for i, byte in enumerate(others)}
    return "".join(chr(stand_ins.get(byte, byte)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()  # byte → character
CHARACTER_BYTES = {char: byte for byte, char in enumerate(BYTE_CHARACTERS)}
SPACE = BYTE_CHARACTERS[ord(" ")]  # "Ġ"


def bytes_to_characters(text: str) -> str:
    """The bytes of a text in UTF-8, each as a printable character: " né" → "ĠnÃ©"."""
    return text.encode("utf-8").decode("latin-1").translate(_FROM_LATIN_1)


_FROM_LATIN_1 = dict(enumerate(BYTE_CHARACTERS))


def token_bytes(token: str) -> bytes:
    """The bytes that a token stands for. One with a foreign character stands for itself."""
    try:
        return bytes(map(CHARACTER_BYTES.__getitem__, token))
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def with_prefix_space(text: str) -> str:
    """The text with a space before it, unless it is empty or begins with one."""
    return " " + text if text and text[0] != " " else text


def blocks(text: str) -> list[str]:
    """Cut a text at its white space: "a  b," → "a", " ", " b,". `pre_tokens` cuts within these blocks only.

    The last space before a word belongs to the word. The only white space in a printable text is the space,
    so that Python's own (fast) split is enough where no two of them stand together.
    """
    if text.isprintable() and "  " not in text:
        return text.replace(" ", "\0 ").split("\0")
    return _BLOCK.findall(text)


def pre_tokens(text: str) -> list[str]:
    """The pieces of a text that are encoded one by one; together they are the text.

    They are "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" after a word or elsewhere; letters, numbers, or
    other characters, each with a space before them if there is one; and the white space left over.

    The pattern sees every character outside ASCII as a letter, digit, line feed or exclamation mark, which
    stands for its kind, since Python's patterns do not know these kinds. Raises UserError for lone
    surrogates.
    """
    if text.isascii():
        return _PRE_TOKEN.findall(text)
    kinds = text.translate(_STAND_INS)
    return [text[match.start() : match.end()] for match in _PRE_TOKEN.finditer(kinds)]


def _stand_in(code: int) -> str:
    """The ASCII character that `pre_tokens` sees in place of this one."""
    if code < 128:
        return chr(code)
    refuse_surrogate(code)
    if chr(code) in WHITE_SPACE:
        return "\n"  # not a space, which would belong to the next word
    if _RULES.is_letter(code):
        return "A"  # not one of those that end "don't" and "we're"
    return "0" if _RULES.is_number(code) else "!"


_RULES = CharacterRules()
_STAND_INS = Memo(_stand_in, limit=65_536)


class BytePairs:
    """Splits pre-tokens into tokens: of all pairs of neighbours that can be merged, the best always is.

    The best pair is the one that comes first in ``merges``; among equal ones, the leftmost. This is repeated
    until no pair can be merged.

    In a pre-token of n bytes the best pair is searched for up to n times, which is fastest for a few bytes.
    In long ones a heap holds the pairs, so that a text without spaces takes n log n steps.

    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
    """

    LONG = 100  # bytes

    def __init__(self, vocab: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> None:
        merges = list(merges)
        self._bytes = [vocab[char] for char in BYTE_CHARACTERS]
        self._ranks = {(vocab[left], vocab[right]): rank for rank, (left, right) in enumerate(merges)}
        self._merged = [vocab[left + right] for left, right in merges]
        self._never = len(merges)  # the rank of a pair that is not merged

    def add_merge(self, left: int, right: int, merged: int) -> None:
        """Merge this pair of tokens, too, after all other merges. Arguments are ids."""
        self._ranks[left, right] = self._never
        self._merged.append(merged)
        self._never += 1

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids of single bytes (256,), and the merges, for `minibert.kernels.cpu.spelling`."""
        from minibert.kernels.cpu.spelling import pair_table

        return np.array(self._bytes), *pair_table(self._ranks, self._merged)

    def ids(self, pre_token: str | bytes) -> tuple[int, ...]:
        """Token ids of one pre-token."""
        if isinstance(pre_token, str):
            pre_token = pre_token.encode("utf-8")
        parts = [*map(self._bytes.__getitem__, pre_token)]
        return tuple(self._merge_long(parts) if len(parts) > self.LONG else self._merge_short(parts))

    def _merge_short(self, parts: list[int]) -> list[int]:
        rank_of, never = self._ranks.get, self._never
        ranks = [rank_of(pair, never) for pair in pairwise(parts)]  # of parts i and i + 1
        while ranks and (best := min(ranks)) != never:
            i = ranks.index(best)
            parts[i] = merged = self._merged[best]
            del parts[i + 1], ranks[i]
            if i:
                ranks[i - 1] = rank_of((parts[i - 1], merged), never)
            if i < len(ranks):
                ranks[i] = rank_of((merged, parts[i + 1]), never)
        return parts

    def _merge_long(self, parts: list[int]) -> list[int]:
        ranks = self._ranks
        parts.append(
            -1
        )  # the end, which index -1 finds too; also in place of a part merged into the one before
        before, after = [*range(-1, len(parts) - 1)], [*range(1, len(parts)), 0]
        heap = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
        heapify(heap)
        while heap:
            rank, i = heappop(heap)
            right = after[i]
            if ranks.get((parts[i], parts[right])) != rank:  # an outdated entry
                continue
            parts[i], parts[right] = self._merged[rank], -1
            after[i] = after[right]
            before[after[i]] = i
            for left in (before[i], i):
                new = ranks.get((parts[left], parts[after[left]]))
                if new is not None:
                    heappush(heap, (new, left))
        return [part for part in parts if part >= 0]
