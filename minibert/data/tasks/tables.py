"""Texts with labels or scores, one example per row: tsv, csv, or one JSON object per line."""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from minibert.data.lines import LONE_SURROGATE, read_lines, suffix
from minibert.data.tasks.faults import Faults, Place, Problem
from minibert.errors import UserError

Column = str | int  # a name, or a number from 1
Row = dict[Column, Any]
FORMATS = ("tsv", "csv", "jsonl")
LARGEST_SCORE = 1e18  # losses square scores, in float32
OLD_MAC = "it has carriage returns for line ends, as old Macs did; save it with line feeds"


@dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts, with the name of its label or its score, if it is labelled."""

    text: str
    text_pair: str | None
    label: str | float | None
    place: Place

    @property
    def pair(self) -> tuple[str, str]:
        """Both texts. Raises UserError if there is only one."""
        if self.text_pair is None:
            raise UserError(f"{self.place}: expected a pair of texts, found one")
        return self.text, self.text_pair

    @property
    def content(self) -> tuple[str, ...]:
        """The text or texts, with single spaces: what is the same in examples that occur more than once."""
        return tuple(" ".join(text.split()) for text in (self.text, self.text_pair) if text is not None)

    def to_dict(self) -> dict[str, Any]:
        """Those of text, text_pair and label that there are, as JSON can hold them."""
        told = {"text": self.text, "text_pair": self.text_pair, "label": self.label}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class Columns:
    """Which column holds what: a name (in the first line, or a JSON key) or a number counted from 1.

    ``header`` says that the first line is not an example; names imply it. A ``text_pair`` that is
    ``optional`` may be missing, empty or null.
    """

    text: Column
    text_pair: Column | None = None
    label: Column | None = None
    header: bool = False
    optional: bool = False

    def used(self) -> list[Column]:
        """The columns that are given."""
        return [column for column in (self.text, self.text_pair, self.label) if column is not None]

    def needed(self) -> list[Column]:
        """Those of the columns that are given which a row must have."""
        return [column for column in self.used() if not (self.optional and column == self.text_pair)]

    @property
    def has_header(self) -> bool:
        """Whether a table's first row names the columns."""
        return self.header or any(isinstance(column, str) for column in self.used())

    def describe(self) -> str:
        """Such as: text, label."""
        return ", ".join(str(column) for column in self.needed())


# The usual names; the first of these that fits a file is taken.
USUAL_COLUMNS = (
    Columns("text", "text_pair", "label"),
    Columns("sentence1", "sentence2", "label"),
    Columns("sentence1", "sentence2", "score"),
    Columns("text", label="label"),
    Columns("sentence", label="label"),
)


def read_table(
    path: str | Path,
    columns: Columns | Sequence[Columns] = USUAL_COLUMNS,
    *,
    file_format: str | None = None,
    labelled: bool = True,
    scores: bool = False,
    faults: Faults | None = None,
) -> list[TextExample]:
    """The examples of a file, in order.

    Args:
        path: UTF-8 text, perhaps compressed (``.gz``). Formats: "tsv" (tabs; quotes mean nothing), "csv"
            (commas; cells may be quoted), "jsonl" (an object per line).
        columns: which column holds what. Of several possibilities, the first that fits the file's first line
            is taken. If bad JSON objects are left out, the first line that fits any possibility decides.
        file_format: by default, the file's suffix.
        labelled: whether to read labels; if not, there need not be a column for them.
        scores: labels are finite numbers, for a regression; else they are names (a 1 is the name "1").

    Blank lines at the end are not rows. Raises UserError, naming file and line, for a file that lacks a
    column or has it twice, and for bad rows: empty ones, ones with more or fewer columns than the first line,
    empty texts and labels, scores that are not numbers. If ``faults`` skips bad examples, bad rows are left
    out and counted.
    """
    faults = Faults() if faults is None else faults
    file_format = _format(path, file_format)
    objects = file_format == "jsonl"
    rows = _json_rows(path, faults) if objects else _table_rows(path, file_format, faults)
    # The first row tells the columns, but an object that lacks some may be a bad row like any other.
    head = list(rows if objects and faults.skip_bad else islice(rows, 1))
    examples: list[TextExample] = []
    if head:
        chosen = _choose([columns] if isinstance(columns, Columns) else columns, labelled, head)
        if not objects:
            _check_names(chosen, *head[0])
        for place, row in chain(head if objects or not chosen.has_header else (), rows):
            with faults.leave_out(place):
                examples.append(_example(row, chosen, scores, place))
    if not examples:
        raise faults.nothing_left(path, "example")
    return examples


def column_of(flag: str | None) -> Column | None:
    """The column that a flag names: digits are its number, counted from 1; anything else is its name."""
    return int(flag) if flag is not None and flag.isdecimal() else flag


def _format(path: str | Path, file_format: str | None) -> str:
    file_format = file_format or suffix(path)
    if file_format not in FORMATS:
        next(read_lines(path), None)  # there may be no such file at all
        raise UserError(
            f"{path}: its suffix does not tell the format; use .{', .'.join(FORMATS)}, or see --help for a "
            "flag that tells it"
        )
    return file_format


def _choose(options: Sequence[Columns], labelled: bool, rows: Sequence[tuple[Place, Row]]) -> Columns:
    """The first option whose columns are all there, in the first row that has those of any option."""
    place, first = rows[0]
    if labelled:
        options = [option for option in options if option.label is not None]
    else:
        # The name of a label, which need not be there, makes a header of the first line only if it is in it.
        labels = [option.label for option in options if isinstance(option.label, str)]
        named = any(label in first for label in labels)
        options = [replace(option, label=None, header=option.header or named) for option in options]
    for (_, row), option in product(rows, options):
        if all(column in row for column in option.needed()):
            return option
    if not options:
        raise UserError(f"{place.path}: say which column holds the label")
    wanted = " or ".join(dict.fromkeys(f"({option.describe()})" for option in options))
    names = [name for name in first if isinstance(name, str)]
    advice = "rename them or, without a recipe, say which to use (--help tells the flags)"
    separators = [sign for sign in "\t;,|" if sign in names[0]] if len(names) == 1 else []
    if separators:
        advice = f"if {separators[0]!r} separates columns, write tabs (.tsv) or commas (.csv) instead"
    if any("\r" in name for name in names):
        advice = OLD_MAC
    found = repr(_shortened(", ".join(names)))[1:-1]  # control characters would change the terminal
    raise UserError(f"{place}: expected the columns {wanted}, found ({found}); {advice}")


def _check_names(columns: Columns, place: Place, first: Row) -> None:
    """Raise UserError if several columns, by the first row of a table, have a name that is used."""
    names = [cell for column, cell in first.items() if isinstance(column, int)]
    for name in columns.used():
        if names.count(name) > 1:
            raise UserError(
                f"{place}: {names.count(name)} columns are called {name!r}; rename them or, without a "
                "recipe, give their numbers (--help tells the flags)"
            )


def _up_to_last(lines: Iterable[str]) -> Iterator[str]:
    """The lines up to the last that holds anything: editors and spreadsheets leave blank ones after it."""
    waiting = []
    for line in lines:
        waiting.append(line)
        if line.strip():
            yield from waiting
            waiting.clear()


def _json_rows(path: str | Path, faults: Faults) -> Iterator[tuple[Place, Row]]:
    for line, text in enumerate(_up_to_last(read_lines(path)), start=1):
        place = Place(path, line)
        with faults.leave_out(place):
            if not text.strip():
                raise Problem("an empty row")
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise Problem(f"not valid JSON ({error})") from None
            if not isinstance(row, dict):
                raise Problem(f"expected a JSON object, found {_shortened(text)}")
            yield place, row


def _table_rows(path: str | Path, file_format: str, faults: Faults) -> Iterator[tuple[Place, Row]]:
    """Each row's cells by number (from 1) and by the names in the first row, which is one of the rows."""
    names: list[str] = []
    for line, cells in (_csv_cells if file_format == "csv" else _tsv_cells)(path):
        place = Place(path, line)
        with faults.leave_out(place):
            if not any(map(str.strip, cells)):
                raise Problem("an empty row")
            names = names or cells
            if len(cells) != len(names):
                raise Problem(f"{len(cells)} column(s), but the first row has {len(names)}")
            yield place, dict(zip(names, cells, strict=True)) | dict(enumerate(cells, start=1))


def _tsv_cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    return ((line, text.split("\t")) for line, text in enumerate(_up_to_last(read_lines(path)), start=1))


def _csv_cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Each row's first line and its cells, which may span several lines."""
    reader = csv.reader((line + "\n" for line in _up_to_last(read_lines(path))), strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        advice = "check the quotes"
        if "new-line character" in str(error):
            in_cell = "a cell holds a carriage return, which needs quotes around the cell"
            advice = in_cell if line > 1 else OLD_MAC
        if "field limit" in str(error):
            advice += "; if the cell is meant to be that long, give tsv or jsonl, which have no limit"
        raise UserError(f"{Place(path, line)}: not valid csv ({error}); {advice}") from None


def _example(row: Row, columns: Columns, scores: bool, place: Place) -> TextExample:
    missing = [str(column) for column in columns.needed() if column not in row]  # an object may lack a key
    if missing:
        raise Problem(f"no {', '.join(missing)}")
    return TextExample(
        text=_text(row, columns.text),
        text_pair=_text_pair(row, columns),
        label=None if columns.label is None else (_score if scores else _name)(row, columns.label),
        place=place,
    )


def _text_pair(row: Row, columns: Columns) -> str | None:
    second = columns.text_pair
    if second is None:
        return None
    cell = row.get(second)
    if columns.optional and (cell is None or (isinstance(cell, str) and not cell.strip())):
        return None
    return _text(row, second)


def _text(row: Row, column: Column) -> str:
    text = row[column]
    if not isinstance(text, str):
        raise Problem(f"column {column} should be a text, found {_shortened(json.dumps(text))}")
    if not text.strip():
        raise Problem(f"column {column} is empty")
    if LONE_SURROGATE.search(text):
        raise Problem(f"column {column} holds half a surrogate pair (\\ud800 … \\udfff)")
    return text


def _name(row: Row, column: Column) -> str:
    value = row[column]
    if isinstance(value, bool | int):
        value = json.dumps(value)
    return _text({column: value}, column).strip()


def _score(row: Row, column: Column) -> float:
    cell = row[column]
    try:
        # Python would read 1_000 as 1000, and JSON's true as 1.
        score = math.nan if "_" in str(cell) or isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:  # also if it is not a number at all
        found = repr(_shortened(cell)) if isinstance(cell, str) else _shortened(json.dumps(cell))
        limit = f" of at most {LARGEST_SCORE:g}" if math.isfinite(score) else ""
        raise Problem(f"column {column} should be a number{limit}, found {found}")
    return score


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
