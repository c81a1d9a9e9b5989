"""Attention step by step, showing every step to an observer, which may look at its value or change it.

The numbers are those of ``composites.packed_attention``, which a model uses while nobody observes.
"""

import math
from collections.abc import Callable
from typing import Protocol

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.ops.attention import attention_scores, merge_heads, split_heads
from minibert.ops.composites import split_qkv
from minibert.ops.inverted_dropout import dropout, dropout_backward
from minibert.ops.stable_softmax import softmax, softmax_backward

Cache = tuple


class Observed(Protocol):
    """The backward of what an observer did to one value."""

    def backward(self, dvalue: Array) -> Array:
        """The derivative of the value that the observer returned → that of the value it was given."""


Observe = Callable[[str, Array], tuple[Array, Observed | None]]


def observed_attention(
    qkv: Array, bias: Array, num_heads: int, probability: float, key: DropoutKey | None, observe: Observe
) -> tuple[Array, Cache]:
    """:func:`composites.packed_attention`, with ``observe(name, value)`` called for each of its steps:

        "q", "k", "v"     (B, A, S, D)
        "scores"          (B, A, S, S): q kᵀ / √D + bias
        "probabilities"   (B, A, S, S): softmax(scores), before dropout
        "context"         (B, S, H): y

    ``observe`` returns the value to continue with, the same one or another of that shape. It also returns
    the :class:`Observed` that takes the derivative back through the change, or None if there is none.
    """
    q, k, v = split_qkv(qkv, num_heads)
    q, q_observed = observe("q", q)
    k, k_observed = observe("k", k)
    v, v_observed = observe("v", v)
    scores, scores_observed = observe("scores", attention_scores(q, k, bias))  # (B, A, S, S)
    p, softmax_cache = softmax(scores)
    p, p_observed = observe("probabilities", p)
    dropped, dropout_cache = dropout(p, probability, key)
    y, y_observed = observe("context", merge_heads(dropped @ v))  # (B, S, H)
    observed = q_observed, k_observed, v_observed, scores_observed, p_observed, y_observed
    return y, (q, k, v, num_heads, dropped, softmax_cache, dropout_cache, observed)


def observed_attention_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`observed_attention`: dqkv (B, S, 3H).

    forward: the steps of ``attention``, each of whose values the observer may have changed. In reverse
    order, each derivative therefore goes back through the change to its value.
    """
    q, k, v, num_heads, dropped, softmax_cache, dropout_cache, observed = cache
    q_observed, k_observed, v_observed, scores_observed, p_observed, y_observed = observed
    xp = get_array_module(dout)
    scale = 1.0 / math.sqrt(q.shape[-1])
    dy = split_heads(observed_backward(dout, y_observed), num_heads)  # (B, A, S, D)
    ddropped = dy @ v.transpose(0, 1, 3, 2)  # (B, A, S, S)
    dp = observed_backward(dropout_backward(ddropped, dropout_cache), p_observed)
    dscores = observed_backward(softmax_backward(dp, softmax_cache), scores_observed) * scale
    dv = observed_backward(dropped.transpose(0, 1, 3, 2) @ dy, v_observed)  # (B, A, S, D)
    dk = observed_backward(dscores.transpose(0, 1, 3, 2) @ q, k_observed)
    dq = observed_backward(dscores @ k, q_observed)
    return xp.concatenate([merge_heads(gradient) for gradient in (dq, dk, dv)], axis=-1)


def observed_backward(dvalue: Array, observed: Observed | None) -> Array:
    """Go back through what an observer did to one value; without an observer, ``dvalue`` is unchanged."""
    return dvalue if observed is None else observed.backward(dvalue)
