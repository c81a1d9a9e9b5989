"""Multi-head scaled dot-product attention (Vaswani et al., 2017, section 3.2)."""

import math

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.ops.inverted_dropout import dropout, dropout_backward
from minibert.ops.stable_softmax import softmax, softmax_backward

Cache = tuple

# What google-research/bert adds to a forbidden score: exp(−10000) is 0 in any precision we use.
MASKED = -10000.0


def attention_bias(attention_mask: Array, dtype: str, causal: bool = False) -> Array:
    """What is added to the scores so that forbidden keys get no weight: 0 where allowed, −10000 where not.

    attention_mask (B, S), 1 for real tokens and 0 for padding → bias (B, 1, 1, S), the same for every
    head and query. With ``causal`` it is (B, 1, S, S), and query i sees only keys j ≤ i. We add a bias
    instead of multiplying scores by 0, because a score of 0 would still get weight exp(0) = 1. The bias is
    finite, since −∞ would give 0/0 in a row in which every key is padding.
    """
    xp = get_array_module(attention_mask)
    bias = (1 - attention_mask.astype(dtype))[:, None, None, :] * MASKED  # (B, 1, 1, S)
    if causal:
        length = attention_mask.shape[1]
        future = xp.triu(xp.full((length, length), MASKED, dtype=dtype), 1)  # (S, S)
        bias = bias + future
    return bias


def split_heads(x: Array, num_heads: int) -> Array:
    """(B, S, H) → (B, A, S, D): head a gets the features a·D to (a+1)·D of every token."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, num_heads, hidden // num_heads).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """(B, A, S, D) → (B, S, H): the inverse of :func:`split_heads`, and therefore also its backward."""
    batch, num_heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, num_heads * size)


def attention_scores(q: Array, k: Array, bias: Array) -> Array:
    """scores = q kᵀ / √D + bias: how well each key matches each query. q, k (B, A, S, D) → (B, A, S, S)."""
    return (q @ k.transpose(0, 1, 3, 2)) * (1.0 / math.sqrt(q.shape[-1])) + bias


def attention(
    q: Array, k: Array, v: Array, bias: Array, probability: float, key: DropoutKey | None
) -> tuple[Array, Cache]:
    """For each query, the mean of the values, weighted by how well each key matches the query:

        scores = q kᵀ / √D + bias,   p = softmax(scores),   y = dropout(p) v

    q, k, v (B, A, S, D), bias broadcast to (B, A, S, S) → y (B, A, S, D). If the numbers in q and k are
    independent with unit variance, a product q·k has variance D. Dividing it by √D makes the variance 1, so
    that the softmax neither saturates nor stops learning as D grows.
    """
    scores = (q @ k.transpose(0, 1, 3, 2)) * (1.0 / math.sqrt(q.shape[-1])) + bias  # (B, A, S, S)
    p, softmax_cache = softmax(scores)
    dropped, dropout_cache = dropout(p, probability, key)
    return dropped @ v, (q, k, v, dropped, softmax_cache, dropout_cache)


def attention_backward(dout: Array, cache: Cache) -> tuple[Array, Array, Array]:
    """Derivatives of :func:`attention`: dq, dk, dv, each (B, A, S, D).

    forward, head by head: y = p̃ v with p̃ = dropout(p), p = softmax(s), s = q kᵀ/√D + bias, so

        dv = p̃ᵀ dout,   dp̃ = dout vᵀ,   ds = softmax_backward(dropout_backward(dp̃))
        dq = ds k / √D,   dk = dsᵀ q / √D

    The bias is a constant and needs no gradient.
    """
    q, k, v, dropped, softmax_cache, dropout_cache = cache
    scale = 1.0 / math.sqrt(q.shape[-1])
    dv = dropped.transpose(0, 1, 3, 2) @ dout  # (B, A, S, D)
    ddropped = dout @ v.transpose(0, 1, 3, 2)  # (B, A, S, S)
    dp = dropout_backward(ddropped, dropout_cache)
    dscores = softmax_backward(dp, softmax_cache) * scale  # (B, A, S, S)
    dq = dscores @ k  # (B, A, S, D)
    dk = dscores.transpose(0, 1, 3, 2) @ q  # (B, A, S, D)
    return dq, dk, dv
