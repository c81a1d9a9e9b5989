"""From text to words that carry the space before them, as ▁: what a unigram model segments."""

import re
from functools import partial

from minibert.errors import UserError
from minibert.text.charsmap import EXTENDS, CharacterMap
from minibert.text.normalise import WHITE_SPACE, CharacterRules, Memo, refuse_surrogate

SPACE = "▁"  # U+2581, begins a piece that begins a word

_WORD = re.compile(f"[^{WHITE_SPACE}]+")
_QUOTES = re.compile("``|''")
_MARK = re.compile(f"[{EXTENDS}]")
_BEFORE_SPACE = re.compile(f"(?={SPACE})")


class MetaspaceNormaliser:
    """Splits a text into words the way ALBERT and XLNet do, each with ▁ before it.

    1. Two grave accents, and two apostrophes, become a double quote.
    2. Compatibility decomposition (NFKD); marks are dropped. Not so if accents are kept.
    3. ``lowercase``: character by character ("ΟΔΟΣ" → "οδοσ").
    4. What the ``character_map`` says, if there is one.
    5. Words end at whitespace, and before each ▁ in them. Each begins with one ▁.

    This is the normaliser that current transformers puts together. Raises UserError for lone surrogates, and
    for a ``character_map`` that makes something else of the space.
    """

    def __init__(self, *, lowercase: bool, keep_accents: bool, character_map: CharacterMap | None) -> None:
        self.lowercase, self.keep_accents = lowercase, keep_accents
        self.character_map = character_map
        self._rules = CharacterRules()
        self._finish = Memo(
            partial(_finish, rules=self._rules, strip=not keep_accents, lowercase=lowercase), limit=65_536
        )
        self.keeps_ascii = character_map is None or character_map.keeps_ascii

        # Only what stays whitespace separates chunks: nmt_nfkc drops \x0b, so that "a\x0bb" is one word.
        separators = "".join(
            char for char in WHITE_SPACE if (text := self.normalise(char)) and not text.strip()
        )
        if " " not in separators:
            raise UserError("rules of normalisation that replace the space are not supported")
        self.ascii_separators = "".join(filter(str.isascii, separators))
        # A mark is in one cluster with the space before it, which therefore goes with its chunk.
        self._before_foreign = re.compile(f"[{separators}][^\x00-\x7f]")  # is found faster than with a mark
        self.chunk = re.compile(f"(?:[{separators}](?=[{EXTENDS}]))?[^{separators}]+")

    def chunks(self, text: str) -> list[str]:
        """Split at whitespace, before anything else: a text's words are those of its chunks, in order."""
        return text.split() if text.isascii() and text.isprintable() else self.chunk.findall(text)

    def has_space_in_cluster(self, text: str) -> bool:
        """Whether a mark comes after a space, which then ends no chunk."""
        found = () if text.isascii() else self._before_foreign.finditer(text)
        return any(_MARK.match(match[0][1]) for match in found)

    def words(self, text: str) -> list[str]:
        """The words of ``text``, normalised, in order."""
        words = [_with_space(word) for word in _WORD.findall(self.normalise(text))]
        return [part for word in words for part in _BEFORE_SPACE.split(word) if part]

    def words_with_sources(self, text: str) -> list[tuple[str, list[int]]]:
        """The words of ``text`` and, for each of their characters, the index in ``text`` it comes from.

        The ▁ that is put before a word has the source of the word's first character, a double quote that of
        the second of its two characters, and a replaced cluster that of its first: as in transformers.
        """
        normal, sources = self._trace(text)
        found = []
        for match in _WORD.finditer(normal):
            word, begin = _with_space(match[0]), match.start()
            where = [sources[begin]] * (len(word) - len(match[0])) + sources[begin : match.end()]
            for part in _BEFORE_SPACE.split(word):
                if part:
                    found.append((part, where[: len(part)]))
                    where = where[len(part) :]
        return found

    def normalise(self, text: str) -> str:
        """Steps 1 to 4."""
        if "''" in text or "``" in text:
            text = _QUOTES.sub('"', text)
        if text.isascii():
            text = text.lower() if self.lowercase else text
            if self.keeps_ascii and text.isprintable():
                return text
        else:
            if not self.keep_accents:
                text = self._rules.decompose(text, "NFKD")
            text = text.translate(self._finish)
        return self.character_map.apply(text) if self.character_map else text

    def _trace(self, text: str) -> tuple[str, list[int]]:
        """`normalise`, and the source of each character."""
        sources, begin = [], 0
        for match in _QUOTES.finditer(text):
            sources += [*range(begin, match.start()), match.end() - 1]
            begin = match.end()
        sources += range(begin, len(text))
        text = _QUOTES.sub('"', text)
        if not self.keep_accents:  # NFKD may change the order of marks, but these are dropped
            sources = [
                i for i, c in zip(sources, text, strict=True) for _ in self._rules.decompose(c, "NFKD")
            ]
            text = self._rules.decompose(text, "NFKD")
        finished = [self._finish[ord(char)] for char in text]
        sources = [i for i, chars in zip(sources, finished, strict=True) for _ in chars]
        text = "".join(finished)
        if self.character_map:
            parts = list(self.character_map.parts(text))
            sources = [sources[i] for i, chars in parts for _ in chars]
            text = "".join(chars for _, chars in parts)
        return text, sources


def _with_space(word: str) -> str:
    return word if word[0] == SPACE else SPACE + word


def _finish(code: int, rules: CharacterRules, strip: bool, lowercase: bool) -> str:
    refuse_surrogate(code)
    if strip and rules.is_combining(code):
        return ""
    return rules.lower(code) if lowercase else chr(code)
