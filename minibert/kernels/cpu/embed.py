"""Look-ups in a table; and those of BERT, their sum, LayerNorm and dropout in one pass over the tokens."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from minibert.dropout_bits import DropoutKey
from minibert.kernels.cpu.compiled import compiled, dropout_factor, dropout_numbers, float32, uint32
from minibert.kernels.cpu.memory import as_rows, empty, empty_like
from minibert.kernels.cpu.norm import ROWS, normalise_row, normalise_row_backward, partial_sums
from minibert.threads import blocks, run_all, run_blocks

TABLE_ROWS = 4096  # of a table of embeddings, per unit of work


@compiled
def _embed_rows(
    words, positions, types, ids, type_ids, weight, bias, eps, drop, first_row, normalised, inverse_std, y
):
    for r in range(len(ids)):
        total, out = normalised[r], y[r]
        size = len(total)
        position = (first_row + r) % len(positions)
        for c in range(size):
            total[c] = words[ids[r], c] + types[type_ids[r], c] + positions[position, c]
        inverse_std[r] = normalise_row(total, weight, bias, eps, out)
        start = uint32((first_row + r) * size)
        for c in range(size):
            out[c] *= dropout_factor(uint32(start + uint32(c)), drop)


@compiled
def _embed_rows_backward(
    dout, normalised, inverse_std, weight, drop, first_row, dnormalised, dtotal, dweight, dbias
):
    for r in range(len(dout)):
        size = dout.shape[1]
        start = uint32((first_row + r) * size)
        for c in range(size):
            dnormalised[c] = dout[r, c] * dropout_factor(uint32(start + uint32(c)), drop)
        normalise_row_backward(dnormalised, normalised[r], inverse_std[r], weight, dtotal[r], dweight, dbias)


@compiled
def _add_rows(rows, ids, part, first):
    """part[ids[r] - first] += rows[r], one row after the other, for the ids of this part of a table."""
    for r in range(len(ids)):
        i = ids[r] - first
        if 0 <= i < len(part):
            for c in range(rows.shape[1]):
                part[i, c] += rows[r, c]


def embed(
    word_weight: np.ndarray,
    position_weight: np.ndarray,
    token_type_weight: np.ndarray,
    norm_weight: np.ndarray,
    norm_bias: np.ndarray,
    input_ids: np.ndarray,
    token_type_ids: np.ndarray,
    eps: float,
    probability: float,
    key: DropoutKey | None,
) -> tuple[np.ndarray, tuple]:
    """See ``composites.embed``."""
    shape = (*input_ids.shape, word_weight.shape[1])
    ids, type_ids = (
        np.ascontiguousarray(some, dtype=np.int64).reshape(-1) for some in (input_ids, token_type_ids)
    )
    _check_rows(word_weight, ids)
    _check_rows(token_type_weight, type_ids)
    tables = word_weight, position_weight, token_type_weight
    words, positions, types = (np.ascontiguousarray(table) for table in tables)
    norm_weight, norm_bias = np.ascontiguousarray(norm_weight), np.ascontiguousarray(norm_bias)
    normalised = empty((len(ids), shape[2]))
    y, inverse_std = empty_like(normalised), empty((len(ids),))
    drop = dropout_numbers(probability, key)

    def block(s: slice) -> None:
        _embed_rows(
            *(words, positions[: shape[1]], types, ids[s], type_ids[s], norm_weight, norm_bias),
            *(float32(eps), drop, s.start, normalised[s], inverse_std[s], y[s]),
        )

    run_blocks(block, len(ids), ROWS)
    shapes = [table.shape for table in tables]
    return y.reshape(shape), (shapes, ids, type_ids, normalised, inverse_std, norm_weight, drop)


def _check_rows(table: np.ndarray, ids: np.ndarray) -> None:
    """Raise IndexError for an id that is no row of the table, as NumPy does; compiled loops do not look."""
    if ids.size and not -len(table) <= ids.min() <= ids.max() < len(table):
        raise IndexError(f"ids from {ids.min()} to {ids.max()} for a table of {len(table)} rows")


def embed_backward(
    dout: np.ndarray, cache: tuple
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.embed_backward``."""
    shapes, ids, type_ids, normalised, inverse_std, norm_weight, drop = cache
    dword, dposition, dtoken_type = map(empty, shapes)
    rows = as_rows(dout, len(norm_weight))
    dtotal = empty_like(normalised)
    sums = partial_sums(len(rows), len(norm_weight))

    def block(s: slice) -> None:
        dnormalised = empty_like(norm_weight)
        _embed_rows_backward(
            *(rows[s], normalised[s], inverse_std[s], norm_weight, drop, s.start),
            *(dnormalised, dtotal[s], *sums[s.start // ROWS]),
        )

    run_blocks(block, len(rows), ROWS)

    def sum_positions() -> None:
        length = dout.shape[1]
        dposition[length:] = 0
        np.sum(dtotal.reshape(dout.shape), axis=0, out=dposition[:length])

    run_all([*_sums(dtotal, ids, dword), *_sums(dtotal, type_ids, dtoken_type), sum_positions])
    dweight, dbias = sums.sum(axis=0)
    return dword, dposition, dtoken_type, dweight, dbias


def embedding(weight: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, tuple]:
    """See ``ops.embedding``."""
    return weight[ids], (ids, weight.shape)


def embedding_backward(dout: np.ndarray, cache: tuple) -> np.ndarray:
    """See ``ops.embedding_backward``. (NumPy's own loop, ``np.add.at``, takes several times as long.)"""
    ids, shape = cache
    dweight = empty(shape)
    rows = np.ascontiguousarray(dout, dtype=np.float32).reshape(ids.size, shape[1])
    run_all([*_sums(rows, np.ascontiguousarray(ids, dtype=np.int64).reshape(-1), dweight)])
    return dweight


def _sums(rows: np.ndarray, ids: np.ndarray, table: np.ndarray) -> Iterator[Callable[[], None]]:
    """Tasks that fill a table: row v becomes Σ rows[r] over all r with ids[r] = v.

    They are added in the order of the batch, so the sums are the same every time.
    """
    ids = ids % len(table)  # -1 is the last row

    def fill(s: slice) -> None:
        table[s] = 0
        _add_rows(rows, ids, table[s], s.start)

    return (partial(fill, s) for s in blocks(len(table), TABLE_ROWS))
