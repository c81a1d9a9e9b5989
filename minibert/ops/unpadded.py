"""Attention over texts of different lengths that lie one after the other, with no padding between them."""

import math

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.ops.attention import attention_bias
from minibert.ops.composites import packed_attention, packed_attention_backward

Cache = tuple


def unpadded_attention(
    qkv: Array, starts: Array, num_heads: int, probability: float, key: DropoutKey | None
) -> tuple[Array, Cache]:
    """Attention within each of B sequences, which lie one after the other.

    qkv (T, 3H): queries, keys and values of all T tokens. starts (B + 1,), integers: sequence b has the rows
    from starts[b] up to, but not including, starts[b + 1]; starts[0] is 0, and starts[B] is T. → y (T, H).

    The numbers are those of ``packed_attention`` for the same sequences, padded at the end to the length S of
    the longest one. A masked key has the weight exp(−10000) = 0, so that leaving it out changes nothing.
    Dropout draws for the same scores (B, A, S, S).
    """
    real, rows = _places(starts, len(qkv))
    padded = put_rows(qkv, rows, real.shape)  # (B, S, 3H)
    y, cache = packed_attention(padded, attention_bias(real, padded.real.dtype), num_heads, probability, key)
    return y.reshape(-1, y.shape[-1])[rows], (cache, rows, real.shape)


def unpadded_attention_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`unpadded_attention`: dqkv (T, 3H).

    forward: rows were put between rows of zeros, and taken out again. So dout is put between zeros, and what
    comes back to the padding is the derivative of nothing.
    """
    attention_cache, rows, shape = cache
    dqkv = packed_attention_backward(put_rows(dout, rows, shape), attention_cache)  # (B, S, 3H)
    return dqkv.reshape(-1, dqkv.shape[-1])[rows]


def _places(starts: Array, count: int) -> tuple[Array, Array]:
    """Whether there is a token at each place (B, S), and the place b·S + s of each of the T tokens (T,)."""
    xp, lengths = get_array_module(starts), starts[1:] - starts[:-1]  # (B,)
    longest = int(lengths.max())
    tokens = xp.arange(count)
    text = (tokens[:, None] >= starts[1:]).sum(axis=1)  # (T,): how many texts end before this token
    return xp.arange(longest) < lengths[:, None], text * longest + tokens - starts[text]


def put_rows(x: Array, rows: Array, shape: tuple[int, ...]) -> Array:
    """x (T, N) at these rows of zeros (B · S, N), as (B, S, N). Its backward takes the rows out again."""
    padded = get_array_module(x).zeros((math.prod(shape), x.shape[-1]), dtype=x.dtype)
    padded[rows] = x
    return padded.reshape(*shape, x.shape[-1])
