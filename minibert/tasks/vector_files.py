"""Files of vectors: of whole texts, or of their words."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from minibert.data.tasks import TextExample
from minibert.errors import UserError
from minibert.files import atomic_file
from minibert.tasks.embed import WordVectors, check_finite

OUTPUTS = (".npy", ".npz", ".jsonl", ".parquet")
WORD_OUTPUTS = (".npz", ".parquet")
# An .npz has as much room for each word as the longest one needs. Characters of all words together that are
# never too many, and how many there may be for each number of the vectors.
ROOM, ROOM_PER_NUMBER = 1 << 26, 4


def check_output(path: str | Path, words: bool = False) -> None:
    """Raise UserError if vectors of texts, or of ``words``, cannot be written to a file of this name."""
    known = WORD_OUTPUTS if words else OUTPUTS
    if Path(path).suffix not in known:
        kind = "vectors of words" if words else "vectors"
        raise UserError(f"{path}: unknown format for {kind}; the suffix must be one of {', '.join(known)}")
    if Path(path).suffix == ".parquet":
        _pyarrow(path)


def write_vectors(path: str | Path, texts: Sequence[TextExample], vectors: np.ndarray) -> None:
    """Write vectors (N, H) of texts to a file, in the format that its suffix tells.

    ``.npy``: the array. ``.npz``: the arrays ``vectors`` and ``lines`` (N,), the number of each text's line
    in its file. ``.jsonl``: an object per text, with line, text and vector. ``.parquet``: a table with these
    columns. Raises UserError for another suffix, and for NaN or infinity in a vector.
    """
    path = Path(path)
    check_output(path)
    check_finite(vectors)
    lines = [text.place.line for text in texts]
    if path.suffix == ".parquet":
        table = {"line": np.array(lines), "text": [text.text for text in texts], "vector": vectors}
        _write_tables(path, [table])
        return
    with atomic_file(path) as file:
        if path.suffix == ".npy":
            np.save(file, vectors)
        elif path.suffix == ".npz":
            np.savez(file, vectors=vectors, lines=np.array(lines))
        else:
            for line, text, vector in zip(lines, texts, vectors, strict=True):
                numbers = [float(str(number)) for number in vector]  # as few digits as identify a float32
                row = {"line": line, "text": text.text, "vector": numbers}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def write_word_vectors(
    path: str | Path, texts: Sequence[TextExample], parts: Iterable[WordVectors]
) -> tuple[int, int]:
    """Write the vectors of the words of texts, part after part → how many words, and how many texts were cut.

    Each word has the number of its text, from 0, the line of that text in its file, its characters
    text[start:stop], and its vector. ``.npz`` holds the arrays ``texts``, ``lines``, ``words``, ``spans``
    (N, 2), ``vectors`` and ``layers``, and all are in memory at the end. ``.parquet`` is a table with the
    columns text, line, word, start, stop and vector (or layer_0, layer_1, …, if the layers are kept apart);
    only one part at a time is in memory, a row group of the file.

    Raises UserError for another suffix, if there are no texts, for NaN or infinity in a vector, and for a
    word so long that the words would be most of an ``.npz``.
    """
    path = Path(path)
    check_output(path, words=True)
    if not texts:
        raise UserError("there are no texts, so there are no vectors to write")
    lines, counts, cut = np.array([text.place.line for text in texts], np.int64), [], []

    def counted() -> Iterator[WordVectors]:
        for part in parts:
            check_finite(part.vectors)
            counts.append(len(part.words))
            cut.append(part.cut)
            yield part

    if path.suffix == ".parquet":
        _write_tables(path, (_columns(part, lines) for part in counted()))
    else:
        _write_arrays(path, list(counted()), lines)
    return sum(counts), sum(cut)


def _write_arrays(path: Path, parts: Sequence[WordVectors], lines: np.ndarray) -> None:
    texts, spans, vectors = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("texts", "spans", "vectors")
    )
    words = [word for part in parts for word in part.words]
    longest = max(map(len, words), default=0)
    if longest * len(words) > max(ROOM, ROOM_PER_NUMBER * vectors.size):
        raise UserError(
            f"{path}: a word has {longest:,} characters, and an .npz would have as much room for each; "
            "write .parquet, or leave that text out"
        )
    with atomic_file(path) as file:
        np.savez(
            file,
            texts=texts,
            lines=lines[texts],
            words=np.array(words, str),
            spans=spans,
            vectors=vectors,
            layers=np.array(parts[0].layers),
        )


def _columns(part: WordVectors, lines: np.ndarray) -> dict[str, Any]:
    """The columns of a table."""
    kept = {"vector": part.vectors}
    if part.vectors.ndim == 3:  # (N, K, H)
        kept = {f"layer_{layer}": part.vectors[:, k] for k, layer in enumerate(part.layers)}
    return {
        "text": part.texts,
        "line": lines[part.texts],
        "word": part.words,
        "start": part.spans[:, 0],
        "stop": part.spans[:, 1],
        **kept,
    }


def _write_tables(path: Path, tables: Iterable[dict[str, Any]]) -> None:
    """Write a Parquet file, a row group per table. Columns are arrays (N,) or (N, H), or lists of text."""
    pyarrow, writer = _pyarrow(path), None
    with atomic_file(path) as file, ExitStack() as stack:
        for columns in tables:
            table = pyarrow.table({name: _column(pyarrow, values) for name, values in columns.items()})
            if writer is None:
                writer = stack.enter_context(pyarrow.parquet.ParquetWriter(file, table.schema))
            writer.write_table(table)


def _column(pyarrow: Any, values: Any) -> Any:
    """A column of pyarrow's: numbers, text, or vectors of one length."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pyarrow.array(np.ascontiguousarray(values).ravel())
        return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return (
        pyarrow.array(values) if isinstance(values, np.ndarray) else pyarrow.array(values, pyarrow.string())
    )


def _pyarrow(path: str | Path) -> Any:
    """The library that writes Parquet. Raises UserError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f'{path}: Parquet needs pyarrow; install it with  pip install "pyarrow>=17"  or write .npz'
        ) from None
    return pyarrow
