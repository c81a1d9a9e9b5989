"""What every tokenizer is given, and texts of real lengths."""

import csv
import hashlib
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from minibert.data import open_corpus


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
    if file is None:
        every = [sentence for document in open_corpus() for sentence in document]
    else:
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if file.endswith(".tsv") else {}
        with open(file, encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines, **dialect))[1:]
        columns = [column for column, value in enumerate(rows[0]) if len(value.split()) > 1]
        every = [row[column] for row in rows for column in columns]
    return [every[number * len(every) // count] for number in range(count)]
