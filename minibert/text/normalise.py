"""From text to words: cleaning, Chinese characters, accents, lower case, punctuation.

Nearly everything here works on single characters, regardless of their neighbours, so most steps are one
``str.translate`` with a table that is filled as characters turn up.

Source: BasicTokenizer in google-research/bert, tokenization.py, and BertNormalizer and
BertPreTokenizer in Hugging Face's tokenizers, which differ from it; see `Normaliser`.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from minibert.errors import UserError
from minibert.text import unicode_tables

# Blocks of Chinese characters (not Japanese kana, not Korean Hangul): each character is a word.
CJK = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B920-2CEAF F900-FAFF 2F800-2FA1F"
ORIGINAL_CJK = CJK.replace("2B920", "2B820")  # transformers has 2B920, due to a typo

# Wider than the category P, which lacks $ + < = > ^ ` | ~
ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

# White space as Unicode has it; Python's \s also has the separators \x1c-\x1f.
WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

# Python treats \x0b, \x0c, \x1c-\x1f and \x85 as whitespace; BERT drops them as control characters.
CHUNK = re.compile(r"[\S\x0b\x0c\x1c-\x1f\x85]+")
_WORD = re.compile(r"\S+")

# What lies between whitespace (that of CHUNK) and punctuation of ASCII, and each such character by itself.
_GAPS = "".join(character for character in WHITE_SPACE if not CHUNK.match(character))
ASCII_GAPS = "".join(filter(str.isascii, _GAPS))
_MARKS = re.escape("".join(sorted(ASCII_PUNCTUATION)))
PIECE = re.compile(f"[^{_GAPS}{_MARKS}]+|[{_MARKS}]")


def chunks(text: str) -> list[str]:
    """Split at whitespace, before anything else: the words of a text are those of its chunks, in order.

    The only whitespace in a printable text is the space, so Python's own (fast) split agrees with BERT's.
    """
    return text.split() if text.isprintable() else CHUNK.findall(text)


def _one(key: Any) -> int:
    return 1


class Memo(dict):
    """A dictionary that fills itself with ``compute(key)``, and is emptied before it becomes too large.

    The sizes of its keys, ``size_of(key)`` or 1 each, never add up to more than ``limit``. A key that is
    larger than that by itself is computed every time.
    """

    def __init__(
        self, compute: Callable[[Any], Any], limit: int, size_of: Callable[[Any], int] = _one
    ) -> None:
        super().__init__()
        self.compute, self.limit, self.size_of = compute, limit, size_of
        self._size = 0

    def __missing__(self, key: Any) -> Any:
        value, size = self.compute(key), self.size_of(key)
        if size > self.limit:
            return value
        if self._size + size > self.limit:
            self.clear()
            self._size = 0
        self._size += size
        self[key] = value
        return value

    def __reduce__(self) -> tuple:
        return Memo, (self.compute, self.limit, self.size_of)  # a copy or a worker process fills its own


def chunk_size(chunk: str) -> int:
    """How much of a tokenizer's memory (a `Memo`) a chunk of text takes: its length, but at least 8."""
    return max(len(chunk), 8)


def code_points(text: str) -> tuple[range, ...]:
    """The ranges that a text such as ``"2028-2029 3000"`` (hexadecimal) describes."""
    bounds = (run.split("-") for run in text.split())
    return tuple(range(int(run[0], 16), int(run[-1], 16) + 1) for run in bounds)


def within(code: int, ranges: tuple[range, ...]) -> bool:
    """Whether one of the ranges holds ``code``."""
    return any(code in run for run in ranges)


def refuse_surrogate(code: int) -> None:
    """Raise UserError for one half of a UTF-16 pair, which is not a character."""
    if 0xD800 <= code < 0xE000:
        raise UserError(
            f"the text contains the lone surrogate U+{code:04X}, which is not a character; "
            "decode it properly (UTF-8 or UTF-16) first"
        )


class CharacterRules:
    """The properties of single characters. With ``original=True`` they are google-bert's: this Python's data.

    Otherwise they are those of transformers: private-use characters (Co) are dropped as well, and the tables
    are frozen, so that tokens do not depend on the version of Python. `unicode_tables` holds the exceptions.
    """

    def __init__(self, original: bool = False) -> None:
        def exceptions(text: str) -> tuple[range, ...]:
            return () if original else code_points(text)

        self.spaces = " \t\n\r" if original else " \t\n\r\u2028\u2029"
        self.dropped = ("Cc", "Cf") if original else ("Cc", "Cf", "Co")
        self.kept = exceptions(unicode_tables.KEPT)
        self.cjk = code_points(ORIGINAL_CJK if original else CJK)
        self.marks = exceptions(unicode_tables.MARKS)
        self.not_marks = exceptions(unicode_tables.NOT_MARKS)
        self.punctuation = exceptions(unicode_tables.PUNCTUATION)
        self.not_punctuation = exceptions(unicode_tables.NOT_PUNCTUATION)
        self.combining = exceptions(unicode_tables.COMBINING)
        self.not_combining = exceptions(unicode_tables.NOT_COMBINING)
        self.not_lowered = exceptions(unicode_tables.NOT_LOWERED)
        self.letters = exceptions(unicode_tables.LETTERS)
        self.not_letters = exceptions(unicode_tables.NOT_LETTERS)
        self.numbers = exceptions(unicode_tables.NUMBERS)
        self.not_numbers = exceptions(unicode_tables.NOT_NUMBERS)
        pairs = [] if original else [pair.split("-") for pair in unicode_tables.LOWERED.split()]
        self.lowered = {int(capital, 16): chr(int(small, 16)) for capital, small in pairs}
        self.not_decomposed = {
            "NFD": _any_of(exceptions(unicode_tables.NOT_DECOMPOSED)),
            "NFKD": _any_of(exceptions(unicode_tables.NOT_DECOMPOSED_COMPATIBLY)),
        }

    def is_space(self, code: int) -> bool:
        """Whitespace, which separates words."""
        return chr(code) in self.spaces or _in_category(code, ("Zs",))

    def is_dropped(self, code: int) -> bool:
        """Control characters and others that are invisible."""
        return code in (0, 0xFFFD) or _in_category(code, self.dropped, but_not=self.kept)

    def is_cjk(self, code: int) -> bool:
        """A Chinese character."""
        return within(code, self.cjk)

    def is_mark(self, code: int) -> bool:
        """A combining mark without width, such as an accent."""
        return within(code, self.marks) or _in_category(code, ("Mn",), but_not=self.not_marks)

    def is_combining(self, code: int) -> bool:
        """Any combining mark, also one that takes room or encloses."""
        return within(code, self.combining) or _in_category(code, ("M",), but_not=self.not_combining)

    def is_punctuation(self, code: int) -> bool:
        """Punctuation, including the symbols of ASCII."""
        if code < 128:
            return chr(code) in ASCII_PUNCTUATION
        return within(code, self.punctuation) or _in_category(code, ("P",), but_not=self.not_punctuation)

    def is_letter(self, code: int) -> bool:
        """A letter of any script, with or without case."""
        return within(code, self.letters) or _in_category(code, ("L",), but_not=self.not_letters)

    def is_number(self, code: int) -> bool:
        """A digit, a Roman numeral, a fraction."""
        return within(code, self.numbers) or _in_category(code, ("N",), but_not=self.not_numbers)

    def lower(self, code: int) -> str:
        """The lower case, which may have several characters: that of "İ" has two."""
        return chr(code) if within(code, self.not_lowered) else self.lowered.get(code) or chr(code).lower()

    def decompose(self, text: str, form: Literal["NFD", "NFKD"]) -> str:
        """NFD or NFKD; but characters unknown to the frozen tables stay as they are, and where they are."""
        parts = self.not_decomposed[form].split(text)  # every second part is such a character
        return "".join(part if i % 2 else unicodedata.normalize(form, part) for i, part in enumerate(parts))


def _any_of(ranges: tuple[range, ...]) -> re.Pattern:
    """One character of these ranges, as a group."""
    characters = "".join(f"{chr(r[0])}-{chr(r[-1])}" for r in ranges)
    return re.compile(f"([{characters}])" if characters else "((?!))")  # (?!) never matches


def _in_category(code: int, categories: tuple[str, ...], but_not: tuple[range, ...] = ()) -> bool:
    return unicodedata.category(chr(code)).startswith(categories) and not within(code, but_not)


class Normaliser:
    """Splits a text into words the way BERT does.

    1. NUL, U+FFFD, control, format and private-use characters are dropped; whitespace becomes a space.
    2. ``split_cjk``: spaces are put around each Chinese character.
    3. ``strip_accents`` (``None``: as ``lowercase``): canonical decomposition (NFD); marks (Mn) are dropped.
    4. ``lowercase``: character by character ("ΟΔΟΣ" → "οδοσ").
    5. Each punctuation character becomes a word of its own; the others end at spaces.

    The defaults follow current transformers. ``original_characters=True`` follows google-bert: Unicode data
    of the running Python, category Co kept, lower case by ``str.lower`` of the whole word ("ΟΔΟΣ" → "οδος").

    Raises UserError for lone surrogates, which are not characters and which no vocabulary could hold.
    """

    def __init__(
        self,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        original_characters: bool = False,
    ) -> None:
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.lower_whole_words = lowercase and original_characters
        rules = CharacterRules(original_characters)
        lower_characters = lowercase and not original_characters
        self._rules = rules
        clean = partial(_clean, rules=rules, split_cjk=split_cjk)
        finish = partial(_finish, rules=rules, strip=self.strip_accents, lowercase=lower_characters)
        self._clean = Memo(clean, limit=65_536)  # for str.translate: code point → text
        self._finish = Memo(finish, limit=65_536)
        self._normalise_character = Memo(self._normalise, limit=65_536)

    def words(self, text: str) -> list[str]:
        """The words of ``text``, normalised, in order."""
        return self._normalise(text).split()

    def words_with_sources(self, text: str) -> list[tuple[str, list[int]]]:
        """The words of ``text`` and, for each of their characters, the index in ``text`` it comes from.

        Each character becomes as many characters as it does by itself: "é" one, "각" three, a control
        character none. Its neighbours can change the form (a final sigma) and the order of marks (NFD), but
        never the number.
        """
        sources = [i for i, char in enumerate(text) for _ in self._normalise_character[char]]
        words = _WORD.finditer(self._normalise(text))
        return [(word[0], sources[word.start() : word.end()]) for word in words]

    def _normalise(self, text: str) -> str:
        """The words of ``text`` with whitespace between them."""
        text = text.translate(self._clean)
        if self.lower_whole_words:
            text = text.lower()
        if self.strip_accents and not text.isascii():
            text = self._rules.decompose(text, "NFD")
        return text.translate(self._finish)


def _clean(code: int, rules: CharacterRules, split_cjk: bool) -> str:
    refuse_surrogate(code)
    if rules.is_space(code):
        return " "
    if rules.is_dropped(code):
        return ""
    return f" {chr(code)} " if split_cjk and rules.is_cjk(code) else chr(code)


def _finish(code: int, rules: CharacterRules, strip: bool, lowercase: bool) -> str:
    if strip and rules.is_mark(code):
        return ""
    chars = rules.lower(code) if lowercase else chr(code)
    return "".join(f" {char} " if rules.is_punctuation(ord(char)) else char for char in chars)
