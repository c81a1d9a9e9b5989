"""English sentences from docstrings, without their code, tables, signatures and markup.

Docstrings mix prose with doctests, literal blocks, grammar, tables, lists of parameters, and
reStructuredText. First the lines are gathered into paragraphs, by indentation and markup. Then the markup
inside a paragraph is removed. Finally, each sentence must look like English.
"""

import inspect
import re
from collections.abc import Iterator

from minibert.data.sentences import split_sentences

# -- Lines to paragraphs ------------------------------------------------------------------------------

_UNDERLINE = re.compile(r"\s*([-=~^*\"'`#+.])\1{2,}\s*")  # beneath (or above) a heading
_TABLE = re.compile(r"\s*(?:[+|].*[+|]|[=\-~]{2,}(?:\s+[=\-~]+)+)\s*")
_DIRECTIVE = re.compile(r"\s*\.\.(?: +(?:\|\S+\| +)?([\w:-]+)::(.*)| .*|$)")
_PROSE_DIRECTIVES = ("note", "warning", "caution", "important", "tip", "hint", "admonition")
_ITEM = re.compile(r"\s*(?:[-*+•]|\(?(?:\d{1,2}|[a-zA-Z#])[.)])\s+(?=\S)")  # a bullet or a number
_FIELD = re.compile(r"\s*[:@](?:\w+)(?: [^:]*)?:\s+")  # ":param x: ..."
_SKIPPED_SECTIONS = ("references", "reference", "see also", "methods", "attributes summary", "bibliography")


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring that may be prose, each on one line, with the inline markup in it."""
    pending: list[str] = []  # the lines of the paragraph so far
    indent = 0  # where those lines begin
    skip_beyond: int | None = None  # leave out what is indented deeper than this
    skip_section = skip_lines = False  # leave out up to the next heading, up to the next blank line

    lines = inspect.cleandoc(text).expandtabs().split("\n")
    for number, line in enumerate(lines):
        body = line.strip()
        depth = len(line) - len(line.lstrip())
        if not body:
            skip_lines = False
            if pending and pending[-1].endswith("::"):  # a literal block follows
                skip_beyond = indent
            yield from _finish(pending)
            continue
        if skip_beyond is not None and depth > skip_beyond:
            continue
        skip_beyond = None
        if _UNDERLINE.fullmatch(line):
            heading = pending.pop().strip(" :").lower() if pending else ""
            yield from _finish(pending)
            skip_section = heading in _SKIPPED_SECTIONS
            continue
        if skip_section and not (number + 1 < len(lines) and _UNDERLINE.fullmatch(lines[number + 1])):
            continue
        if body.startswith((">>>", "...", "$ ")) or _TABLE.fullmatch(line):
            yield from _finish(pending)
            skip_lines = True
        if skip_lines:
            continue
        if directive := _DIRECTIVE.fullmatch(line):
            yield from _finish(pending)
            if directive[1] in _PROSE_DIRECTIVES:
                pending, indent = [directive[2].strip()] if directive[2].strip() else [], depth + 3
            else:
                skip_beyond = depth
            continue
        if marker := _ITEM.match(line) or _FIELD.match(line):
            yield from _finish(pending)
            pending.append(line[marker.end() :])
            indent = marker.end() if _ITEM.match(line) else depth + 4
            continue
        if pending and depth != indent:
            # A deeper line explains a term ("x : array_like", "break"), which is not prose itself;
            # a lesser one begins something new.
            if depth > indent and len(pending) == 1 and not pending[0].endswith((".", ",")):
                pending.clear()
            yield from _finish(pending)
        if not pending:
            indent = depth
        pending.append(body)
    yield from _finish(pending)


def _finish(pending: list[str]) -> Iterator[str]:
    if pending:
        yield " ".join(pending)
        pending.clear()


# -- Inline markup --------------------------------------------------------------------------------------

# A plain string to look for first, because that is much faster, and few paragraphs have it.
_MARKUP = [
    # Replaced by a backslash, for which the sentence is then rejected.
    ("`", re.compile(r":[\w:+-]*math:`[^`]*`"), "\\\\"),
    # :func:`name`, :ref:`text <target>`
    ("`", re.compile(r":[\w:+.-]+:`[~!.]*([^`<]*?)(?: *<[^`]*>)?`"), r"\1"),
    # `text <url>`_
    ("`", re.compile(r"`([^`<]+?) *<[^`]*>`_{0,2}"), r"\1"),
    ("`", re.compile(r"``?[~!.]*([^`]*)``?_{0,2}"), r"\1"),
    # Bold, emphasis.
    ("*", re.compile(r"\*\*([^*\s][^*]*)\*\*|(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1\2"),
    # Footnote marks in brackets.
    ("[", re.compile(r"\s*\((?:see |e\.g\. )?\[\w+\]_?(?:, \[\w+\]_?)*\)"), ""),
    # "as in [1]_"
    ("]_", re.compile(r"\b(?:and|by|from|in|of|on|or|see|to|with) \[\w+\]_", re.IGNORECASE), "\\\\"),
    ("]_", re.compile(r",? ?\[\w+\]_"), ""),
    # A function's name.
    ("()", re.compile(r"(\w)\(\)"), r"\1"),
    ("::", re.compile(r"(?<=[.!?])::$"), ""),
    ("::", re.compile(r"::$"), ":"),
    ("", re.compile(r"\s+([.,;:!?])(?=\s|$)"), r"\1"),
    ("--", re.compile(r" -{2,3} |(?<=\w)-{2,3}(?=\w)"), " – "),
]


def without_markup(paragraph: str) -> str:
    """The paragraph as it would be read: without roles, backticks, asterisks and footnote marks."""
    for sign, pattern, replacement in _MARKUP:
        if sign in paragraph:
            paragraph = pattern.sub(replacement, paragraph)
    return paragraph


# -- Prose or not -------------------------------------------------------------------------------------

_BEGINS = re.compile(r"[\"'“‘(]?[A-Z]")
_ENDS = re.compile(r"[.!?:][\"'”’)]*$")
_FORBIDDEN = re.compile(r"[=<>{}\\^|@#~$%`]|::|\.\.|->|[\[(] *[\])]\S|\w\(\w*\w\)|https?:")
_PLAIN_WORD = re.compile(
    r"[(\"'“‘]*(?:[A-Za-z]?[a-z]+|[A-Z]+s?)(?:[-'’/](?:[A-Za-z]?[a-z]+|[A-Z]+))*[)\"'”’.,;:!?]*"
)
_COMMON = frozenset(
    """the a an of to in is are be was were been it its this that these those for with as by on at from or
    and not if when which who what can may will would should must has have had do does no any all each than
    then there their they you your we into but only also such used use using one two""".split()
)


def is_prose(sentence: str) -> bool:
    """Whether a sentence reads as English: it begins and ends like one, and consists of plain words.

    At least four words and at most a hundred, three quarters of them plain (letters, not identifiers or
    numbers), 12 % of them from the commonest English words; brackets and quotes closed; no characters
    of code.
    """
    words = sentence.split()
    if not 4 <= len(words) <= 100 or not _BEGINS.match(sentence) or not _ENDS.search(sentence):
        return False
    if _FORBIDDEN.search(sentence) or sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    plain = [word for word in words if _PLAIN_WORD.fullmatch(word)]
    common = sum(word.strip("(\"'.,;:!?)").lower() in _COMMON for word in plain)
    return len(plain) >= 0.75 * len(words) and common >= max(1, 0.12 * len(words))


def prose_sentences(text: str) -> list[str]:
    """The English sentences of a docstring, in order."""
    return [
        sentence
        for paragraph in paragraphs(text)
        for sentence in split_sentences(without_markup(paragraph))
        if is_prose(sentence)
    ]


def sentence_key(sentence: str) -> str:
    """What a sentence has in common with its repetitions, which differ in case, numbers and punctuation."""
    return " ".join(re.findall(r"[^\W\d_]+", sentence.lower()))
