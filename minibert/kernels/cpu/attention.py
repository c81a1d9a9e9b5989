"""Attention over packed (q, k, v), a few heads at a time, so that their scores stay in the cache.

Only the probabilities are kept for the backward; what dropout did to them is computed again. With padding, a
batch is one block of sequences of one length. Without padding, it is a block for each length that occurs.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from minibert.dropout_bits import DropoutKey
from minibert.kernels.cpu.compiled import (
    compiled,
    dropout_factor,
    dropout_numbers,
    exp,
    float32,
    int32,
    ordered,
    unordered,
)
from minibert.kernels.cpu.memory import empty, empty_like
from minibert.threads import run_all

SCORES = 1 << 17  # per unit of work: half a megabyte of float32


@compiled
def _softmax_rows(scores, bias, scale):
    """scores (b, a, S, S) ← p = softmax(scale · scores + bias), with bias (b or 1, a or 1, S or 1, S)."""
    batch, heads, length, _ = scores.shape
    for b in range(batch):
        for a in range(heads):
            for i in range(length):
                row = scores[b, a, i]
                mask = bias[min(b, len(bias) - 1), min(a, bias.shape[1] - 1), min(i, bias.shape[2] - 1)]
                largest = int32(-0x80000000)
                for j in range(length):
                    row[j] = row[j] * scale + mask[j]
                    largest = max(largest, ordered(row[j]))
                shift = unordered(largest)
                total = float32(0.0)
                for j in range(length):
                    row[j] = exp(row[j] - shift)
                    total += row[j]
                share = float32(1.0) / total
                for j in range(length):
                    row[j] *= share


@compiled
def _dropout(p, drop, first, width, dropped):
    """dropped (b, a, S, S) ← dropout(p); score (b, a, i, j) has the index ((b A + a) width + i) width + j."""
    batch, heads, length, _ = p.shape
    for b in range(batch):
        for a in range(heads):
            for i in range(length):
                row, out = p[b, a, i], dropped[b, a, i]
                start = first + ((b * heads + a) * width + i) * width
                for j in range(length):
                    out[j] = row[j] * dropout_factor(start + j, drop)


@compiled
def _softmax_rows_backward(ddropped, p, scale, drop, first, width, dropped):
    """ddropped (b, a, S, S) ← dscores = scale · p (dp − Σ dp p), dropped ← dropout(p)."""
    batch, heads, length, _ = p.shape
    for b in range(batch):
        for a in range(heads):
            for i in range(length):
                d, row, out = ddropped[b, a, i], p[b, a, i], dropped[b, a, i]
                start = first + ((b * heads + a) * width + i) * width
                for j in range(length):
                    factor = dropout_factor(start + j, drop)
                    out[j] = row[j] * factor
                    d[j] *= factor
                projection = float32(0.0)
                for j in range(length):
                    projection += row[j] * d[j]
                for j in range(length):
                    d[j] = row[j] * (d[j] - projection) * scale


@dataclass(frozen=True)
class _Block:
    """Sequences b of one length S, and where they are: views, so that what is written there lands in place.

    Dropout counts their scores as those of sequences number ``first``, …, padded to the length ``width``.
    """

    qkv: np.ndarray  # (b, S, 3H)
    y: np.ndarray  # (b, S, H); in the backward dout
    p: np.ndarray  # (b, A, S, S)
    first: int
    width: int

    def parts(self) -> Iterator[tuple[tuple[slice, slice], int]]:
        """The work in parts: slices of b and A, together contiguous, and the index of their first score."""
        batch, heads, length, _ = self.p.shape
        some_heads = min(max(SCORES // length**2, 1), heads)
        some_batch = max(SCORES // (heads * length**2), 1)
        for b in range(0, batch, some_batch):
            for a in range(0, heads, some_heads):
                part = slice(b, b + some_batch), slice(a, a + some_heads)
                yield part, ((self.first + b) * heads + a) * self.width**2


def _forward_work(block: _Block, bias: np.ndarray, drop: tuple) -> Iterator[Callable[[], None]]:
    """What is to be done to fill in p and y. bias (b or 1, A or 1, S or 1, S)."""
    num_heads = block.p.shape[1]
    q, k, v = _heads(block.qkv, 3, num_heads)
    (y,) = _heads(block.y, 1, num_heads)
    scale = float32(1.0 / math.sqrt(q.shape[-1]))

    def some(part: tuple[slice, slice], first: int) -> None:
        scores = np.matmul(q[part], k[part].swapaxes(2, 3), out=block.p[part])
        _softmax_rows(scores, _part_of(bias, part), scale)
        dropped = scores
        if drop[2]:  # the threshold: without dropout it is 0
            dropped = empty_like(scores)
            _dropout(scores, drop, first, block.width, dropped)
        np.matmul(dropped, v[part], out=y[part])

    return (partial(some, *each) for each in block.parts())


def _backward_work(block: _Block, dqkv: np.ndarray, drop: tuple) -> Iterator[Callable[[], None]]:
    """What is to be done to fill in dqkv (b, S, 3H); the block's y is dout."""
    num_heads = block.p.shape[1]
    q, k, v = _heads(block.qkv, 3, num_heads)
    dq, dk, dv = _heads(dqkv, 3, num_heads)
    (dout,) = _heads(block.y, 1, num_heads)
    scale = float32(1.0 / math.sqrt(q.shape[-1]))

    def some(part: tuple[slice, slice], first: int) -> None:
        dscores = np.matmul(dout[part], v[part].swapaxes(2, 3))  # first the derivative of the dropped p
        dropped = empty_like(dscores)
        _softmax_rows_backward(dscores, block.p[part], scale, drop, first, block.width, dropped)
        np.matmul(dropped.swapaxes(2, 3), dout[part], out=dv[part])
        np.matmul(dscores, k[part], out=dq[part])
        np.matmul(dscores.swapaxes(2, 3), q[part], out=dk[part])

    return (partial(some, *each) for each in block.parts())


# -- With padding -----------------------------------------------------------------------------------


def packed_attention(
    qkv: np.ndarray, bias: np.ndarray, num_heads: int, probability: float, key: DropoutKey | None
) -> tuple[np.ndarray, tuple]:
    """See ``composites.packed_attention``."""
    qkv, drop = np.ascontiguousarray(qkv), dropout_numbers(probability, key)
    batch, length, width = qkv.shape
    y = empty((batch, length, width // 3))
    p = empty((batch, num_heads, length, length))
    run_all(_forward_work(_Block(qkv, y, p, 0, length), _of_four_axes(bias, length), drop))
    return y, (qkv, p, drop)


def packed_attention_backward(dout: np.ndarray, cache: tuple) -> np.ndarray:
    """See ``composites.packed_attention_backward``."""
    qkv, p, drop = cache
    dqkv, dout = empty_like(qkv), np.ascontiguousarray(dout, dtype=np.float32)
    run_all(_backward_work(_Block(qkv, dout, p, 0, qkv.shape[1]), dqkv, drop))
    return dqkv


# -- Without ----------------------------------------------------------------------------------------


def unpadded_attention(
    qkv: np.ndarray, starts: np.ndarray, num_heads: int, probability: float, key: DropoutKey | None
) -> tuple[np.ndarray, tuple]:
    """See ``unpadded.unpadded_attention``."""
    qkv, drop = np.ascontiguousarray(qkv), dropout_numbers(probability, key)
    starts = starts.astype(np.int64)
    lengths = starts[1:] - starts[:-1]  # (B,)
    y = empty((len(qkv), qkv.shape[1] // 3))
    p = empty((num_heads * int((lengths**2).sum()),))
    bias = np.zeros((1, 1, 1, int(lengths.max())), dtype=np.float32)
    run_all(
        work
        for block, _ in _blocks(lengths, qkv, y, p, num_heads)
        for work in _forward_work(block, bias[..., : block.p.shape[-1]], drop)
    )
    return y, (qkv, p, lengths, num_heads, drop)


def unpadded_attention_backward(dout: np.ndarray, cache: tuple) -> np.ndarray:
    """See ``unpadded.unpadded_attention_backward``."""
    qkv, p, lengths, num_heads, drop = cache
    dqkv, dout = empty_like(qkv), np.ascontiguousarray(dout, dtype=np.float32)
    run_all(
        work
        for block, rows in _blocks(lengths, qkv, dout, p, num_heads)
        for work in _backward_work(block, dqkv[rows].reshape(block.qkv.shape), drop)
    )
    return dqkv


def _blocks(
    lengths: np.ndarray, qkv: np.ndarray, y: np.ndarray, p: np.ndarray, num_heads: int
) -> Iterator[tuple[_Block, slice]]:
    """A block for each run of sequences that are equally long, and the rows that it has in qkv and y.

    qkv (T, 3H), y (T, H), p: the scores of all blocks, flat, one after the other.
    """
    edges = np.flatnonzero(np.diff(lengths, prepend=-1, append=-1)).tolist()
    row = score = 0
    for first, end in itertools.pairwise(edges):
        count, length = end - first, int(lengths[first])
        if length == 0:
            continue
        rows = slice(row, row + count * length)
        scores = p[score : score + count * num_heads * length**2]
        row, score = rows.stop, score + scores.size
        yield (
            _Block(
                qkv[rows].reshape(count, length, -1),
                y[rows].reshape(count, length, -1),
                scores.reshape(count, num_heads, length, length),
                first,
                int(lengths.max()),
            ),
            rows,
        )


# -- Views ------------------------------------------------------------------------------------------


def _heads(packed: np.ndarray, count: int, num_heads: int) -> np.ndarray:
    """(B, S, count · H) → a view (count, B, A, S, D): count = 3 for q, k, v side by side, else 1."""
    batch, length, width = packed.shape
    size = width // (count * num_heads)
    return packed.reshape(batch, length, count, num_heads, size).transpose(2, 0, 3, 1, 4)


def _of_four_axes(bias: np.ndarray, length: int) -> np.ndarray:
    """The bias with an axis for each of B, A, S, S: the last one full, the others possibly of length 1."""
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    return np.ascontiguousarray(np.broadcast_to(bias, (*bias.shape[:3], length)))


def _part_of(bias: np.ndarray, part: tuple[slice, slice]) -> np.ndarray:
    """The bias for a part of B and A; an axis of length 1 serves all parts."""
    whole = slice(None)
    return bias[tuple(whole if n == 1 else of for n, of in zip(bias.shape, part, strict=False))]
