"""Tagged words, one per line, with an empty line after each sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from minibert.data.lines import read_lines
from minibert.data.tasks.faults import Faults, Place, Problem
from minibert.errors import UserError

SCHEMES = ("bio", "iob1", "bioes", "plain")


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, one per line from ``place`` on, and the tag of each if it is labelled."""

    words: list[str]
    tags: list[str] | None
    place: Place

    @property
    def content(self) -> tuple[str, ...]:
        """The words: what is the same in sentences that occur more than once."""
        return tuple(self.words)


def read_conll(
    path: str | Path,
    *,
    word_column: int = 1,
    tag_column: int = -1,
    scheme: str = "bio",
    labelled: bool = True,
    faults: Faults | None = None,
) -> list[TaggedSentence]:
    """The sentences of a CoNLL file: columns separated by tabs or, in a line without tabs, by spaces.

    ``word_column`` and ``tag_column`` count from 1, or from the last column backwards (−1). ``-DOCSTART-``
    lines are skipped. ``scheme`` says how the tags mark entities; what is returned is always BIO:
      * "bio": B-x begins an entity of kind x, I-x continues it, O is outside (IOB2);
      * "iob1": B-x only where an entity follows another of its kind, else I-x begins one too;
      * "bioes": E-x ends an entity, S-x is one of a single word;
      * "plain": the tags mark no entities (parts of speech, for instance) and are left as they are.

    Raises UserError, naming file and line, for tags that break their scheme and lines without word or tag.
    If ``faults`` skips bad examples, a sentence with such a line is left out and counted.
    """
    if scheme not in SCHEMES:
        raise UserError(f"unknown tag scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")
    if 0 in (word_column, tag_column):
        raise UserError("columns count from 1, or from the last one backwards (-1); there is no column 0")
    faults = Faults() if faults is None else faults
    sentences = []
    for place, lines in _blocks(path):
        with faults.leave_out(place):
            rows = [_cells(line) for line in lines]
            words = _column(rows, word_column, "word")
            tags = to_bio(_column(rows, tag_column, "tag", word_column), scheme) if labelled else None
            sentences.append(TaggedSentence(words, tags, place))
    if not sentences:
        raise faults.nothing_left(path, "sentence")
    return sentences


def _blocks(path: str | Path) -> Iterator[tuple[Place, list[str]]]:
    """The lines between empty ones."""
    block: list[str] = []
    for number, line in enumerate(chain(read_lines(path), [""]), start=1):
        if line.strip() and not line.startswith("-DOCSTART-"):
            block.append(line)
        elif block:
            yield Place(path, number - len(block)), block
            block = []


def _cells(line: str) -> list[str]:
    """The cells of a line. A no-break space separates nothing: it belongs to its word, as in 10\u00a0000."""
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


def _column(rows: Sequence[Sequence[str]], column: int, what: str, taken: int | None = None) -> list[str]:
    """The cells of a column, which must not be the column that is ``taken`` already."""
    cells = []
    for i, row in enumerate(rows):
        same = taken is not None and _index(row, taken) == _index(row, column)
        least = len(row) + 1 if same else abs(column)
        if len(row) < least:
            raise Problem(f"{len(row)} column(s), but the {what} needs at least {least}", i)
        cell = row[_index(row, column)]
        if not cell:
            raise Problem(f"the {what} in column {column} is empty", i)
        cells.append(cell)
    return cells


def _index(row: Sequence[str], column: int) -> int:
    return column - 1 if column > 0 else len(row) + column


def to_bio(tags: Sequence[str], scheme: str = "bio") -> list[str]:
    """The tags of a sentence in BIO; see `read_conll`. Raises `Problem` where they break their scheme."""
    if scheme == "plain":
        return list(tags)
    converted: list[str] = []
    open_kind = None  # of the entity that the next tag may continue
    for i, tag in enumerate(tags):
        prefix, kind = _parts(tag, scheme, i)
        goes_on = prefix in ("I", "E") and kind == open_kind
        not_begun = prefix in ("I", "E") and not goes_on and scheme != "iob1"
        not_ended = scheme == "bioes" and open_kind is not None and not goes_on
        if not_begun or not_ended:
            before = repr(tags[i - 1]) if i else "the start of the sentence"
            hint = " (or is the scheme iob1?)" if scheme == "bio" else ""
            raise Problem(f"tag {tag!r} after {before} breaks {scheme.upper()}{hint}", i)
        converted.append("O" if tag == "O" else f"{'I' if goes_on else 'B'}-{kind}")
        open_kind = kind if prefix in ("B", "I") else None
    if scheme == "bioes" and open_kind is not None:
        raise Problem(f"tag {tags[-1]!r} at the end of the sentence breaks BIOES", len(tags) - 1)
    return converted


def _parts(tag: str, scheme: str, line: int) -> tuple[str, str]:
    """Prefix and kind: B-x gives (B, x), O gives (O, "")."""
    prefix, _, kind = tag.partition("-")
    known = tuple("BIES" if scheme == "bioes" else "BI")
    if tag != "O" and not (prefix in known and kind):
        likelier = "bioes" if kind and prefix in ("E", "S") else "plain"
        hint = f" (or is the scheme {likelier}?)" if scheme == "bio" else ""
        raise Problem(f"tag {tag!r} is neither O nor {'-…, '.join(known)}-…{hint}", line)
    return prefix, kind
