"""Tasks that everybody has the data for, from the documentation installed with Python.

A docstring says what a function does, first in one line and then at length, and what its parameters mean.
This gives labels that nobody had to write. The examples are the same for the same versions of the packages.
A source file goes as a whole to the training or the dev set, and no sentence is used twice.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain

from minibert.data.docstrings import (
    Docstring,
    ParameterText,
    documented_parameters,
    garbage_collection_paused,
    read_docstrings,
)
from minibert.data.embedded import Module, installed_modules
from minibert.data.prose import is_prose, paragraphs, sentence_key, without_markup
from minibert.data.randomness import generator
from minibert.data.sentences import split_sentences
from minibert.data.tasks.conll import TaggedSentence
from minibert.data.tasks.faults import Place
from minibert.data.tasks.passages import Passage, Query
from minibert.data.tasks.squad import Answer, Question
from minibert.data.tasks.tables import TextExample
from minibert.errors import UserError

PARTS = ("train", "dev")
LIBRARIES = ("matplotlib", "numpy", "python", "scipy")  # those with docstrings by the thousand
PARAMETER = "B-parameter"  # the tag of a parameter's name
_DEV_SHARE = 5  # one file in this many is for the dev set
_SHORTEST, _LONGEST = 8, 60  # words of a text


@dataclass(frozen=True)
class Sentence:
    """A sentence of a docstring as it would be read, and as it is written there, with its markup."""

    text: str
    marked_up: str


@dataclass(frozen=True)
class Entry:
    """What the documentation says about a function or a class; ``name`` is its import path."""

    library: str
    place: Place
    name: str
    docstring: Docstring
    has_summary: bool  # whether the first of the sentences is the docstring's first
    sentences: list[Sentence]

    @property
    def part(self) -> str:
        """Train or dev, by the name of the file: it does not depend on what other files there are."""
        return "train" if zlib.crc32(str(self.place.path).encode()) % _DEV_SHARE else "dev"

    @property
    def summary(self) -> str:
        """The first sentence."""
        return self.sentences[0].text

    @property
    def description(self) -> str:
        """The sentences after the summary, as many as make up a short text."""
        return _short_text(self.sentences[1:])

    @cached_property
    def parameters(self) -> list[ParameterText]:
        """What is said about each parameter; two of the tasks use it."""
        return documented_parameters(self.docstring.text)

    def is_named_in(self, text: str) -> bool:
        """Whether the last part of the name is in the text."""
        return self.name.rpartition(".")[2] in _WORD.findall(text)


# -- The tasks ------------------------------------------------------------------------------------------


def library_texts(part: str) -> list[TextExample]:
    """Which library is this docstring from? Equally many from each of `LIBRARIES`, which they do not name."""
    texts: dict[str, list[TextExample]] = {library: [] for library in LIBRARIES}
    for entry in _entries(part):
        text = _short_text(entry.sentences)
        if _is_long_enough(text):
            texts[entry.library].append(TextExample(text, None, entry.library, entry.place))
    return list(chain.from_iterable(zip(*texts.values(), strict=False)))


def summary_pairs(part: str) -> list[TextExample]:
    """Does this summary belong to this description ("same"), or to another function ("other")?

    Every text is used once, so that neither alone gives the answer away; the other function is of the same
    library.
    """
    entries = _described(part)
    partners = list(entries)
    for library in LIBRARIES:
        mixed = [i for i, entry in enumerate(entries) if entry.library == library][::2]
        for i, j in zip(mixed, mixed[1:] + mixed[:1], strict=True):
            partners[i] = entries[j]
    return [
        TextExample(partner.summary, entry.description, "same" if partner is entry else "other", entry.place)
        for entry, partner in zip(entries, partners, strict=True)
    ]


def search_pairs(part: str) -> list[TextExample]:
    """Which function does this? A summary, and the description to be found by it."""
    return [TextExample(entry.summary, entry.description, None, entry.place) for entry in _sought(part)]


def search_passages(part: str) -> list[Passage]:
    """The descriptions of `search_pairs` as passages for an index; the title is the function's name."""
    return [Passage(str(entry.place), entry.description, entry.name) for entry in _sought(part)]


def search_queries(part: str) -> list[Query]:
    """The summaries of `search_pairs`, and the ids of the passages to be found."""
    return [Query(entry.summary, str(entry.place)) for entry in _sought(part)]


def _sought(part: str) -> list[Entry]:
    """The functions with a summary and a description, unless both name it: that one word would find it."""
    return [
        entry
        for entry in _described(part)
        if not (entry.is_named_in(entry.summary) and entry.is_named_in(entry.description))
    ]


def parameter_tags(part: str) -> list[TaggedSentence]:
    """Which words are names of the function's parameters? Half of the sentences have some."""
    tagged: list[TaggedSentence] = []
    others: list[TaggedSentence] = []
    for entry in _entries(part):
        names = {*entry.docstring.parameters, *chain.from_iterable(text.names for text in entry.parameters)}
        for sentence in entry.sentences:
            words = _WORD.findall(sentence.text)
            tags = _tags(words, sentence.marked_up, names)
            if tags is not None:
                (tagged if PARAMETER in tags else others).append(TaggedSentence(words, tags, entry.place))
    return list(chain.from_iterable(zip(tagged, others, strict=False)))


_MARKED = re.compile(r"(?<![\w`*])(``|`|\*)(\w+)\1(?![\w`*])")  # `axis`, ``axis``, *axis*
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


def _tags(words: list[str], marked_up: str, parameters: set[str]) -> list[str] | None:
    """The tags of a sentence's words; None if it is unclear whether a word is meant as a parameter's name.

    It is if it is marked up, or if it is not an ordinary word, such as fill_value or x0. An "a" that is not
    marked up is the article.
    """
    marked = Counter(match[2] for match in _MARKED.finditer(marked_up))
    tags = []
    for word in words:
        if word not in parameters or (word == "a" and not marked[word]):
            tags.append("O")
        elif marked[word] == words.count(word) or re.search(r"[_\d]", word):
            tags.append(PARAMETER)
        else:
            return None
    return tags


def parameter_questions(part: str) -> list[Question]:
    """What is this parameter, or what type does it have? The passage explains two or more of a function."""
    questions: list[Question] = []
    for entry in _entries(part):
        explained = list(_explained(entry))
        if len(explained) > 1:
            questions += _questions(explained, entry.place)
    return questions


_NOT_TYPE = re.compile(r",? *\(?(?:optional|default)\b.*")  # ", optional", ", default: 1"


def _explained(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of the parameters whose meaning begins with one of the entry's sentences."""
    own = {sentence.text for sentence in entry.sentences}
    for parameter in entry.parameters:
        kind = " ".join(_NOT_TYPE.sub("", without_markup(parameter.type)).strip(" .").split())
        meaning = next((sentence.text for sentence in _sentences(parameter.text)), None)
        if len(parameter.names) == 1 and 1 <= len(kind.split()) <= 8 and meaning in own:
            yield parameter.names[0], kind, meaning


def _questions(explained: list[tuple[str, str, str]], place: Place) -> Iterator[Question]:
    """A question about each parameter, alternately about its meaning and its type."""
    lines = [f"{name} ({kind}): {meaning}" for name, kind, meaning in explained]
    passage, start = " ".join(lines), 0
    for i, (name, kind, meaning) in enumerate(explained):
        if i % 2:
            text, answer = f"What type does {name} have?", Answer(kind, start + len(f"{name} ("))
        else:
            text, answer = f"What is {name}?", Answer(meaning, start + len(f"{name} ({kind}): "))
        yield Question(f"{place}, {name}", text, passage, str(place.path), (answer,))
        start += len(lines[i]) + 1


# -- Reading --------------------------------------------------------------------------------------------


def _entries(part: str) -> list[Entry]:
    if part not in PARTS:
        raise UserError(f"the documentation has the parts {' and '.join(PARTS)}, but no {part!r}")
    return [entry for entry in _all_entries() if entry.part == part]


def _described(part: str) -> list[Entry]:
    """The entries with a summary and a description."""
    return [entry for entry in _entries(part) if entry.has_summary and _is_long_enough(entry.description)]


@cache
def _all_entries() -> list[Entry]:
    """All entries, in a random order that is always the same. This takes a few seconds, once."""
    entries: list[Entry] = []
    seen: set[str] = set()
    with garbage_collection_paused():
        for module in installed_modules():
            if module.package in LIBRARIES:
                docstrings = read_docstrings(module.path)
                entries += [_entry(module, docstring, seen) for docstring in docstrings if docstring.name]
    entries = [entry for entry in entries if entry.sentences]
    return [entries[i] for i in generator("documentation").permutation(len(entries))]


def _entry(module: Module, docstring: Docstring, seen: set[str]) -> Entry:
    """What a docstring says in sentences that have not been ``seen``; they are added to these."""
    sentences = list(_sentences(docstring.text))
    usable = [sentence for sentence in sentences if _is_usable(sentence.text, seen)]
    return Entry(
        library=module.package,
        place=Place(f"{module.package}/{module.name}", docstring.line),
        name=f"{_import_path(module)}.{docstring.name}",
        docstring=docstring,
        has_summary=bool(usable) and usable[0] is sentences[0],
        sentences=usable,
    )


def _import_path(module: Module) -> str:
    """Such as numpy.linalg, for numpy/linalg/__init__.py."""
    name = module.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if module.package == "python" else f"{module.package}.{name}"


_SIGNATURE = re.compile(r"[\w.]+\(.*\)(?: -> .*)?")


def _sentences(text: str) -> Iterator[Sentence]:
    for paragraph in paragraphs(text):
        if not _SIGNATURE.fullmatch(paragraph):
            for sentence in split_sentences(paragraph):
                yield Sentence(without_markup(sentence), sentence)


# A library by its name, its usual abbreviation, or a path such as linalg.norm.
_TELLS_LIBRARY = re.compile(
    r"numpy|scipy|matplotlib|pyplot|pylab|python|\b(?:np|mpl|plt)\b|[A-Za-z_]\w+\.[A-Za-z_]\w+", re.IGNORECASE
)


def _is_usable(sentence: str, seen: set[str]) -> bool:
    """Whether this is a complete sentence that does not name its library and has not been ``seen``."""
    if not is_prose(sentence) or sentence.endswith(":") or _TELLS_LIBRARY.search(sentence):
        return False
    key = sentence_key(sentence)
    is_new = key not in seen
    seen.add(key)
    return is_new


def _short_text(sentences: list[Sentence]) -> str:
    """The first sentences, as many as have no more than _LONGEST words together."""
    totals = accumulate(len(sentence.text.split()) for sentence in sentences)
    return " ".join(s.text for s, total in zip(sentences, totals, strict=True) if total <= _LONGEST)


def _is_long_enough(text: str) -> bool:
    return len(text.split()) >= _SHORTEST
