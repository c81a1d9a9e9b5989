"""Attention: cuBLAS's products for every head, and everything between them in one pass (attention.cu)."""

import math

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.kernels.cuda.dropout import dropout_arguments
from minibert.kernels.cuda.launch import contiguous, launch, row_block
from minibert.kernels.cuda.products import multiply


def packed_attention(
    qkv: Array, bias: Array, num_heads: int, probability: float, key: DropoutKey | Array | None
) -> tuple[Array, tuple]:
    """See ``composites.packed_attention``. The heads are read where they lie; nothing is rearranged."""
    xp, dtype = get_array_module(qkv), qkv.dtype.name
    qkv = contiguous(qkv)
    batch, length, width = qkv.shape
    q, k, v = _heads(qkv, 3, num_heads)
    probabilities = xp.empty((batch, num_heads, length, length), dtype=qkv.dtype)
    multiply(q, k.swapaxes(2, 3), probabilities, scale=_scale(q))  # the scores, at first

    dropout = dropout_arguments(qkv, probability, key)
    dropped = None if dropout[0] is None else xp.empty_like(probabilities)
    bias, bias_steps = _bias(bias, length)
    grid, block, rows = _grid(probabilities)
    arrays = probabilities, bias, dropped
    numbers = rows, num_heads, length, *bias_steps
    launch("attention", "attention_softmax", dtype, grid, block, *arrays, *numbers, *dropout)
    dropped = probabilities if dropped is None else dropped
    y = xp.empty((batch, length, width // 3), dtype=qkv.dtype)
    multiply(dropped, v, _heads(y, 1, num_heads)[0])
    return y, (qkv, probabilities, dropped, dropout)


def packed_attention_backward(dout: Array, cache: tuple) -> Array:
    """See ``composites.packed_attention_backward``."""
    qkv, probabilities, dropped, dropout = cache
    xp, dtype, num_heads = get_array_module(qkv), qkv.dtype.name, probabilities.shape[1]
    dqkv = xp.empty_like(qkv)
    q, k, v = _heads(qkv, 3, num_heads)
    dq, dk, dv = _heads(dqkv, 3, num_heads)
    (dout,) = _heads(contiguous(dout, qkv.dtype), 1, num_heads)

    multiply(dropped.swapaxes(2, 3), dout, dv)
    dscores = xp.empty_like(probabilities)
    multiply(dout, v.swapaxes(2, 3), dscores)  # the derivative of dropped, at first
    grid, block, rows = _grid(probabilities)
    arrays = dscores, probabilities
    numbers = rows, qkv.shape[1]
    launch("attention", "attention_softmax_backward", dtype, grid, block, *arrays, *numbers, *dropout)
    multiply(dscores, k, dq, scale=_scale(q))
    multiply(dscores.swapaxes(2, 3), q, dk, scale=_scale(q))
    return dqkv


def _heads(x: Array, count: int, num_heads: int) -> list[Array]:
    """(B, S, count · A · D) → so many views (B, A, S, D): q, k and v that lie side by side, or one alone."""
    batch, length, width = x.shape
    x = x.reshape(batch, length, count, num_heads, width // count // num_heads)
    return [x[:, :, i].swapaxes(1, 2) for i in range(count)]


def _bias(bias: Array, length: int) -> tuple[Array, list[int]]:
    """The bias, of four axes without gaps, and the elements from one batch entry, head and query to the next.

    None where the axis has length 1 and is broadcast. The last axis is (S,) in full.
    """
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    bias = contiguous(get_array_module(bias).broadcast_to(bias, (*bias.shape[:3], length)), "float32")
    _, heads, queries, _ = bias.shape
    steps = heads * queries * length, queries * length, length
    return bias, [step if n > 1 else 0 for n, step in zip(bias.shape, steps, strict=False)]


def _scale(q: Array) -> float:
    return 1.0 / math.sqrt(q.shape[-1])


def _grid(probabilities: Array) -> tuple[tuple[int], tuple[int, int], int]:
    """The grid, the block, and how many rows of scores there are."""
    length = probabilities.shape[-1]
    rows = probabilities.size // length
    block = row_block(length, probabilities.dtype.name)
    return (-(-rows // block[1]),), block, rows
