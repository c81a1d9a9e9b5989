"""Splitting paragraphs into sentences, by rule."""

import re

# A sentence may end after a mark, and the quotes or brackets that close after it, where white space
# follows; marks that nothing else uses end one without white space: those of Chinese and Japanese, Hindi and
# its neighbours, Urdu, Arabic, Armenian, Amharic, Khmer and Burmese. A run of marks is tried only as a whole.
_OWN_MARKS = "。！？｡।॥۔؟։።។။"
_POSSIBLE_END = re.compile(rf"""(?<![.!?…])[.!?…]+["'”’»)\]]*\s+|[{_OWN_MARKS}]+[”’」』）»"]*\s*""")
_ENDS_LIKE_A_SENTENCE = re.compile(rf"""[.!?…{_OWN_MARKS}]["'”’»)\]」』）]*$""")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘«—–]+$")
_INITIALS = re.compile(r"[A-Z]|(?:[^\W\d_]\.)+[^\W\d_]")  # "J" of "J. Smith", "U.S" of "U.S. Army"
_NEXT_WORD = re.compile(r"\w+")
_OPENING = "\"'“‘«([*_"

# Words whose full stop belongs to them, compared in lower case.
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof rev hon st mt ft messrs mme mlle gen col capt lt sgt maj cmdr adm gov sen rep
    pres sr jr p no nos vol vols ch chap sec fig figs eq eqs ref refs pp ed eds ca cf viz al approx resp incl
    esp vs e.g i.e jan feb mar apr jun jul aug sep sept oct nov dec inc ltd co corp""".split()
)
# After initials ("in the U.S. The ...") only these words are taken as the beginning of a sentence.
_STARTERS = frozenset(
    """the a an in on at it its he she they we this that these those there his her their our if when while
    after before as but and for however since although both all some many most""".split()
)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, each with its white space (line breaks too) reduced to single spaces.

    The rule: a sentence ends at ``.``, ``!``, ``?`` or ``…`` (with the quotes or brackets that close after
    it) before white space, and at such marks as ``。`` and ``।`` anywhere. It does not end there if a
    lower-case letter or another full stop follows, or if the full stop belongs to an abbreviation ("Mr.",
    "e.g.") or to initials ("J. Smith") that are not followed by a common sentence opener.
    """
    paragraph = " ".join(paragraph.split())
    sentences, start = [], 0
    for match in _POSSIBLE_END.finditer(paragraph):
        if _is_boundary(paragraph, start, match):
            sentences.append(paragraph[start : match.end()].rstrip())
            start = match.end()
    if start < len(paragraph):
        sentences.append(paragraph[start:])
    return sentences


def ends_like_a_sentence(line: str) -> bool:
    """Whether the line's last mark is one that ends sentences."""
    return bool(_ENDS_LIKE_A_SENTENCE.search(line.rstrip()))


def _is_boundary(text: str, start: int, match: re.Match) -> bool:
    following = text[match.end() : match.end() + 24].lstrip(_OPENING)
    if following[:1].islower() or following.startswith((".", "…")):  # ". . ." goes on
        return False
    if not match[0].startswith(". "):
        return True
    last_word = _LAST_WORD.search(text, max(start, match.start() - 24), match.start())
    if last_word is None:
        return True
    word = last_word[0]
    if word.lower() in _ABBREVIATIONS:
        return False
    if _INITIALS.fullmatch(word) and word != "I":
        opener = _NEXT_WORD.match(following)
        return opener is not None and opener[0].lower() in _STARTERS
    return True
