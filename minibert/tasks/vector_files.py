"""Files of vectors: of whole texts, or of their words."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert.data.tasks import TextExample
from minibert.errors import UserError
from minibert.files import atomic_file
from minibert.tasks.embed import WordVectors

OUTPUTS = (".npy", ".npz", ".jsonl", ".parquet")
WORD_OUTPUTS = (".npz", ".parquet")


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
    columns. Raises UserError for another suffix.
    """
    path = Path(path)
    check_output(path)
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


def write_word_vectors(path: str | Path, texts: Sequence[TextExample], parts: Iterable[WordVectors]) -> int:
    """Write the vectors of the words of texts, part after part; how many there were.

    Each word has the number of its text, from 0, the line of that text in its file, its characters
    text[start:stop], and its vector. ``.npz`` holds the arrays ``texts``, ``lines``, ``words``, ``spans``
    (N, 2), ``vectors`` and ``layers``, and all are in memory at the end. ``.parquet`` is a table with the
    columns text, line, word, start, stop and vector (or layer_0, layer_1, …, if the layers are kept apart);
    only one part at a time is in memory, a row group of the file. Raises UserError for another suffix.
    """
    path = Path(path)
    check_output(path, words=True)
    lines, counts = np.array([text.place.line for text in texts], np.int64), [0]
    if path.suffix == ".parquet":
        _write_tables(path, (_columns(part, lines, counts) for part in parts))
        return sum(counts)
    held = list(parts)
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in held]) for name in ("texts", "spans", "vectors")
    }
    arrays |= {
        "lines": lines[arrays["texts"]],
        "words": np.array([word for part in held for word in part.words], str),
        "layers": np.array(held[0].layers),
    }
    with atomic_file(path) as file:
        np.savez(file, **arrays)
    return len(arrays["texts"])


def _columns(part: WordVectors, lines: np.ndarray, counts: list[int]) -> dict[str, Any]:
    """The columns of a table; adds the number of its rows to ``counts``."""
    counts.append(len(part.texts))
    vectors = part.vectors
    kept = {"vector": vectors}
    if vectors.ndim == 3:  # (N, K, H)
        kept = {f"layer_{layer}": vectors[:, k] for k, layer in enumerate(part.layers)}
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
    pyarrow = _pyarrow(path)
    writer = None
    with atomic_file(path) as file:
        for columns in tables:
            table = pyarrow.table({name: _column(pyarrow, values) for name, values in columns.items()})
            writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()


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
