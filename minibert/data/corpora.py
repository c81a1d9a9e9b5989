"""Texts to train on: the embedded corpus, or files of one's own."""

import copy
import glob
import gzip
import hashlib
import html
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minibert.data.embedded import embedded_documents, embedded_sources
from minibert.data.lines import LONE_SURROGATE, decoded_lines, is_compressed, read_lines, suffix
from minibert.data.sentences import ends_like_a_sentence, split_sentences
from minibert.errors import UserError
from minibert.ranks import ALONE, Ranks

LAYOUTS = ("auto", "sentences", "paragraphs", "wrapped")

SUFFIXES = (".txt", ".jsonl", ".gz")  # what is taken from a folder, besides WikiExtractor's wiki_00
JSON_OBJECT = re.compile(r'\s*\{\s*"')  # a file whose first text is this holds JSON, whatever its name
OTHER_JSON = re.compile(r"\s*(\{\s*$|\[\s*(\{|$))")  # an array, or an object of several lines
SAMPLE_LINES = 1000  # how many lines of a text file decide its layout,
SAMPLE_CHARACTERS = 16_000_000  # and how many characters at most
LINES_OF_A_SENTENCE = 10  # where sentences seem to be longer than this, nobody has marked their ends
LONGEST_NAME = 255  # no file system that we know allows more bytes in a name
MAX_DOCUMENT_CHARACTERS = 8_000_000  # a longer text is cut into several documents, to bound the memory


@dataclass(frozen=True)
class RawDocument:
    """A document before it is split into sentences.

    ``paragraphs`` hold several sentences each if ``split`` is set; otherwise they are sentences.
    ``position`` says how far into the corpus the document ends, in the unit of ``Corpus.size``.
    """

    paragraphs: list[str]
    split: bool
    position: int

    def sentences(self) -> list[str]:
        """The document's sentences, without empty ones."""
        if self.split:
            return [sentence for paragraph in self.paragraphs for sentence in split_sentences(paragraph)]
        return [line for line in (" ".join(line.split()) for line in self.paragraphs) if line]

    def key(self) -> int:
        """64 bits (BLAKE2b) of the text: the same for documents with the same text, wherever they stand.

        Blank lines and the white space at the ends of lines are no part of the text.
        """
        text = "\n".join(filter(None, map(str.strip, self.paragraphs)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Corpus:
    """Documents in a fixed order. Iterating gives each as a list of its sentences, without keeping any.

    Each has at least one sentence. Several ``ranks`` see the same corpus; each has a share of its documents.
    """

    name: str
    size: int  # in ``unit``s, for progress bars
    unit: str
    ranks: Ranks = ALONE

    def raw_documents(self) -> Iterator[RawDocument]:
        """The documents before sentences are split, so that several processes can share that work."""
        raise NotImplementedError

    def share(self) -> "Corpus":
        """The documents of this rank, as a corpus. The shares of all ranks in their order are the whole."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """A hash (SHA-256, hexadecimal) of everything that the documents are made from."""
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Raise UserError if a file is not what it was when the corpus was opened."""

    def describe(self) -> str:
        """One line about the corpus: what it is, its size, its hash."""
        raise NotImplementedError

    def document_keys(self) -> np.ndarray:
        """The key of each document: (documents,) uint64. Reads the whole corpus once."""
        return np.fromiter((document.key() for document in self.raw_documents()), dtype=np.uint64)

    def __iter__(self) -> Iterator[list[str]]:
        return (document.sentences() for document in self.raw_documents())


def open_corpus(
    paths: str | Path | Sequence[str | Path] | None = None, layout: str = "auto", ranks: Ranks = ALONE
) -> Corpus:
    """The corpus of one or several files, folders and globs, or the embedded corpus if there are none.

    Files may be plain text (``.txt``), ``.jsonl`` (one document per line: an object with a "text", or a
    string), or WikiExtractor's output (``<doc …>`` … ``</doc>``), each also compressed (``.gz``).
    A folder stands for all ``.txt``, ``.jsonl``, ``.gz`` and ``wiki_…`` files in it and below it, in the
    order of their names; hidden files are left out.

    ``layout`` says what a line of plain text is:
      * "sentences": a sentence; blank lines separate documents;
      * "paragraphs": a paragraph; the file is one document;
      * "wrapped": part of a paragraph, which goes on up to a blank or an indented line; the file is one
        document;
      * "auto": judge each file by its first lines (up to 1,000 that are not blank, among the first
        2,000): "sentences" if at least 80 % of them are exactly one sentence, else "paragraphs" if at
        least half of them end like a sentence, else "wrapped"; but "sentences" again if ten lines have less
        than one end of a sentence or paragraph, as in text without punctuation.
    A line of a text in JSON is a paragraph, unless ``layout`` says otherwise. A text of more than 8 million
    characters is cut into several documents.

    Several ``ranks`` have to see the same files. Each reads a share of them (`Corpus.share`), and hashes are
    made together, so that every rank has to ask for them.

    Raises UserError if a path leads nowhere, to a device, or to an empty or unreadable file. Errors inside a
    file (binary, not UTF-8, damaged, a line of more than 32 MiB) are raised, with its name, when it is read.
    """
    if layout not in LAYOUTS:
        raise UserError(f"unknown text layout {layout!r}; expected one of {', '.join(LAYOUTS)}")
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not paths:
        return EmbeddedCorpus(ranks)
    return FileCorpus([str(path) for path in paths], layout, ranks)


class EmbeddedCorpus(Corpus):
    """The English documentation that comes with Python and with the packages we depend on."""

    name = "embedded"
    unit = "doc"

    def __init__(self, ranks: Ranks = ALONE):
        self.documents = embedded_documents()
        self.size = len(self.documents)
        self.ranks = ranks

    def raw_documents(self) -> Iterator[RawDocument]:
        for index, sentences in enumerate(self.documents):
            yield RawDocument(sentences, split=False, position=index + 1)

    def share(self) -> Corpus:
        """An equal part of the documents."""
        own = copy.copy(self)
        own.ranks = ALONE
        start, stop = (self.size * rank // self.ranks.size for rank in (self.ranks.rank, self.ranks.rank + 1))
        own.documents, own.size = self.documents[start:stop], stop - start
        return own

    def fingerprint(self) -> str:
        text = "\n\n".join("\n".join(sentences) for sentences in self.documents)
        return hashlib.sha256(text.encode()).hexdigest()

    def describe(self) -> str:
        sentences = sum(len(document) for document in self.documents)
        characters = sum(len(sentence) for document in self.documents for sentence in document)
        return (
            f"embedded corpus: documentation of {', '.join(embedded_sources())}; {self.size:,} documents, "
            f"{sentences:,} sentences, {characters / 1e6:.1f} MB, sha256 {self.fingerprint()[:16]}"
        )


class FileCorpus(Corpus):
    """Text files of one's own; see ``open_corpus``."""

    unit = "B"

    def __init__(self, paths: Sequence[str], layout: str = "auto", ranks: Ranks = ALONE):
        self.name = " ".join(paths)
        self.layout = layout
        self.ranks = ranks
        self._digests: dict[Path, str] = {}  # of the files that were read for them
        self._set_files(_find_files(paths))

    def _set_files(self, files: list[Path]) -> None:
        self.files = files
        self._sizes = [_check_readable(file) for file in files]
        self._stamps = [_stamp(file) for file in files]
        self.size = sum(self._sizes)

    def raw_documents(self) -> Iterator[RawDocument]:
        offset = 0
        for file, size in zip(self.files, self._sizes, strict=True):
            yield from _read_file(file, self.layout, offset)
            offset += size

    def share(self) -> "FileCorpus":
        """Whole files, about as many bytes on each rank: those whose middle lies in its part of the bytes."""
        own = copy.copy(self)
        own.ranks = ALONE
        ends = np.cumsum(self._sizes)
        owners = (ends - np.array(self._sizes) / 2) * self.ranks.size // self.size
        own._set_files([f for f, owner in zip(self.files, owners, strict=True) if owner == self.ranks.rank])
        return own

    def check_unchanged(self) -> None:
        for file, stamp in zip(self.files, self._stamps, strict=True):
            if _stamp(file) != stamp:
                raise UserError(f"{file}: it has changed since the corpus was opened; start again")

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = _digest(path)
        return self._digests[path]

    def fingerprint(self) -> str:
        digests = self.ranks.gather([self._digest(path) for path in self.share().files])
        total = hashlib.sha256(self.layout.encode())
        for digest in itertools.chain.from_iterable(digests):
            total.update(bytes.fromhex(digest))
        return total.hexdigest()

    def describe(self) -> str:
        return (
            f"corpus {self.name}: {len(self.files):,} file(s), {self.size / 1e6:.1f} MB, "
            f"sha256 {self.fingerprint()[:16]}"
        )


def _digest(path: Path) -> str:
    """A hash of the file's bytes and, where only the name says that they are JSON, of that."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    if suffix(path) == "jsonl" and not JSON_OBJECT.match(next(filter(str.strip, read_lines(path)), "")):
        digest.update(b"jsonl")
    return digest.hexdigest()


# -- Finding files --------------------------------------------------------------------------------


def _find_files(paths: Sequence[str]) -> list[Path]:
    """The files that names, folders and globs stand for, each once, in the order given and then by name."""
    files: dict[Path, Path] = {}  # by the place where they really are
    for path in paths:
        if not path.strip():
            raise UserError("a path of the corpus is empty; give a file, a folder or a pattern")
        if len(os.fsencode(Path(path).name)) > LONGEST_NAME:
            raise UserError(f"{path[:40]}…: too long for a path; give that of the corpus, not a text")
        if os.path.isdir(path):
            found = _files_in(Path(path))
            if not found:
                raise UserError(
                    f"{path}: this folder holds no {', '.join(SUFFIXES)} or wiki_… file to train on"
                )
        elif os.path.exists(path):
            found = [Path(path)]
        elif glob.has_magic(path):
            matches = [Path(match) for match in sorted(glob.glob(path, recursive=True))]
            found = [file for match in matches for file in _files_of_match(match, inner="**" in path)]
            if not found:
                raise UserError(f"{path}: no file matches this pattern; check it")
        else:
            raise UserError(f"{path}: no such file or folder; check the path of the corpus")
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _files_of_match(match: Path, inner: bool) -> list[Path]:
    """A file, or those in a folder, if the pattern does not match what is in it anyway (``inner``)."""
    if match.is_dir():
        return [] if inner else _files_in(match)
    return [match]


def _files_in(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if _belongs_to_corpus(file, folder)]


def _stamp(file: Path) -> tuple[int, int] | None:
    """What changes if the file does; None if it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _belongs_to_corpus(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    known = file.suffix.lower() in SUFFIXES or re.fullmatch(r"wiki_\d+", file.name)
    return file.is_file() and bool(known) and not hidden


def _check_readable(file: Path) -> int:
    """The file's size in bytes. Raises UserError if it cannot be read or cannot be text."""
    if file.is_symlink() and not file.exists():
        raise UserError(f"{file}: a link that leads nowhere; remove it, or put back what it links to")
    if not file.exists():
        raise UserError(f"{file}: no such file any more; it was there when the corpus was opened")
    if not file.is_file():
        raise UserError(f"{file}: a device or a pipe; a corpus is read several times, so give a file")
    if file.name.lower().endswith((".tar.gz", ".tgz", ".tar", ".zip")):
        raise UserError(f"{file}: an archive; unpack it first and give the folder with its text files")
    if file.name.lower().endswith((".bz2", ".xz", ".zst")):
        raise UserError(f"{file}: compressed, but not with gzip; unpack it, or compress it as .gz")
    try:
        with open(file, "rb") as stream:
            if not stream.read(1):
                raise UserError(f"{file}: the file is empty; remove it or give another one")
    except OSError as error:
        raise UserError(f"{file}: cannot read this file ({error.strerror})") from None
    return file.stat().st_size


# -- Reading files ----------------------------------------------------------------------------------


def _read_file(path: Path, layout: str, offset: int) -> Iterator[RawDocument]:
    """The documents of one file; ``offset`` counts the bytes of the corpus before it."""
    with open(path, "rb") as raw, gzip.open(raw) if is_compressed(path) else raw as stream:
        # A carriage return alone ended a line on old Macs.
        lines: Iterator[str] = (part for line in decoded_lines(stream, path) for part in line.split("\r"))
        head = list(_until_first_text(lines))
        first = head[-1] if head else ""
        lines = itertools.chain(head, lines)
        if suffix(path) == "jsonl" or JSON_OBJECT.match(first):
            texts = _jsonl_documents(lines, path)  # each is one document, whatever blank lines it has
            documents = map(_unwrap, texts) if layout == "wrapped" else texts
            split = layout != "sentences"
        elif OTHER_JSON.match(first):
            raise UserError(f"{path}: JSON, but not an object in each line; write it as JSON lines (.jsonl)")
        elif first.startswith("<doc "):
            documents, split = _wikiextractor_documents(lines), True
        else:
            layout, lines = _judge_layout(lines, layout)
            documents, split = _text_documents(lines, layout), layout != "sentences"
        for paragraphs in itertools.chain.from_iterable(map(_parts, documents)):
            if any(map(str.strip, paragraphs)):
                yield RawDocument(paragraphs, split, offset + raw.tell())


def _parts(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    """A document in parts that end where ``MAX_DOCUMENT_CHARACTERS`` are reached. No paragraph is divided."""
    part: list[str] = []
    characters = 0
    for paragraph in paragraphs:
        part.append(paragraph)
        characters += len(paragraph)
        if characters >= MAX_DOCUMENT_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def _until_first_text(lines: Iterator[str]) -> Iterator[str]:
    """The blank lines that a file begins with, and the line after them."""
    for line in lines:
        yield line
        if line.strip():
            return


def _jsonl_documents(lines: Iterable[str], path: Path) -> Iterator[Iterable[str]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # JSONDecodeError, or a number of too many digits
            raise UserError(f"{path}: line {number} is not valid JSON ({error}); repair or drop it") from None
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise UserError(f'{path}: line {number} should be an object with a string "text", or a string')
        if LONE_SURROGATE.search(text):
            raise UserError(
                f"{path}: line {number} holds half a surrogate pair (\\ud800 … \\udfff); repair or drop it"
            )
        yield text.split("\n")


def _wikiextractor_documents(lines: Iterable[str]) -> Iterator[Iterable[str]]:
    """The articles between ``<doc …>`` and ``</doc>``, one paragraph per line, without the title line."""
    article: list[str] = []
    title = ""
    for line in lines:
        if line.startswith("<doc "):
            yield article  # it has no end if it is not empty
            match = re.search(r'title="(.*?)"', line)
            article, title = [], html.unescape(match[1]) if match else ""
            continue
        text, end, _ = line.partition("</doc>")
        text = html.unescape(text)
        if text.strip() and (article or text != title):
            article.append(text)
        if end:
            yield article
            article = []
    yield article  # not empty if the file breaks off


def _text_documents(lines: Iterable[str], layout: str) -> Iterator[Iterable[str]]:
    if layout == "wrapped":
        yield _unwrap(lines)
    elif layout == "paragraphs":
        yield (line for line in lines if line.strip())
    else:
        for has_text, document in itertools.groupby(lines, lambda line: bool(line.strip())):
            if has_text:
                yield document


def _unwrap(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of a paragraph; a blank line ends one, an indented line begins one.

    One that is as long as a document may be ends, too.
    """
    paragraph: list[str] = []
    characters = 0
    for line in lines:
        ends = not line.strip() or line[0].isspace() or characters >= MAX_DOCUMENT_CHARACTERS
        if paragraph and ends:
            yield " ".join(paragraph)
            paragraph, characters = [], 0
        if line.strip():
            paragraph.append(line)
            characters += len(line)
    if paragraph:
        yield " ".join(paragraph)


def _judge_layout(lines: Iterator[str], layout: str) -> tuple[str, Iterator[str]]:
    """What a line of this file is (see ``open_corpus``), and the lines again from the first."""
    if layout != "auto":
        return layout, lines
    head, characters = [], 0
    for line in itertools.islice(lines, 2 * SAMPLE_LINES):
        head.append(line)
        characters += len(line)
        if characters >= SAMPLE_CHARACTERS:
            break
    sample = [line for line in head if line.strip()][:SAMPLE_LINES]
    complete = [line for line in sample if ends_like_a_sentence(line)]
    single = sum(len(split_sentences(line)) == 1 for line in complete)
    ends = sum(len(split_sentences(paragraph)) for paragraph in _unwrap(head))
    if single >= 0.8 * len(sample) or ends * LINES_OF_A_SENTENCE < len(sample):
        layout = "sentences"
    elif len(complete) >= 0.5 * len(sample):
        layout = "paragraphs"
    else:
        layout = "wrapped"
    return layout, itertools.chain(head, lines)
