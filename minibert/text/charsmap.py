"""SentencePiece's compiled rules of normalisation: which characters become what."""

import re
from collections.abc import Iterator

import numpy as np

from minibert.errors import UserError
from minibert.text import unicode_tables
from minibert.text.normalise import Memo, code_points

# A unit of the double array: bit 31 marks a value, bit 8 a node that has one, bit 9 a large offset.
_VALUE, _HAS_VALUE, _LARGE = 1 << 31, 1 << 8, 1 << 9
_LONGEST_CLUSTER = 6  # in bytes of UTF-8, from which on it is looked up character by character


def _characters(ranges: str) -> str:
    """A character class of regular expressions, without its brackets."""
    return "".join(f"{re.escape(chr(r[0]))}-{re.escape(chr(r[-1]))}" for r in code_points(ranges))


EXTENDS = _characters(unicode_tables.EXTENDS)
_PREPENDED, _CONTROLS = map(_characters, (unicode_tables.PREPENDED, unicode_tables.CONTROLS))
_JOINING = re.compile(f"[{EXTENDS}{_PREPENDED}]")
# Grapheme clusters, as far as they can be this short: Hangul letters, flags and Indic conjuncts are longer.
_CLUSTER = re.compile(
    f"\r\n|[{_CONTROLS}]|[{_PREPENDED}]*(?:[^{_CONTROLS}{_PREPENDED}][{EXTENDS}]*)?", re.DOTALL
)


class CharacterMap:
    """Rules such as nmt_nfkc, which replace a character, or a short sequence of them, by a text.

    They are applied the way Hugging Face's tokenizers do it: a grapheme cluster of less than six bytes is
    looked up as a whole, and the *shortest* rule that its beginning fits replaces all of it; if there is
    none, or the cluster is longer, each of its characters is looked up by itself. (SentencePiece itself
    applies the longest rule that fits, whatever the clusters. So it makes a Hangul syllable of its letters,
    and keeps the accents of "Ａ\u0301"; transformers does neither.)

    ``data`` is what SentencePiece calls a ``precompiled_charsmap``: the size of a double-array trie over
    the UTF-8 of what is replaced, the trie, and the replacements, each ended by a NUL. A unit of the trie
    holds a byte and how to get to the units of the bytes that may follow.

    Raises UserError if ``data`` is damaged.

    Source: Aoe 1989, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", as laid out
    by Darts-clone.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        size = int.from_bytes(data[:4], "little")
        trie = data[4 : 4 + size]
        units = np.frombuffer(trie[: len(trie) // 4 * 4], dtype="<u4")
        self._texts = data[4 + size :]
        if not _is_sound(units, size, self._texts):
            raise UserError(
                "damaged rules of normalisation (precompiled_charsmap); restore or remake the file"
            )
        self._units: list[int] = units.tolist()
        self._single = Memo(self._replace_code, limit=65_536)  # for str.translate: code point → text
        self.keeps_ascii = all(self.shortest(chr(code)) is None for code in range(0x20, 0x7F))

    def __reduce__(self) -> tuple:
        return CharacterMap, (self.data,)

    def apply(self, text: str) -> str:
        """The text with everything replaced."""
        if not _JOINING.search(text) and "\r" not in text:
            return text.translate(self._single)
        return "".join(replacement for _, replacement in self.parts(text))

    def parts(self, text: str) -> Iterator[tuple[int, str]]:
        """The pieces of text that are replaced, in order: where each begins, and what it becomes."""
        for match in _CLUSTER.finditer(text):
            cluster = match[0]
            whole = None
            if len(cluster) > 1 and len(cluster.encode()) < _LONGEST_CLUSTER:
                whole = self.shortest(cluster)
            if whole is not None:
                yield match.start(), whole
            else:
                for i, char in enumerate(cluster, match.start()):
                    yield i, self._single[ord(char)]

    def shortest(self, text: str) -> str | None:
        """What the shortest rule that fits the beginning of ``text`` makes of it; None if there is none."""
        units = self._units
        at = _offset(units[0])
        for byte in text.encode():
            at ^= byte
            unit = units[at]
            if byte == 0 or unit & (_VALUE | 0xFF) != byte:
                return None
            at ^= _offset(unit)
            if unit & _HAS_VALUE:
                begin = units[at] & ~_VALUE
                return self._texts[begin : self._texts.find(b"\0", begin)].decode()
        return None

    def _replace_code(self, code: int) -> str:
        replacement = self.shortest(chr(code))
        return chr(code) if replacement is None else replacement


def _offset(unit: int) -> int:
    return (unit >> 10) << 8 if unit & _LARGE else unit >> 10


def _is_sound(units: np.ndarray, size: int, texts: bytes) -> bool:
    """Whether no look-up can leave the trie, or find a text that is none."""
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    if size % 4 or len(units) != size // 4 or len(units) == 0 or (texts and texts[-1] != 0):
        return False
    place = np.arange(len(units), dtype=np.int64)
    wide = units.astype(np.int64)
    after = place ^ np.where(wide & _LARGE, wide >> 10 << 8, wide >> 10)
    inner = wide & _VALUE == 0
    if not inner[0]:  # each look-up begins there
        return False
    if ((after | 0xFF)[inner] >= len(units)).any():
        return False
    values = wide[after[inner & (wide & _HAS_VALUE != 0)]]
    begins = values & ~_VALUE
    if (values & _VALUE == 0).any() or (begins >= len(texts)).any():
        return False
    return all(texts[begin] & 0xC0 != 0x80 for begin in np.unique(begins))  # not amid a character
