"""Passages to search in, and questions whose right passage is known."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minibert.data.lines import read_lines, suffix
from minibert.data.randomness import generator
from minibert.data.tasks.faults import Faults, Place, Problem
from minibert.data.tasks.squad import read_paragraphs, read_squad
from minibert.data.tasks.tables import FORMATS, Column, Columns, TextExample, read_table
from minibert.errors import UserError


@dataclass(frozen=True)
class Passage:
    """A text to be found, with an id that no other has, and a title ("" if it has none)."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True)
class Query:
    """A question, and the id of the passage that answers it."""

    text: str
    passage: str


PASSAGE_COLUMNS = Columns("text", "title", "id", optional=True)
TEXT_COLUMNS = (Columns("text"), Columns("sentence"))
QUERY_COLUMNS = (Columns("query", label="id"), Columns("question", label="id"))


def read_texts(
    path: str | Path,
    column: Column | None = None,
    *,
    header: bool = False,
    file_format: str | None = None,
    faults: Faults | None = None,
) -> list[TextExample]:
    """The texts in a file, in order: one column of a table, or else one text per line.

    ``column`` is the name or number of a column of a tsv, csv or jsonl file (``file_format``, by default the
    file's suffix); ``header`` says that the first line names the columns, although a number is given. Without
    a column, such files need one called text or sentence. An empty line is a bad row.

    Raises UserError, naming file and line, for bad rows, unless ``faults`` skips them, and for a file without
    any text.
    """
    if header and column is None:
        raise UserError("which column holds the texts? give --column too")
    if column is not None or file_format is not None or suffix(path) in FORMATS:
        columns = TEXT_COLUMNS if column is None else Columns(column, header=header)
        return read_table(path, columns, file_format=file_format, labelled=False, faults=faults)
    faults = Faults() if faults is None else faults
    texts: list[TextExample] = []
    for line, text in enumerate(read_lines(path), start=1):
        place = Place(path, line)
        with faults.leave_out(place):
            if not text.strip():
                raise Problem("an empty line")
            texts.append(TextExample(text, None, None, place))
    if not texts:
        raise faults.nothing_left(path, "text")
    return texts


def read_passages(path: str | Path, faults: Faults | None = None) -> list[Passage]:
    """The passages in a file, whose suffix (perhaps before ``.gz``) tells the format.

    ``.tsv``, ``.csv``, ``.jsonl``: columns or keys id and text, and perhaps title, which may be empty.
    ``.json``: the paragraphs of a SQuAD file, each with its article's title and the id title/number.
    Anything else: one passage per line, with the id name-of-the-file:line.

    Raises UserError, naming file and line, for anything that is not in this format.
    """
    kind = suffix(path)
    if kind in FORMATS:
        return _table_passages(path, Faults() if faults is None else faults)
    if kind == "json":
        counts: Counter[str] = Counter()
        passages = []
        for title, text in read_paragraphs(path, faults=faults):
            counts[title] += 1
            passages.append(Passage(f"{title}/{counts[title]}", text, title))
        return passages
    name = os.fsencode(Path(path).name).decode("utf-8", "backslashreplace")  # as an index can hold it
    return [Passage(f"{name}:{line.place.line}", line.text) for line in read_texts(path, faults=faults)]


def _table_passages(path: str | Path, faults: Faults) -> list[Passage]:
    places: dict[str, Place] = {}
    passages = []
    for row in read_table(path, PASSAGE_COLUMNS, faults=faults):
        with faults.leave_out(row.place):
            key = _id(row)
            first = places.setdefault(key, row.place)
            if first is not row.place:
                raise Problem(f"the id {key!r} is also in line {first.line}")
            passages.append(Passage(key, row.text, row.text_pair or ""))
    return passages


def _id(row: TextExample) -> str:
    return str(row.label)  # the columns above say so: ids are read as labels are


def read_queries(path: str | Path, passages: Sequence[Passage], faults: Faults | None = None) -> list[Query]:
    """The questions in a file, whose right passages are among ``passages``.

    ``.tsv``, ``.csv``, ``.jsonl``: columns or keys query (or question), and id, which is the passage's.
    ``.json``: the questions of a SQuAD file that have an answer; the passage is the one with that text.

    Raises UserError, naming the place, for a question whose passage is not there. If ``faults`` skips bad
    examples, such questions are left out and counted.
    """
    faults = Faults() if faults is None else faults
    found: list[tuple[Place | str, str, str | None]]
    if suffix(path) == "json":
        ids = {passage.text: passage.id for passage in passages}
        found = [
            (f"{path}: question {question.id}", question.text, ids.get(question.passage))
            for question in read_squad(path, faults=faults)
            if question.answers
        ]
    else:
        ids = {passage.id: passage.id for passage in passages}
        found = [
            (row.place, row.text, ids.get(_id(row))) for row in read_table(path, QUERY_COLUMNS, faults=faults)
        ]
    queries: list[Query] = []
    for place, text, passage in found:
        with faults.leave_out(place):
            if passage is None:
                raise Problem("its passage is not in the index")
            queries.append(Query(text, passage))
    if not queries:
        raise UserError(f"{path}: no question in this file has its passage in the index")
    return queries


def some_queries(queries: Sequence[Query], count: int, seed: int = 0) -> list[Query]:
    """At most ``count`` queries, drawn at random, in their order. Raises UserError for a count below 1."""
    if count < 1:
        raise UserError(f"at least 1 query is needed, got a limit of {count}")
    chosen = generator("queries", seed).permutation(len(queries))[:count]
    return [queries[i] for i in sorted(chosen)]
