"""What every tokenizer is given, and texts of real lengths."""

import csv
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minibert.data import open_corpus
from minibert.errors import UserError


def documents(text: str) -> list[str]:
    """The documents of a text file, as ``minibert.data.open_corpus`` reads it."""
    return ["\n".join(document.paragraphs) for document in open_corpus([text]).raw_documents()]


def text_pieces(text: str, pieces: int) -> list[list[str]]:
    """The documents of a text file in so many equal runs."""
    every = documents(text)
    bounds = [number * len(every) // pieces for number in range(pieces + 1)]
    return [every[start:stop] for start, stop in itertools.pairwise(bounds)]


def digest(token_ids: Iterable[Sequence[int]]) -> str:
    """A hash (BLAKE2b) of the token ids of many texts, their borders included."""
    total = hashlib.blake2b(digest_size=16)
    for ids in token_ids:
        total.update(np.array([len(ids), *ids], dtype=np.int32).tobytes())
    return total.hexdigest()


def sentences(file: str | None, count: int) -> list[str]:
    """So many sentences from all over a table, .tsv or .csv; without a file, of Python's documentation.

    A table's sentences are the columns of its second row that hold more than one word.
    """
    return _spread_out(_all_sentences(file), count)


def sentence_pieces(file: str | None, pieces: int, count: int) -> list[list[str]]:
    """So many pieces, each of ``count`` such sentences from all over the table, and no sentence twice.

    Raises UserError if there are too few.
    """
    every = list(dict.fromkeys(_all_sentences(file)))
    if len(every) < pieces * count:
        raise UserError(
            f"{file or 'the documentation'}: has {len(every):,} different sentences, not {pieces} times "
            f"{count}; fewer --rounds need fewer"
        )
    chosen = _spread_out(every, pieces * count)
    return [chosen[number::pieces] for number in range(pieces)]


def _all_sentences(file: str | None) -> list[str]:
    if file is None:
        return [sentence for document in open_corpus() for sentence in document]
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if file.endswith(".tsv") else {}
    with open(file, encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, **dialect))[1:]
    columns = [column for column, value in enumerate(rows[0]) if len(value.split()) > 1]
    return [row[column] for row in rows for column in columns]


def _spread_out(every: Sequence[str], count: int) -> list[str]:
    return [every[number * len(every) // count] for number in range(count)]


def describe_lengths(lengths: Sequence[int]) -> dict[str, Any]:
    """How many texts there are, and how many tokens they have, as JSON can hold it."""
    return {"texts": len(lengths), "mean": float(np.mean(lengths)), "longest": int(max(lengths))}
