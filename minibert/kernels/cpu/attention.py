"""Attention over packed (q, k, v), a few heads at a time, so that their scores stay in the cache.

Only the probabilities are kept for the backward; what dropout did to them is computed again.
"""

import math
from collections.abc import Iterator
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
    uint32,
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
def _dropout(p, drop, first, dropped):
    p, dropped = p.reshape(-1), dropped.reshape(-1)
    for i in range(len(p)):
        dropped[i] = p[i] * dropout_factor(uint32(first + uint32(i)), drop)


@compiled
def _softmax_rows_backward(ddropped, p, scale, drop, first, dropped):
    """ddropped (b, a, S, S) ← dscores = scale · p (dp − Σ dp p), dropped ← dropout(p)."""
    batch, heads, length, _ = p.shape
    for b in range(batch):
        for a in range(heads):
            for i in range(length):
                d, row, out = ddropped[b, a, i], p[b, a, i], dropped[b, a, i]
                start = uint32(first + uint32(((b * heads + a) * length + i) * length))
                for j in range(length):
                    factor = dropout_factor(uint32(start + uint32(j)), drop)
                    out[j] = row[j] * factor
                    d[j] *= factor
                projection = float32(0.0)
                for j in range(length):
                    projection += row[j] * d[j]
                for j in range(length):
                    d[j] = row[j] * (d[j] - projection) * scale


def packed_attention(
    qkv: np.ndarray, bias: np.ndarray, num_heads: int, probability: float, key: DropoutKey | None
) -> tuple[np.ndarray, tuple]:
    """See ``composites.packed_attention``."""
    qkv = np.ascontiguousarray(qkv)
    q, k, v = _heads(qkv, 3, num_heads)
    batch, _, length, size = q.shape
    bias = _of_four_axes(bias, length)
    y = empty((batch, length, num_heads * size))
    (y_heads,) = _heads(y, 1, num_heads)
    p = empty((batch, num_heads, length, length))
    scale, drop = float32(1.0 / math.sqrt(size)), dropout_numbers(probability, key)

    def some(part: tuple[slice, slice], first: np.uint32) -> None:
        scores = np.matmul(q[part], k[part].swapaxes(2, 3), out=p[part])
        _softmax_rows(scores, _part_of(bias, part), scale)
        dropped = scores
        if drop[2]:  # the threshold: without dropout it is 0
            dropped = empty_like(scores)
            _dropout(scores, drop, first, dropped)
        np.matmul(dropped, v[part], out=y_heads[part])

    run_all(partial(some, *each) for each in _parts(*p.shape))
    return y, (qkv, p, drop)


def packed_attention_backward(dout: np.ndarray, cache: tuple) -> np.ndarray:
    """See ``composites.packed_attention_backward``."""
    qkv, p, drop = cache
    num_heads = p.shape[1]
    q, k, v = _heads(qkv, 3, num_heads)
    dqkv = empty_like(qkv)
    dq, dk, dv = _heads(dqkv, 3, num_heads)
    (dout,) = _heads(np.ascontiguousarray(dout, dtype=np.float32), 1, num_heads)
    scale = float32(1.0 / math.sqrt(q.shape[-1]))

    def some(part: tuple[slice, slice], first: np.uint32) -> None:
        dscores = np.matmul(dout[part], v[part].swapaxes(2, 3))  # first the derivative of the dropped p
        dropped = empty_like(dscores)
        _softmax_rows_backward(dscores, p[part], scale, drop, first, dropped)
        np.matmul(dropped.swapaxes(2, 3), dout[part], out=dv[part])
        np.matmul(dscores, k[part], out=dq[part])
        np.matmul(dscores.swapaxes(2, 3), q[part], out=dk[part])

    run_all(partial(some, *each) for each in _parts(*p.shape))
    return dqkv


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


def _parts(batch: int, heads: int, length: int, _: int) -> Iterator[tuple[tuple[slice, slice], np.uint32]]:
    """The work in parts: slices of B and A, together contiguous, and the index of their first score."""
    some_heads = min(max(SCORES // length**2, 1), heads)
    some_batch = max(SCORES // (heads * length**2), 1)
    for b in range(0, batch, some_batch):
        for a in range(0, heads, some_heads):
            part = slice(b, b + some_batch), slice(a, a + some_heads)
            yield part, uint32((b * heads + a) * length**2)
